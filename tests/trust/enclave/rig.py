"""A chip whose private key is at hand, for tests that sign whatever a lying platform might."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from hypothesis import HealthCheck, settings

from odp.errors import AttestationError
from odp.trust.enclave.platform import EmulatedGuest, EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence

NOW = 1_750_000_000.0


NONCE = bytes(range(32))


HPKE, SIGNING = b"h" * 32, b"s" * 32


DIGESTS = {"aggregator": "sha384:" + "aa" * 48, "distributor": "sha384:" + "dd" * 48}


POLICIES = {
    "aggregator": EnclavePolicy(role="aggregator").to_bytes(),
    "distributor": EnclavePolicy(role="distributor").to_bytes(),
}


RELAXED = EnclavePolicy(role="aggregator", minimum_cohort=1, population_epsilon=1e6).to_bytes()


FUZZ = settings(
    derandomize=True, database=None, deadline=None, max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


class Rig:
    """A chip under test: its private key is at hand, so a test can sign whatever a lying platform might."""

    def __init__(self, folder: Path) -> None:
        self.platform = EmulatedPlatform.open(folder, clock=lambda: NOW)
        self.issued = self.platform._issued
        self.pinned = ReferenceValues(
            roots=(self.platform.root_certificate_pem,),
            image_digests={role: (digest,) for role, digest in DIGESTS.items()},
            policy_sha256={role: (hashlib.sha256(policy).hexdigest(),) for role, policy in POLICIES.items()},
            allow_emulated=True,
        )

    def token(self, *, role: str = "aggregator", policy: bytes | None = None, at: float = NOW) -> str:
        policy = POLICIES[role] if policy is None else policy
        return self.launched(role, policy=policy, at=at).evidence(NONCE).token

    def launched(
        self, role: str, *, image: str | None = None, policy: bytes, at: float = NOW, debug: bool = False
    ) -> EmulatedGuest:
        """A new launch, with keys, at a platform whose clock stands at ``at``."""
        self.platform.clock = lambda: at
        digest = DIGESTS[role] if image is None else image
        guest = self.platform.launch(image_digest=digest, policy=policy, name=role, debug=debug)
        guest.bind_keys(hpke_public=HPKE, signing_public=SIGNING)
        return guest

    def claims(self) -> dict[str, Any]:
        return dict(parts(self.token())[1])

    def sign(self, claims: object, header: object | None = None) -> str:
        """A token of any claims and header, genuinely signed: written here, apart from the code under test."""
        if header is None:
            header = parts(self.token())[0]
        return sign_raw(json.dumps(header).encode(), json.dumps(claims).encode(), self.issued.key)

    def verify(self, token: str | None = None, **changes: Any) -> VerifiedEnclave:
        given: dict[str, Any] = {
            "token": self.token() if token is None else token,
            "policy": POLICIES["aggregator"],
            "nonce": NONCE,
            "role": "aggregator",
            "reference_values": self.pinned,
            "now": NOW,
        }
        given |= changes
        return verify_evidence(**{"event_log": log(given["policy"]), **given})


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = token.split(".")
    return json.loads(decode(header)), json.loads(decode(claims))


def sign_raw(header: bytes, claims: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    signed = f"{encode(header)}.{encode(claims)}"
    r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA384())))
    return f"{signed}.{encode(r.to_bytes(48, 'big') + s.to_bytes(48, 'big'))}"


def report(*, hpke: bytes = HPKE, signing: bytes = SIGNING, nonce: bytes = NONCE, policy: bytes | None = None) -> str:
    """report_data by the formula of attestation.proto, written apart from the code under test."""
    policy_sha256 = hashlib.sha256(POLICIES["aggregator"] if policy is None else policy).digest()
    data = b"odp/v1/report" + hashlib.sha256(nonce).digest() + hpke + signing + policy_sha256
    return encode(hashlib.sha512(data).digest())


def log(policy: bytes, *more: str, debug: str = "off", keys: tuple[bytes, bytes] = (HPKE, SIGNING)) -> bytes:
    """The event log of an enclave under ``policy``, and further lines."""
    lines = [
        f"configuration policy {hashlib.sha256(policy).hexdigest()}",
        f"configuration debug {debug}",
        f"runtime keys {keys[0].hex()} {keys[1].hex()}",
        *more,
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def registers(event_log: bytes) -> dict[str, str]:
    """The claim for a log, by the formula of docs/protocol.md, written apart from the code under test."""
    values = dict.fromkeys(("configuration", "sandbox", "runtime"), bytes(48))
    for line in event_log.decode().splitlines():
        register, event = line.split(" ", 1)
        values[register] = hashlib.sha384(values[register] + hashlib.sha384(event.encode()).digest()).digest()
    return {name: encode(value) for name, value in values.items()}


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(AttestationError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value.reason

"""Attacks on evidence: each fails closed, with its own reason."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from trust.enclave.rig import (
    DIGESTS,
    HPKE,
    NONCE,
    NOW,
    POLICIES,
    RELAXED,
    SIGNING,
    Rig,
    decode,
    encode,
    log,
    parts,
    reason,
    registers,
    report,
    sign_raw,
)

from odp.errors import AttestationError, ConfigurationError
from odp.trust.enclave import chain
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.platform import TOKEN_SECONDS
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import Validity
from odp.trust.enclave.verifier import CLOCK_SKEW_SECONDS, VerifiedEnclave


@pytest.mark.parametrize("role", ["aggregator", "distributor"])
def test_genuine_evidence_gives_the_attested_keys_policy_and_measurement(rig: Rig, role: str) -> None:
    found = rig.verify(rig.token(role=role), role=role, policy=POLICIES[role])
    assert found == VerifiedEnclave(
        role=role,  # type: ignore[arg-type]
        hpke_key=HPKE,
        signing_key=SIGNING,
        policy=EnclavePolicy.from_bytes(POLICIES[role]),
        image_digest=DIGESTS[role],
        expires=NOW + TOKEN_SECONDS,
        emulated=True,
        chip_id=found.chip_id,
        restrictions=(),
    )
    assert len(found.chip_id) == 64


def test_the_token_is_a_jwt_in_the_shape_of_confidential_space(rig: Rig) -> None:
    token = rig.token()
    header, claims = parts(token)
    assert (header["alg"], header["typ"], len(header["x5c"])) == ("ES384", "JWT", 3)
    assert claims == {
        "iss": "urn:odp:emulated-platform",
        "aud": "odp",
        "iat": int(NOW),
        "exp": int(NOW) + 3600,
        "eat_nonce": encode(NONCE),
        "eat_profile": "urn:odp:evidence:v1",
        "dbgstat": "disabled-since-boot",
        "hwmodel": "ODP-EMULATED",
        "swname": "odp-aggregator",
        "emulated": True,
        "submods": {"container": {"image_digest": DIGESTS["aggregator"]}},
        "registers": registers(log(POLICIES["aggregator"])),
        "report_data": report(),
        "hpke_key": encode(HPKE),
        "signing_key": encode(SIGNING),
    }
    signed, signature = token.rsplit(".", 1)
    raw = decode(signature)
    assert len(raw) == 96
    der = utils.encode_dss_signature(int.from_bytes(raw[:48], "big"), int.from_bytes(raw[48:], "big"))
    rig.issued.key.public_key().verify(der, signed.encode(), ec.ECDSA(hashes.SHA384()))


def test_a_token_written_by_the_test_itself_verifies_so_that_attacks_fail_for_their_own_reason(rig: Rig) -> None:
    assert rig.verify(rig.sign(rig.claims())).hpke_key == HPKE
    assert rig.verify(rig.sign({**rig.claims(), "a claim of the future": [1, {}]})).hpke_key == HPKE


def test_the_same_evidence_gives_the_same_answer_for_as_long_as_it_lasts(rig: Rig) -> None:
    token = rig.token()
    assert rig.verify(token) == rig.verify(token, now=NOW + TOKEN_SECONDS - 1)


# What a host or a network can do to the evidence of a genuine enclave, without any key.


def test_a_replayed_token_is_refused_by_its_nonce(rig: Rig) -> None:
    assert reason(lambda: rig.verify(nonce=bytes(32))) == Reason.WRONG_NONCE
    assert reason(lambda: rig.verify(nonce=NONCE[:16])) == Reason.WRONG_NONCE


@pytest.mark.parametrize("claim", ["hpke_key", "signing_key", "eat_nonce", "report_data"])
def test_a_swapped_key_or_nonce_breaks_the_signature(rig: Rig, claim: str) -> None:
    header, claims, signature = rig.token().split(".")
    changed = {**json.loads(decode(claims)), claim: encode(b"x" * 32)}
    token = f"{header}.{encode(json.dumps(changed).encode())}.{signature}"
    assert reason(lambda: rig.verify(token)) == Reason.BAD_SIGNATURE


def test_the_signature_of_another_token_of_the_same_chip_does_not_fit(rig: Rig) -> None:
    head = rig.token().rsplit(".", 1)[0]
    signature = rig.token(at=NOW + 1).rsplit(".", 1)[1]
    assert reason(lambda: rig.verify(f"{head}.{signature}")) == Reason.BAD_SIGNATURE
    assert reason(lambda: rig.verify(f"{head}.{encode(bytes(96))}")) == Reason.BAD_SIGNATURE
    assert reason(lambda: rig.verify(f"{head}.{encode(bytes([255]) * 96)}")) == Reason.BAD_SIGNATURE


def test_a_genuine_chain_around_a_signature_by_another_key_is_refused(rig: Rig, other: Rig) -> None:
    header, _ = parts(rig.token())
    token = sign_raw(json.dumps(header).encode(), json.dumps(rig.claims()).encode(), other.issued.key)
    assert reason(lambda: rig.verify(token)) == Reason.BAD_SIGNATURE


def test_a_relaxed_policy_shown_with_the_evidence_of_a_strict_enclave_is_refused(rig: Rig) -> None:
    assert reason(lambda: rig.verify(policy=RELAXED)) == Reason.WRONG_POLICY


@pytest.mark.parametrize("policy", [b"", POLICIES["aggregator"] + b" ", POLICIES["distributor"]])
def test_a_missing_reserialized_or_foreign_policy_is_refused(rig: Rig, policy: bytes) -> None:
    assert reason(lambda: rig.verify(policy=policy)) == Reason.WRONG_POLICY


# What the operator of a genuine platform can do: launch the wrong thing.


def test_an_enclave_with_a_relaxed_policy_is_refused_whichever_policy_its_host_shows(rig: Rig) -> None:
    token = rig.token(policy=RELAXED)
    assert reason(lambda: rig.verify(token, policy=RELAXED)) == Reason.WRONG_POLICY
    assert reason(lambda: rig.verify(token)) == Reason.KEY_BINDING


def test_a_distributor_cannot_stand_in_for_an_aggregator_nor_the_other_way_round(rig: Rig) -> None:
    for is_role, wanted in (("distributor", "aggregator"), ("aggregator", "distributor")):
        token = rig.token(role=is_role)
        for policy in POLICIES.values():
            call = functools.partial(rig.verify, token, role=wanted, policy=policy)
            assert reason(call) == Reason.WRONG_ROLE


def test_a_distributors_code_that_calls_itself_aggregator_is_refused_by_its_measurement(rig: Rig) -> None:
    policy = POLICIES["aggregator"]
    token = rig.launched("aggregator", image=DIGESTS["distributor"], policy=policy).evidence(NONCE).token
    assert reason(lambda: rig.verify(token)) == Reason.WRONG_IMAGE


def test_a_policy_of_another_role_is_refused_even_where_it_was_listed_by_mistake(rig: Rig) -> None:
    policy = POLICIES["distributor"]
    listed = {"aggregator": (hashlib.sha256(policy).hexdigest(),)}
    pinned = dataclasses.replace(rig.pinned, policy_sha256=listed)
    token = rig.token(policy=policy)
    assert reason(lambda: rig.verify(token, policy=policy, reference_values=pinned)) == Reason.WRONG_ROLE


def test_a_listed_policy_that_cannot_be_read_is_refused(rig: Rig) -> None:
    pinned = dataclasses.replace(rig.pinned, policy_sha256={"aggregator": (hashlib.sha256(b"{}").hexdigest(),)})
    token = rig.token(policy=b"{}")
    assert reason(lambda: rig.verify(token, policy=b"{}", reference_values=pinned)) == Reason.WRONG_POLICY


# What an enclave or a platform could say wrongly: genuinely signed, and still refused.

SIGNED_ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    ("report for other HPKE key", {"hpke_key": encode(b"x" * 32)}, Reason.KEY_BINDING),
    ("report for other signing key", {"signing_key": encode(b"x" * 32)}, Reason.KEY_BINDING),
    ("keys exchanged", {"hpke_key": encode(SIGNING), "signing_key": encode(HPKE)}, Reason.KEY_BINDING),
    ("report over an old nonce", {"report_data": report(nonce=bytes(32))}, Reason.KEY_BINDING),
    ("report over a relaxed policy", {"report_data": report(policy=RELAXED)}, Reason.KEY_BINDING),
    ("report of zeros", {"report_data": encode(bytes(64))}, Reason.KEY_BINDING),
    ("debugger attached", {"dbgstat": "enabled"}, Reason.DEBUG_ENABLED),
    ("debugger attached earlier", {"dbgstat": "disabled"}, Reason.DEBUG_ENABLED),
    ("unknown debug status", {"dbgstat": "DISABLED-SINCE-BOOT"}, Reason.DEBUG_ENABLED),
    ("unknown image", {"submods": {"container": {"image_digest": "sha384:" + "00" * 48}}}, Reason.WRONG_IMAGE),
    ("image without algorithm", {"submods": {"container": {"image_digest": "aa" * 48}}}, Reason.WRONG_IMAGE),
    ("role as suffix", {"swname": "not-odp-aggregator"}, Reason.WRONG_ROLE),
    ("role in capitals", {"swname": "odp-Aggregator"}, Reason.WRONG_ROLE),
    ("issued in the future", {"iat": int(NOW) + 61}, Reason.NOT_YET_VALID),
    ("expired", {"iat": int(NOW) - 10, "exp": int(NOW)}, Reason.EXPIRED),
    ("long-lived but old", {"iat": int(NOW) - 3600, "exp": int(NOW) + 10**6}, Reason.EXPIRED),
]


@pytest.mark.parametrize(
    ("changes", "expected"), [row[1:] for row in SIGNED_ATTACKS], ids=[row[0] for row in SIGNED_ATTACKS]
)
def test_a_genuinely_signed_lie_is_refused_with_its_own_reason(
    rig: Rig, changes: dict[str, Any], expected: str
) -> None:
    token = rig.sign({**rig.claims(), **changes})
    assert reason(lambda: rig.verify(token)) == expected


def test_every_claim_has_to_be_there(rig: Rig) -> None:
    for name in rig.claims():
        claims = rig.claims()
        del claims[name]
        token = rig.sign(claims)
        assert reason(functools.partial(rig.verify, token)) == Reason.MALFORMED, name


def test_debugging_is_accepted_only_where_it_is_pinned(rig: Rig) -> None:
    pinned = dataclasses.replace(rig.pinned, allow_debug=True)
    launched = rig.launched("aggregator", policy=POLICIES["aggregator"], debug=True).evidence(NONCE)
    assert launched.event_log == log(POLICIES["aggregator"], debug="on")
    assert reason(lambda: rig.verify(launched.token, event_log=launched.event_log)) == Reason.DEBUG_ENABLED
    found = rig.verify(launched.token, event_log=launched.event_log, reference_values=pinned)
    assert found.hpke_key == HPKE
    # The debug bit is told twice: in the token, and in the log.
    silent = rig.sign({**rig.claims(), "dbgstat": "enabled"})
    assert reason(lambda: rig.verify(silent, reference_values=pinned)) == Reason.EVENT_LOG
    assert reason(
        lambda: rig.verify(rig.sign({**rig.claims(), "dbgstat": "maybe"}), reference_values=pinned)
    ) == Reason.DEBUG_ENABLED  # fmt: skip


# What the verifier pins.


def test_the_emulation_is_refused_unless_pinned_even_where_its_claims_deny_it(rig: Rig) -> None:
    pinned = dataclasses.replace(rig.pinned, allow_emulated=False)
    lies: list[dict[str, Any]] = [
        {},
        {"emulated": False},
        {"hwmodel": "GCP_AMD_SEV"},
        {"emulated": False, "hwmodel": "GCP_AMD_SEV", "iss": "https://confidentialcomputing.googleapis.com"},
    ]
    for lie in lies:
        token = rig.sign({**rig.claims(), **lie})
        assert reason(functools.partial(rig.verify, token, reference_values=pinned)) == Reason.EMULATED_NOT_ALLOWED
        assert rig.verify(token).emulated


def test_evidence_of_a_platform_with_another_root_is_refused(rig: Rig, other: Rig) -> None:
    token = other.token()
    assert other.verify(token).hpke_key == HPKE
    assert reason(lambda: rig.verify(token)) == Reason.WRONG_ROOT


def test_evidence_of_another_platform_under_a_stolen_root_certificate_is_refused(rig: Rig, other: Rig) -> None:
    header, claims = parts(other.token())
    header["x5c"][2] = parts(rig.token())[0]["x5c"][2]
    token = sign_raw(json.dumps(header).encode(), json.dumps(claims).encode(), other.issued.key)
    assert reason(lambda: rig.verify(token)) == Reason.CHAIN_INVALID


def test_an_expired_chain_is_refused(rig: Rig) -> None:
    later = NOW + 8 * 365 * 24 * 3600
    token = rig.token(at=later)
    assert reason(lambda: rig.verify(token, now=later)) == Reason.CHAIN_EXPIRED


def test_reference_values_that_list_nothing_accept_nothing(rig: Rig) -> None:
    for field, expected in (
        ("roots", Reason.WRONG_ROOT),
        ("image_digests", Reason.WRONG_IMAGE),
        ("policy_sha256", Reason.WRONG_POLICY),
    ):
        empty: Any = () if field == "roots" else {}
        pinned = dataclasses.replace(rig.pinned, **{field: empty})
        assert reason(functools.partial(rig.verify, reference_values=pinned)) == expected


def test_evidence_lasts_to_its_expiry_or_to_the_pinned_age_whichever_is_first(rig: Rig) -> None:
    token = rig.token()
    assert reason(lambda: rig.verify(token, now=NOW + TOKEN_SECONDS)) == Reason.EXPIRED
    pinned = dataclasses.replace(rig.pinned, max_age_seconds=60.0)
    assert rig.verify(token, reference_values=pinned, now=NOW + 59).expires == NOW + 60
    assert reason(lambda: rig.verify(token, reference_values=pinned, now=NOW + 60)) == Reason.EXPIRED


def test_a_clock_that_is_a_minute_behind_still_works_and_more_does_not(rig: Rig) -> None:
    token = rig.token()
    rig.verify(token, now=NOW - CLOCK_SKEW_SECONDS)
    assert reason(lambda: rig.verify(token, now=NOW - CLOCK_SKEW_SECONDS - 1)) == Reason.NOT_YET_VALID


def test_the_callers_own_mistakes_are_not_blamed_on_the_evidence(rig: Rig) -> None:
    with pytest.raises(ConfigurationError, match="nonce of 16 to 64 bytes, got 0"):
        rig.verify(nonce=b"")
    with pytest.raises(ConfigurationError, match="did you mean 'aggregator'"):
        rig.verify(role="agregator")
    with pytest.raises(ConfigurationError, match="now"):
        rig.verify(now=float("nan"))


# Firmware, revocation, measurements that go out of use.


@pytest.mark.parametrize("component", ["boot_loader", "tee", "snp", "microcode"])
def test_a_platform_with_one_component_below_its_minimum_is_refused(rig: Rig, component: str) -> None:
    at = dataclasses.replace(rig.pinned, minimum_tcb=dict.fromkeys(("boot_loader", "tee", "snp", "microcode"), 1))
    assert rig.verify(reference_values=at).hpke_key == HPKE
    above = dataclasses.replace(rig.pinned, minimum_tcb={component: 2})
    with pytest.raises(AttestationError, match=component) as caught:
        rig.verify(reference_values=above)
    assert caught.value.reason == Reason.TCB_OUTDATED


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nothing_below_a_revoked_certificate_is_accepted(rig: Rig, other: Rig, place: int) -> None:
    def serial(of: Rig) -> str:
        return f"{x509.load_der_x509_certificate(of.issued.certificates[place]).serial_number:x}"

    pinned = dataclasses.replace(rig.pinned, revoked_certificates=(serial(rig),))
    assert reason(lambda: rig.verify(reference_values=pinned)) == Reason.REVOKED
    pinned = dataclasses.replace(rig.pinned, revoked_certificates=(serial(other),))
    assert rig.verify(reference_values=pinned).hpke_key == HPKE


def test_a_revoked_chip_is_refused(rig: Rig, other: Rig) -> None:
    for found, expected in ((rig.verify(), Reason.REVOKED), (other.verify(), None)):
        pinned = dataclasses.replace(rig.pinned, revoked_chips=(found.chip_id.hex(),))
        if expected is None:
            assert rig.verify(reference_values=pinned).hpke_key == HPKE
        else:
            assert reason(functools.partial(rig.verify, reference_values=pinned)) == expected


def test_a_withdrawn_measurement_is_refused_listed_or_not(rig: Rig) -> None:
    pinned = dataclasses.replace(rig.pinned, withdrawn_images=(DIGESTS["aggregator"],))
    assert reason(lambda: rig.verify(reference_values=pinned)) == Reason.IMAGE_WITHDRAWN
    pinned = dataclasses.replace(pinned, image_digests={})
    assert reason(lambda: rig.verify(reference_values=pinned)) == Reason.IMAGE_WITHDRAWN
    pinned = dataclasses.replace(rig.pinned, withdrawn_images=(DIGESTS["distributor"],))
    assert rig.verify(reference_values=pinned).hpke_key == HPKE


def test_a_measurement_is_accepted_within_its_validity_only_and_the_acceptance_ends_with_it(rig: Rig) -> None:
    def verify(validity: Validity) -> VerifiedEnclave:
        pinned = dataclasses.replace(rig.pinned, image_validity={DIGESTS["aggregator"]: validity})
        return rig.verify(reference_values=pinned)

    assert verify(Validity(not_before=NOW, not_after=NOW + 10)).expires == NOW + 10
    for validity in (Validity(not_before=NOW + 1), Validity(not_after=NOW)):
        assert reason(functools.partial(verify, validity)) == Reason.IMAGE_NOT_VALID
    # A validity lists nothing by itself.
    pinned = dataclasses.replace(rig.pinned, image_digests={}, image_validity={DIGESTS["aggregator"]: Validity()})
    assert reason(lambda: rig.verify(reference_values=pinned)) == Reason.WRONG_IMAGE


@pytest.fixture(scope="module")
def unmarked() -> chain.IssuedChain:
    """A chain whose root does not say that it is emulated, as that of real hardware would not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "EMULATED_ORGANIZATION", "A maker of hardware")
        return chain.issue(now=NOW)


def verify_unmarked(rig: Rig, unmarked: chain.IssuedChain, changes: dict[str, Any], **given: Any) -> VerifiedEnclave:
    real = {"emulated": False, "hwmodel": "AMD-SEV-SNP", "iss": "https://platform.example"}
    header = {**parts(rig.token())[0], "x5c": [base64.b64encode(der).decode() for der in unmarked.certificates[:2]]}
    claims = {**rig.claims(), **real, **changes}
    token = sign_raw(json.dumps(header).encode(), json.dumps(claims).encode(), unmarked.key)
    root = base64.encodebytes(unmarked.certificates[-1]).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{root}-----END CERTIFICATE-----\n"
    pinned = dataclasses.replace(rig.pinned, roots=(pem,), allow_emulated=False)
    return rig.verify(token, reference_values=pinned, **given)


def test_the_same_verifier_accepts_hardware_once_its_root_is_pinned(rig: Rig, unmarked: chain.IssuedChain) -> None:
    assert not verify_unmarked(rig, unmarked, {}).emulated


@pytest.mark.parametrize("mark", [{"emulated": True}, {"hwmodel": "ODP-EMULATED"}])
def test_each_mark_of_the_emulation_alone_is_enough(
    rig: Rig, unmarked: chain.IssuedChain, mark: dict[str, Any]
) -> None:
    assert reason(lambda: verify_unmarked(rig, unmarked, mark)) == Reason.EMULATED_NOT_ALLOWED


def test_acceptance_never_outlasts_the_chain(rig: Rig, unmarked: chain.IssuedChain) -> None:
    end = NOW + 7 * 365 * 24 * 3600
    times = {"iat": int(end) - 10, "exp": int(end) + 1000}
    assert verify_unmarked(rig, unmarked, times, now=end - 5).expires == end

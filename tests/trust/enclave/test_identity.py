"""An enclave's keys: made once, sealed to image, chip and policy, and named by its evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from odp.crypto import domains, verify
from odp.crypto.hpke import DecryptionError, seal
from odp.errors import AttestationError
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import verify_evidence

NOW = 1_750_000_000.0
IMAGE = "sha384:" + "ab" * 48
POLICY = EnclavePolicy(role="aggregator", minimum_cohort=20)
NONCE = bytes(range(32))


@pytest.fixture
def platform(tmp_path: Path) -> EmulatedPlatform:
    return EmulatedPlatform.open(tmp_path / "chip", clock=lambda: NOW)


def _start(
    platform: EmulatedPlatform, sealed: bytes | None = None, *, image: str = IMAGE, policy: EnclavePolicy = POLICY
) -> tuple[EnclaveIdentity, bytes]:
    guest = platform.launch(image_digest=image, policy=policy.to_bytes(), name=policy.role)
    return EnclaveIdentity.restore_or_create(guest=guest, sealed=sealed)


def test_a_restart_signs_with_the_same_key_and_opens_nothing_sealed_to_the_launch_before(
    platform: EmulatedPlatform,
) -> None:
    first, sealed = _start(platform)
    again, kept = _start(platform, sealed)
    assert again.signing.public == first.signing.public
    assert again.hpke.public != first.hpke.public
    with pytest.raises(DecryptionError):
        again.hpke.open(seal(first.hpke.public, b"rows", b""), b"")
    assert kept == sealed


def test_two_new_enclaves_share_no_key(platform: EmulatedPlatform) -> None:
    first, second = _start(platform)[0], _start(platform)[0]
    assert first.hpke.public != second.hpke.public
    assert first.signing.public != second.signing.public


def test_the_sealed_bytes_hold_no_key_in_clear(platform: EmulatedPlatform) -> None:
    identity, sealed = _start(platform)
    for secret in (identity.hpke.to_bytes(), identity.signing.to_bytes()):
        assert secret not in sealed
        assert secret.hex().encode() not in sealed


def test_another_image_chip_or_policy_cannot_open_the_keys(platform: EmulatedPlatform, tmp_path: Path) -> None:
    _, sealed = _start(platform)
    relaxed = EnclavePolicy(role="aggregator", minimum_cohort=1)
    for start in (
        lambda: _start(platform, sealed, image="sha384:" + "ac" * 48),
        lambda: _start(EmulatedPlatform.open(tmp_path / "other", clock=lambda: NOW), sealed),
        lambda: _start(platform, sealed, policy=relaxed),
    ):
        with pytest.raises(DecryptionError):
            start()


@pytest.mark.parametrize("place", [0, 20, -1])
def test_sealed_bytes_that_were_changed_are_refused(platform: EmulatedPlatform, place: int) -> None:
    _, sealed = _start(platform)
    changed = bytearray(sealed)
    changed[place] ^= 1
    for bad in (bytes(changed), sealed[:-1], b""):
        with pytest.raises(DecryptionError):
            _start(platform, bad)


def test_evidence_binds_the_keys_the_image_the_policy_and_the_nonce(platform: EmulatedPlatform) -> None:
    identity, _ = _start(platform)
    reference = ReferenceValues(
        roots=(platform.root_certificate_pem,),
        image_digests={"aggregator": (IMAGE,)},
        policy_sha256={"aggregator": (POLICY.sha256.hex(),)},
        allow_emulated=True,
    )

    def check(nonce: bytes = NONCE, policy: bytes = identity.guest.policy):
        evidence = identity.evidence(NONCE)
        return verify_evidence(
            token=evidence.token, policy=policy, event_log=evidence.event_log, nonce=nonce, role="aggregator",
            reference_values=reference, now=NOW + 1,
        )  # fmt: skip

    found = check()
    assert found.hpke_key == identity.hpke.public
    assert found.signing_key == identity.signing.public
    verify(found.signing_key, identity.signing.sign(domains.LEDGER, b"x"), domains.LEDGER, b"x")
    with pytest.raises(AttestationError):
        check(nonce=bytes(32))
    with pytest.raises(AttestationError):
        check(policy=EnclavePolicy(role="aggregator", minimum_cohort=1).to_bytes())


def test_its_counters_are_the_chips(platform: EmulatedPlatform) -> None:
    identity, _ = _start(platform)
    identity.counter("rounds").advance(expected=0, to=1)
    assert platform.counter("rounds").value == 1

"""Evidence that is genuine for something else, and policies that ask for less (R8, R9, R11).

Each claim that can be forged, and each check of a chain, has its own test in ``tests/trust/enclave``; here are the
attacks of a host that has real enclaves and chooses which evidence to show.
"""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from trust.enclave.rig import NONCE, NOW, POLICIES, Rig, encode, reason, report

from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("chip"))


STRICT = EnclavePolicy(role="aggregator")

#: threat and name -> a policy that promises less than the pinned one, or something else.
OTHER_POLICIES = {
    "R9 a smaller cohort": dataclasses.replace(STRICT, minimum_cohort=STRICT.minimum_cohort - 1),
    "R9 a cohort of one": dataclasses.replace(STRICT, minimum_cohort=1),
    "R9 a larger epsilon": dataclasses.replace(STRICT, population_epsilon=STRICT.population_epsilon + 1e-9),
    "R9 a huge epsilon": dataclasses.replace(STRICT, population_epsilon=1e300),
    "R9 a larger delta": dataclasses.replace(STRICT, population_delta=2e-5),
    "R9 sums that show the items": dataclasses.replace(STRICT, accumulation="direct"),
    "R9 noise that anybody can subtract": dataclasses.replace(STRICT, test_noise_seed=7),
    "R9 reads that show the keys": dataclasses.replace(STRICT, select="direct"),
    "R9 a stricter policy is another policy too": dataclasses.replace(STRICT, minimum_cohort=10**6),
    "R9 the role of the distributor": EnclavePolicy(role="distributor"),
}


@pytest.mark.parametrize("policy", OTHER_POLICIES.values(), ids=OTHER_POLICIES.keys())
def test_an_enclave_under_another_policy_is_refused_whichever_policy_its_host_shows(
    rig: Rig, policy: EnclavePolicy
) -> None:
    token = rig.token(policy=policy.to_bytes())
    assert reason(lambda: rig.verify(token, policy=policy.to_bytes())) == Reason.WRONG_POLICY
    assert reason(lambda: rig.verify(token, policy=POLICIES["aggregator"])) == Reason.KEY_BINDING


def _spellings() -> dict[str, bytes]:
    good = STRICT.to_bytes()
    return {
        "R9 spaces": good.replace(b":", b": "),
        "R9 another order of the keys": b'{"role":"aggregator",' + good[1:].replace(b',"role":"aggregator"', b""),
        "R9 a key twice, the first one relaxed": b'{"minimum_cohort":1,' + good[1:],
        "R9 a query more": b'{"queries":"all",' + good[1:],
        "R9 a number spelt otherwise": good.replace(b"20.0", b"2e1"),
        "R9 a newline behind": good + b"\n",
        "R9 nothing": b"",
        "R9 null": b"null",
    }


@pytest.mark.parametrize("spelling", _spellings().values(), ids=_spellings().keys())
def test_a_policy_in_another_spelling_is_refused_even_where_its_hash_is_listed(rig: Rig, spelling: bytes) -> None:
    assert reason(lambda: rig.verify(policy=spelling)) == Reason.WRONG_POLICY
    listed = dataclasses.replace(rig.pinned, policy_sha256={"aggregator": (hashlib.sha256(spelling).hexdigest(),)})
    claims = {**rig.claims(), "report_data": report(policy=spelling)}
    token = rig.sign(claims)
    assert reason(lambda: rig.verify(token, policy=spelling, reference_values=listed)) == Reason.WRONG_POLICY


def test_r8_the_keys_of_one_enclave_are_not_attested_by_the_report_of_another(rig: Rig) -> None:
    swapped = {
        "the key that devices seal to": {"hpke_key": encode(b"x" * 32)},
        "the key that signs releases": {"signing_key": encode(b"x" * 32)},
        "both, each in the other's place": {"hpke_key": encode(b"s" * 32), "signing_key": encode(b"h" * 32)},
    }
    for changes in swapped.values():
        token = rig.sign({**rig.claims(), **changes})
        assert reason(lambda token=token: rig.verify(token)) == Reason.KEY_BINDING  # type: ignore[misc]


def test_r8_evidence_of_another_genuine_enclave_is_not_this_ones(rig: Rig) -> None:
    other = rig.token(role="distributor")
    assert reason(lambda: rig.verify(other)) == Reason.WRONG_ROLE
    assert reason(lambda: rig.verify(other, role="distributor")) in (Reason.WRONG_POLICY, Reason.KEY_BINDING)


@pytest.mark.parametrize("age", [1e-3, 60.0, 86400.0])
def test_r8_evidence_is_worth_nothing_for_a_nonce_of_later(rig: Rig, age: float) -> None:
    token = rig.token(at=NOW)
    assert reason(lambda: rig.verify(token, nonce=bytes(32), now=NOW + age)) in (Reason.WRONG_NONCE, Reason.EXPIRED)


def test_r11_whoever_pins_nothing_accepts_nothing(rig: Rig) -> None:
    empty = ReferenceValues(roots=(), image_digests={}, policy_sha256={}, allow_emulated=True)
    assert reason(lambda: rig.verify(reference_values=empty)) == Reason.WRONG_ROOT


def test_the_genuine_evidence_is_accepted_so_that_each_attack_fails_for_its_own_reason(rig: Rig) -> None:
    assert rig.verify().policy == STRICT


def test_r9_noise_that_anybody_can_subtract_is_refused_even_where_its_policy_is_listed(rig: Rig) -> None:
    policy = dataclasses.replace(STRICT, test_noise_seed=7).to_bytes()
    listed = dataclasses.replace(rig.pinned, policy_sha256={"aggregator": (hashlib.sha256(policy).hexdigest(),)})
    launched = rig.launched("aggregator", policy=policy).evidence(NONCE)

    def verify(pinned: ReferenceValues) -> VerifiedEnclave:
        return rig.verify(launched.token, policy=policy, event_log=launched.event_log, reference_values=pinned)

    assert reason(lambda: verify(rig.pinned)) == Reason.WRONG_POLICY
    assert reason(lambda: verify(listed)) == Reason.TEST_NOISE_NOT_ALLOWED
    assert verify(dataclasses.replace(listed, allow_test_noise=True)).policy.test_noise_seed == 7

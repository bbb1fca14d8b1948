"""A policy has exactly one spelling."""

from __future__ import annotations

import hashlib

import pytest

from odp.errors import ConfigurationError
from odp.trust.enclave.policy import EnclavePolicy

CANONICAL = (
    b'{"accumulation":"oblivious","minimum_cohort":100,"population_delta":1e-05,"population_epsilon":20.0,'
    b'"role":"aggregator","select":"oblivious"}'
)


def test_the_bytes_are_canonical_json_and_come_back() -> None:
    policy = EnclavePolicy(role="aggregator")
    assert policy.to_bytes() == CANONICAL
    assert EnclavePolicy.from_bytes(CANONICAL) == policy
    assert policy.sha256 == hashlib.sha256(CANONICAL).digest()


def test_a_whole_epsilon_and_its_float_are_one_policy() -> None:
    whole = EnclavePolicy(population_epsilon=20, role="aggregator")
    assert whole.to_bytes() == CANONICAL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 4000,
        b" " + CANONICAL,
        CANONICAL.replace(b":100", b": 100"),
        CANONICAL.replace(b"1e-05", b"0.00001"),
        CANONICAL.replace(b"20.0", b"20"),
        CANONICAL.replace(b"20.0", b"NaN"),
        CANONICAL.replace(b"20.0", b"Infinity"),
        CANONICAL.replace(b"20.0", b"-1.0"),
        CANONICAL.replace(b"20.0", b"1" + b"0" * 400),
        CANONICAL.replace(b"100", b"true"),
        CANONICAL.replace(b"100", b"0"),
        CANONICAL.replace(b"1e-05", b"1.0"),
        CANONICAL.replace(b'"aggregator"', b"1"),
        CANONICAL.replace(b"aggregator", b"auditor"),
        CANONICAL.replace(b'"role"', b'"rule"'),
        CANONICAL.replace(b'n":"oblivious"', b'n":"fast"'),
        CANONICAL.replace(b't":"oblivious"', b't":"fast"'),
        CANONICAL.replace(b',"select":"oblivious"', b""),
        CANONICAL.replace(b'"accumulation":"oblivious",', b""),
        CANONICAL.replace(b"{", b'{"extra":1,'),
        CANONICAL.replace(b"{", b'{"minimum_cohort":1,'),
        CANONICAL.replace(b',"role":"aggregator"', b""),
        CANONICAL + b" " * 5000,
    ],
)
def test_any_other_spelling_or_value_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        EnclavePolicy.from_bytes(data)


def test_a_misspelt_role_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'aggregator'"):
        EnclavePolicy(role="agregator")  # type: ignore[arg-type]


def test_a_seed_for_test_noise_is_a_key_of_its_own_and_an_exact_policy_has_none() -> None:
    exact, seeded = EnclavePolicy(role="aggregator"), EnclavePolicy(role="aggregator", test_noise_seed=7)
    assert b"noise" not in exact.to_bytes()
    assert b'"test_noise_seed":7' in seeded.to_bytes()
    assert EnclavePolicy.from_bytes(seeded.to_bytes()) == seeded
    assert exact.sha256 != seeded.sha256


@pytest.mark.parametrize("seed", [b"null", b"-1", b'"7"', b"true", b"9223372036854775808", b"7.0"])
def test_a_seed_that_is_no_seed_is_refused(seed: bytes) -> None:
    data = EnclavePolicy(role="aggregator", test_noise_seed=7).to_bytes().replace(b":7}", b":" + seed + b"}")
    with pytest.raises(ConfigurationError):
        EnclavePolicy.from_bytes(data)

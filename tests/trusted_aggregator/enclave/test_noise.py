from __future__ import annotations

import numpy as np

from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator.enclave.core import noise_of


def drawn(policy: EnclavePolicy, round: int) -> list[int]:
    return noise_of(policy)(round).sample(30.0, 200).tolist()


def test_noise_of_a_seed_repeats_per_round_and_differs_between_rounds_and_seeds() -> None:
    seven, eight = (EnclavePolicy(role="aggregator", test_noise_seed=seed) for seed in (7, 8))
    assert drawn(seven, 0) == drawn(seven, 0)
    assert len({tuple(drawn(policy, round)) for policy in (seven, eight) for round in (0, 1)}) == 4


def test_noise_without_a_seed_never_repeats() -> None:
    exact = EnclavePolicy(role="aggregator")
    assert drawn(exact, 0) != drawn(exact, 0)


def test_noise_of_a_seed_has_the_declared_spread() -> None:
    """20,000 draws: their standard deviation is within 5 % of 30: ten of its standard errors, false alarm < 1e-20."""
    sample = noise_of(EnclavePolicy(role="aggregator", test_noise_seed=3))(1).sample(30.0, 20_000)
    assert abs(float(np.std(sample)) / 30.0 - 1.0) < 0.05

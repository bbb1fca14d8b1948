"""Noise in shares: its variance, its range on the ring, and which mistakes the tests of it would find."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.dense import shares
from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.registry import algorithm_for
from odp.crypto.secure_aggregation.session import Configuration
from odp.errors import ConfigurationError, Refusal
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms import DiscreteGaussian
from odp.privacy.mechanisms.discrete_gaussian import OperatingSystemNoise, largest

GRID = Grid.chosen(size=4000, clip=1.0, noise_std=2.0, maximum=40, sharers=25)


class Constant:
    """A source whose every byte is the same: the most extreme numbers that can be drawn."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def random_bytes(self, count: int) -> bytes:
        return bytes([self._byte]) * count


def variance_is_as_charged(total: np.ndarray, grid: Grid) -> bool:
    """Whether the mean square is at least that of the charge: a false alarm has a probability of 1e-6 at most.

    Of n independent numbers of (nearly) normal law, n times the mean square over the variance is chi-square with n
    degrees of freedom: by its normal approximation, 4.75 deviations of sqrt(2 / n).
    """
    n = len(total)
    charged = (grid.noise_std / grid.step) ** 2
    return bool(np.square(total.astype(np.float64)).mean() / charged > 1.0 - 4.75 * math.sqrt(2.0 / n))


def summed(grid: Grid, sharers: int, seed: int) -> np.ndarray:
    source = SeededNoise(seed)
    return sum(shares.share_of(grid, source) for _ in range(sharers))


def test_the_shares_of_the_fewest_honest_devices_have_the_variance_that_is_charged() -> None:
    total = summed(GRID, GRID.sharers, 1)
    assert variance_is_as_charged(total, GRID)
    # And no more: of 4,000 numbers, the same margin above (false alarm 1e-6).
    ratio = np.square(total.astype(np.float64)).mean() / (GRID.noise_std / GRID.step) ** 2
    assert ratio < 1.0 + 4.75 * math.sqrt(2.0 / len(total)) + 0.01


def test_more_devices_only_add_noise() -> None:
    few, many = (np.square(summed(GRID, n, 2).astype(np.float64)).mean() for n in (GRID.sharers, GRID.maximum))
    assert many / few == pytest.approx(GRID.maximum / GRID.sharers, rel=0.2)


@pytest.mark.parametrize("bug", ["share of half the variance", "share for all devices", "one share missing in five"])
def test_the_variance_test_finds_seeded_bugs(bug: str) -> None:
    source, std, sharers = SeededNoise(3), GRID.share_std, GRID.sharers
    match bug:
        case "share of half the variance":
            std /= math.sqrt(2.0)
        case "share for all devices":  # as if corrupt and dropped devices added theirs
            std *= math.sqrt(GRID.sharers / GRID.maximum)
        case _:
            sharers -= GRID.sharers // 5
    wrong = DiscreteGaussian(std)
    assert not variance_is_as_charged(sum(wrong.draw(GRID.size, source) for _ in range(sharers)), GRID)


def test_the_sum_has_the_discrete_gaussians_law_by_chi_square() -> None:
    """Shares of 4 steps, the narrowest. 40 cells; false alarm 1e-6 by the normal approximation of chi-square."""
    grid = Grid(size=100_000, clip=1.0, bits=11, noise_std=64 / 2048, maximum=300, sharers=256)
    assert grid.share_std == 4.0
    total, std = summed(grid, grid.sharers, 4), 64.0
    numbers = np.arange(-1000, 1001)
    law = np.exp(-(numbers**2) / (2.0 * std * std))
    law /= law.sum()
    edges = np.arange(-160, 161, 8)
    observed = np.histogram(total, edges)[0]
    expected = len(total) * np.add.reduceat(law[np.searchsorted(numbers, edges[0]) :], edges[:-1] - edges[0])
    expected[-1] = len(total) * law[(numbers >= edges[-2]) & (numbers <= edges[-1])].sum()
    statistic = float((np.square(observed - expected) / expected).sum())
    cells = len(observed)
    assert statistic < cells + 5.5 * math.sqrt(2 * cells) + 10


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_no_sum_of_noisy_vectors_wraps_around_whatever_is_drawn(byte: int) -> None:
    sign = 1 if byte else -1
    payload = np.zeros(GRID.size, dtype="<i4")
    payload[0] = sign * GRID.units
    noisy = payload + shares.share_of(GRID, Constant(byte))
    # The outermost numbers of the table have a probability below 2^-128, and are never drawn on one side.
    assert 12.0 * GRID.share_std < sign * noisy[0] - GRID.units <= largest(GRID.share_std)
    assert GRID.bound == GRID.units + largest(GRID.share_std)
    noisy[0] = sign * GRID.bound
    total = (noisy.astype(np.int64) * GRID.maximum).view(np.uint64).astype(np.uint32)  # modulo 2^32
    np.testing.assert_array_equal(shares.signed(total), GRID.maximum * noisy)
    shares.ring_of(GRID).encode(noisy)  # raises where a number has no place on the ring


@given(
    size=st.integers(1, 10**6), epsilon=st.floats(0.1, 10.0), minimum=st.integers(5, 5000), more=st.integers(1, 50),
    corrupt=st.sampled_from([0.0, 0.1, 0.3]),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_every_grid_that_is_chosen_has_room_on_the_ring_and_shares_of_four_steps(
    size: int, epsilon: float, minimum: int, more: int, corrupt: float
) -> None:
    sharers = max(1, minimum - math.floor(corrupt * minimum))
    try:
        grid = Grid.chosen(size=size, clip=1.0, noise_std=5.0 / epsilon, maximum=minimum * more, sharers=sharers)
    except ConfigurationError:
        return  # refused in words; nothing wraps
    assert grid.maximum * grid.bound < 2**31
    assert grid.share_std >= 4.0
    assert shares.ring_of(grid).bound == grid.bound


def test_a_vector_beyond_its_bound_is_not_sent() -> None:
    payload = np.zeros(GRID.size, dtype="<i4")
    payload[:2] = GRID.units
    query = DenseQuery("films", GRID)
    assert query.refusals([payload.tobytes()]) == [Refusal.OUT_OF_BOUNDS]
    payload[:2] = -(2**31)
    assert query.refusals([payload.tobytes(), bytes(4)]) == [Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED]


def test_no_two_shares_are_the_same() -> None:
    source = OperatingSystemNoise()
    assert not np.array_equal(shares.share_of(GRID, source), shares.share_of(GRID, source))


def test_tasks_of_other_modes_draw_no_shares() -> None:
    plain = Grid.chosen(size=10, clip=1.0, noise_std=2.0, maximum=40)
    for call in (
        lambda: shares.ring_of(plain),
        lambda: shares.share_of(plain, SeededNoise(1)),
    ):
        with pytest.raises(ConfigurationError, match="aggregation='secagg\\+'"):
            call()


def test_a_simulations_noise_has_the_variance_of_all_shares() -> None:
    """Drawn in far fewer numbers; 4,000 of them, margin 4.9 deviations (false alarm 1e-6)."""
    for sharers in (1, GRID.sharers, 3000):
        drawn = shares.sum_of_shares(GRID, SeededNoise(5), sharers=sharers).astype(np.float64)
        ratio = np.square(drawn).mean() / (sharers * GRID.share_std**2)
        assert abs(ratio - 1.0) < 4.9 * math.sqrt(2.0 / len(drawn))


def test_host_and_device_make_the_same_session_from_the_task() -> None:
    task = odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=24)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=20, goal=40, aggregation="secagg+", threat="semi-honest"),
    )
    definition = task.definition()
    query = algorithm_for(definition).query(0)
    offered = {
        "query": query, "task_sha256": bytes(32), "round": 0, "model_sha256": b"m" * 32, "attempt": 1,
    }  # fmt: skip
    configuration = Configuration.open(shares.secagg_config(definition, **offered))
    assert (configuration.minimum, configuration.ring.maximum, configuration.length) == (20, 40, 24)
    assert configuration.ring.bound == query.grid.bound
    assert configuration.threat.adversary.value == "semi_honest"
    assert len(shares.draw_share(definition, query, SeededNoise(1))) == 24
    definition.cohort.Clear()
    with pytest.raises(ConfigurationError, match="'hours' to have aggregation"):
        shares.secagg_config(definition, **offered)

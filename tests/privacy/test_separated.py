"""Vectors by direction and length: unbiased products, exact errors, degenerate vectors, messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP
from odp.privacy.mechanisms.separated import SeparatedVector

LENGTH = ScalarDP(asked=4.0, high=2.0, clip=True)


class HalfCircle:
    """PrivUnit2 in the plane with a cap of half the circle: angles in closed form."""

    dimension = 2
    epsilon = 1.5

    @property
    def scale(self) -> float:
        p = 1 / (1 + math.exp(-self.epsilon))
        return math.pi / 2 / (2 * p - 1)  # the mean cosine over half a circle is 2 / pi

    def randomize(self, units: np.ndarray, *, source: RandomSource) -> np.ndarray:
        n = len(units)
        zero = ~units.any(axis=1)
        angle = np.where(zero, 2 * math.pi * source.uniforms(n), np.arctan2(units[:, 1], units[:, 0]))
        away = source.coins(round(2**64 / (1 + math.exp(self.epsilon))), n)
        angle += math.pi * (source.uniforms(n) - 0.5) + math.pi * away
        return self.scale * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def encode(self, answer: np.ndarray) -> bytes:
        return np.asarray(answer, dtype="<f4").tobytes()

    def decode(self, data: bytes) -> np.ndarray:
        if len(data) != 8:
            raise DataError(f"Expected 8 bytes (got {len(data)})")
        return np.frombuffer(data, dtype="<f4").astype(np.float64)


@pytest.fixture
def mechanism() -> SeparatedVector:
    return SeparatedVector(direction=HalfCircle(), length=LENGTH)


def test_the_cost_is_that_of_both_answers(mechanism: SeparatedVector) -> None:
    assert mechanism.epsilon == 1.5 + LENGTH.epsilon
    assert mechanism.epsilon > 5.49


@pytest.mark.parametrize("vector", [(0.6, -0.3), (0.0, 2.0), (1e-200, 1e-200)])
def test_reports_are_unbiased_with_the_stated_error(mechanism: SeparatedVector, vector: tuple[float, float]) -> None:
    """Each coordinate and the squared error within 4.9 standard errors: false alarms 1e-6 each."""
    n, given = 100_000, np.array(vector)
    reports = mechanism.randomize(np.tile(given, (n, 1)), source=RandomSource(SeededNoise(7)))
    found = mechanism.decode(reports)
    errors = np.abs(found.mean(axis=0) - given)
    assert (errors < 4.9 * found.std(axis=0) / math.sqrt(n)).all()
    squares = ((found - given) ** 2).sum(axis=1)
    expected = mechanism.error(np.array([np.hypot(*vector)]))[0]
    assert abs(squares.mean() - expected) < 4.9 * squares.std() / math.sqrt(n)
    assert np.hypot(*found.T).max() <= mechanism.longest * (1 + 1e-12)


def test_degenerate_vectors_are_answered_like_others(mechanism: SeparatedVector) -> None:
    """Lengths of a sharp mechanism are the truth; directions of zero vectors have no mean (4.9 standard errors)."""
    sharp = SeparatedVector(direction=HalfCircle(), length=ScalarDP(asked=32.0, high=2.0, levels=1, clip=True))
    n = 20_000
    rows = [(0.0, 0.0), (math.nan, 1.0), (math.inf, 1.0), (20.0, 0.0), (1e308, 1e308), (2.0, 0.0)]
    reports = sharp.randomize(np.repeat(rows, n, axis=0), source=RandomSource(SeededNoise(8)))
    lengths = reports.lengths.reshape(6, n)
    assert [set(row.tolist()) for row in lengths] == [{0}, {0}, {0}, {1}, {1}, {1}]
    directions = reports.directions.reshape(6, n, 2).mean(axis=1)
    bound = 4.9 * sharp.direction.scale / math.sqrt(2 * n)
    assert (np.abs(directions[:3]) < bound).all()
    np.testing.assert_allclose(directions[3:], [(1, 0), (math.sqrt(0.5), math.sqrt(0.5)), (1, 0)], atol=2 * bound)
    cut = mechanism.error(np.array([5.0]))[0] - mechanism.error(np.array([2.0]))[0]
    assert cut == pytest.approx(9.0)


def test_reports_are_sent_in_messages_of_one_size(mechanism: SeparatedVector) -> None:
    vectors = np.array([(0.5, 0.5), (0.0, 0.0), (100.0, -3.0)])
    reports = mechanism.randomize(vectors, source=RandomSource(SeededNoise(9)))
    messages = mechanism.to_bytes(reports)
    assert {len(message) for message in messages} == {9}
    found = mechanism.from_bytes(messages)
    np.testing.assert_array_equal(found.lengths, reports.lengths)
    np.testing.assert_allclose(found.directions, reports.directions, rtol=1e-6)
    for bad in (b"\x00", b"\xff" + bytes(8), bytes(8)):
        with pytest.raises(DataError):
            mechanism.from_bytes([messages[0], bad])


def test_mechanisms_and_vectors_that_do_not_fit_are_refused(mechanism: SeparatedVector) -> None:
    with pytest.raises(ConfigurationError, match="clip=True"):
        SeparatedVector(direction=HalfCircle(), length=ScalarDP(asked=1.0, high=1.0))
    with pytest.raises(ConfigurationError, match="lengths from 0 on"):
        SeparatedVector(direction=HalfCircle(), length=GridScalar(asked=1.0, grid=(0.5, 1.0), clip=True))
    SeparatedVector(direction=HalfCircle(), length=ScalarRelDP(asked=1.0, high=1.0, ratio=2.0, levels=3, clip=True))
    with pytest.raises(ConfigurationError, match=r"vectors \[n, 2\]"):
        mechanism.randomize(np.zeros((4, 3)), source=RandomSource(SeededNoise(1)))

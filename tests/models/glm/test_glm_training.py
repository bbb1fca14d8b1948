"""Training of generalised linear models: on a device and of many users at once, against a plain reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from odp.datasets.examples import UsersExamples
from odp.errors import DataError
from odp.models.glm import Glm, population
from odp.models.glm.training import difference
from odp.models.local_training import LocalTraining

_HELD = [7, 0, 1, 23, 10]


def _plain(
    shape: Glm, start: np.ndarray, x: np.ndarray, y: np.ndarray, training: LocalTraining, seed: int, round: int
) -> np.ndarray:
    """Gradient descent in float64, example by example."""
    w, b = (part.astype(np.float64) for part in shape.split(start))
    w0, b0 = w.copy(), b.copy()
    for batch in training.batches(len(y), seed=seed, round=round):
        slope, slope_b = np.zeros_like(w), np.zeros_like(b)
        for e in batch:
            z = w @ x[e].astype(np.float64) + b
            wanted = np.zeros(len(z))
            if shape.family.value == "multinomial":  # type: ignore[union-attr]
                mean = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                wanted[int(y[e])] = 1.0
            else:
                mean = {"linear": z, "logistic": 1 / (1 + np.exp(-z)), "poisson": np.exp(z)}[shape.family.value]  # type: ignore[union-attr]
                wanted[0] = y[e]
            slope += np.outer(mean - wanted, x[e]) / len(batch)
            slope_b += (mean - wanted) / len(batch)
        slope += training.proximal * (w - w0)
        slope_b += training.proximal * (b - b0)
        w, b = w - training.rate * slope, b - training.rate * slope_b
    return np.concatenate([(w - w0).ravel(), b - b0])


def _examples(shape: Glm, *, bytes_only: bool = False) -> UsersExamples:
    generator = np.random.default_rng(5)
    features = generator.integers(0, 256, (60, shape.features)).astype(np.uint8)
    most = {"linear": 5, "logistic": 2, "multinomial": shape.classes, "poisson": 4}[shape.family.value]  # type: ignore[union-attr]
    return UsersExamples(
        features if bytes_only else (features / 255).astype(np.float32),
        generator.integers(0, most, 60).astype(np.float32),
        generator.integers(0, 60, sum(_HELD)),
        np.cumsum([0, *_HELD]),
        scale=1 / 255 if bytes_only else 1.0,
    )


_SHAPES = [
    Glm("linear", 3), Glm("logistic", 16), Glm("multinomial", 33, 7), Glm("multinomial", 64, 11),
    Glm("poisson", 5),
]  # fmt: skip
_TRAININGS = [
    LocalTraining(rate=0.1, batch=10),
    LocalTraining(rate=0.05, batch=3, epochs=3, proximal=0.5),
    LocalTraining(rate=0.05, batch=12, epochs=2, most_examples=8),
    LocalTraining(rate=0.1, batch=6, shuffle=False),
]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("bytes_only", [False, True], ids=["float32", "bytes"])
@pytest.mark.parametrize("shape", _SHAPES, ids=lambda shape: f"{shape.family.value}-{shape.features}")
def test_every_user_trains_as_the_plain_reference(
    shape: Glm, bytes_only: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        pytest.importorskip("numba")
    monkeypatch.setattr(population, "_compiled", lambda: compiled)
    examples = _examples(shape, bytes_only=bytes_only)
    start = (np.random.default_rng(2).normal(size=shape.size) * 0.1).astype(np.float32)
    seeds = np.array([3, 2**64 - 1, 5, 0, 9], dtype=np.uint64)
    for training in _TRAININGS:
        moved = population.differences(shape, start, examples, training, seeds=seeds, round=4)
        for user, seed in enumerate(seeds):
            expected = _plain(shape, start, *examples.of(user), training, int(seed), 4)
            np.testing.assert_allclose(moved[user], expected, rtol=0, atol=1e-6)
        assert not moved[1].any()  # a user without examples
        assert moved[2].any()  # a user with one


def test_users_in_blocks_train_as_all_at_once() -> None:
    shape = _SHAPES[2]
    examples, training = _examples(shape), _TRAININGS[1]
    start, seeds = np.zeros(shape.size, dtype=np.float32), np.arange(5, dtype=np.uint64)
    whole = population.differences(shape, start, examples, training, seeds=seeds, round=0)
    room = np.empty((2, shape.size), dtype=np.float32)
    part = population.differences(
        shape, start, examples, training, seeds=seeds[3:], round=0, users=slice(3, 5), out=room
    )
    assert part is room
    np.testing.assert_array_equal(part, whole[3:])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
def test_training_that_diverges_moves_nothing(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled:
        pytest.importorskip("numba")
    monkeypatch.setattr(population, "_compiled", lambda: compiled)
    shape = Glm("linear", 3)
    examples = _examples(shape)
    wild = dataclasses.replace(examples, features=examples.features * np.float32(1e20))
    moved = population.differences(
        shape, np.zeros(shape.size, dtype=np.float32), wild, _TRAININGS[0], seeds=np.arange(5, dtype=np.uint64), round=0
    )
    assert np.isfinite(moved).all()
    assert not moved[3].any()


def test_training_does_not_change_its_start() -> None:
    shape = _SHAPES[2]
    start = np.ones(shape.size, dtype=np.float32)
    difference(shape, start, *_examples(shape).of(0), _TRAININGS[0], seed=1, round=0)
    assert (start == 1).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": np.zeros((60, 3))},
        {"targets": np.zeros(59, dtype=np.float32)},
        {"rows": np.full(sum(_HELD), 60)},
        {"offsets": np.array([0, 5])},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arrays_that_do_not_fit_are_refused_by_name(wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        dataclasses.replace(_examples(_SHAPES[0]), **wrong)  # type: ignore[arg-type]


def test_seeds_and_features_have_to_fit_the_examples() -> None:
    start, examples = np.zeros(4, dtype=np.float32), _examples(_SHAPES[0])
    with pytest.raises(DataError, match="one seed per user"):
        population.differences(_SHAPES[0], start, examples, _TRAININGS[0], seeds=np.zeros(1, dtype=np.uint64), round=0)
    with pytest.raises(DataError, match="16 features"):
        population.differences(_SHAPES[1], start, examples, _TRAININGS[0], seeds=np.zeros(5, dtype=np.uint64), round=0)

"""Users that train side by side in numpy find what each finds alone."""

from __future__ import annotations

import numpy as np
import pytest

from odp.datasets.examples import UsersExamples
from odp.models.glm import Glm, stacked
from odp.models.glm.training import difference
from odp.models.local_training import LocalTraining

_HELD = [12, 0, 1, 23, 10, 10, 3]


def _examples(shape: Glm) -> UsersExamples:
    generator = np.random.default_rng(5)
    return UsersExamples(
        generator.normal(size=(60, shape.features)).astype(np.float32),
        generator.integers(0, max(2, shape.classes), 60).astype(np.float32),
        generator.integers(0, 60, sum(_HELD)),
        np.cumsum([0, *_HELD]),
    )


@pytest.mark.parametrize("numbers", [1, 100, 2**17], ids=["alone", "some", "all"])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
@pytest.mark.parametrize("shape", [Glm("logistic", 5), Glm("multinomial", 16, 4)], ids=["logistic", "multinomial"])
def test_users_side_by_side_train_as_alone(
    shape: Glm, proximal: float, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "_NUMBERS", numbers)
    examples, training = _examples(shape), LocalTraining(rate=0.1, batch=4, epochs=2, proximal=proximal)
    start = np.random.default_rng(2).normal(size=shape.size).astype(np.float32)
    seeds, first = np.arange(len(_HELD) - 1, dtype=np.uint64), 1
    out = np.full((len(seeds), shape.size), np.nan, dtype=np.float32)
    stacked.differences(shape, start, examples, training, seeds=seeds, round=3, first=first, out=out)
    for place, seed in enumerate(seeds):
        expected = difference(shape, start, *examples.of(first + place), training, seed=int(seed), round=3)
        np.testing.assert_allclose(out[place], expected, rtol=0, atol=2e-6)
    assert not out[0].any()  # a user without examples
    assert out[1:].any(axis=1).all()


def test_no_users_are_no_work() -> None:
    shape = Glm("logistic", 5)
    held = np.full((2, shape.size), 7.0, dtype=np.float32)
    stacked.differences(
        shape, np.zeros(shape.size, dtype=np.float32), _examples(shape), LocalTraining(rate=0.1),
        seeds=np.zeros(0, dtype=np.uint64), round=0, first=2, out=held[1:1],
    )  # fmt: skip
    assert (held == 7.0).all()

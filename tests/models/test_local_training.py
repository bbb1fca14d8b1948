"""The order in which a device takes its examples."""

from __future__ import annotations

import numpy as np
import pytest

from odp.errors import ConfigurationError
from odp.models.local_training import LocalTraining


def test_an_epoch_takes_every_example_once_in_batches() -> None:
    training = LocalTraining(rate=0.1, batch=4, epochs=2)
    batches = list(training.batches(10, seed=7, round=3))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert not np.array_equal(np.concatenate(batches[:3]), np.concatenate(batches[3:]))


def test_the_order_depends_on_seed_and_round() -> None:
    training = LocalTraining(rate=0.1, batch=100)
    orders = {
        tuple(next(training.batches(50, seed=seed, round=round))) for seed, round in ((1, 0), (1, 1), (2, 0), (1, 0))
    }
    assert len(orders) == 3


def test_without_shuffling_the_examples_stay_as_they_lie() -> None:
    training = LocalTraining(rate=0.1, batch=3, shuffle=False, most_examples=5)
    assert [batch.tolist() for batch in training.batches(9, seed=1, round=0)] == [[0, 1, 2], [3, 4]]


def test_a_limited_epoch_draws_each_example_about_equally_often() -> None:
    training = LocalTraining(rate=0.1, batch=3, most_examples=3)
    drawn = np.concatenate([next(training.batches(10, seed=seed, round=0)) for seed in range(4000)])
    counts = np.bincount(drawn, minlength=10)
    assert np.abs(counts - 1200).max() < 6 * np.sqrt(1200)


def test_no_examples_make_no_steps() -> None:
    assert list(LocalTraining(rate=0.1).batches(0, seed=1, round=0)) == []


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.0}, {"rate": float("nan")}, {"batch": 0}, {"epochs": 0}, {"proximal": -1.0}, {"epoch": 1}]
)
def test_a_number_out_of_range_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        LocalTraining(**{"rate": 0.1, **wrong})  # type: ignore[arg-type]

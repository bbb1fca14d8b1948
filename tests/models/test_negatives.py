"""Items that a device draws beside its own: of class 0, none of its own, uniform, the same for a seed and a round."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from odp.models.rated_items import with_negatives

ITEMS = 40


def examples_of(own: list[int], classes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 3] whose last number is the item, and targets."""
    features = np.column_stack((np.full(len(own), 0.5), np.arange(len(own)), np.array(own, dtype=np.float64)))
    return features.astype(np.float32).reshape(-1, 3), np.array(classes, dtype=np.float32)


@given(
    own=st.lists(st.integers(0, ITEMS - 1), max_size=60),
    zeros=st.integers(0, 5),
    each=st.integers(0, 4),
    seed=st.integers(0, 2**64 - 1),
    round=st.integers(0, 10_000),
)
def test_further_examples_are_of_other_items_and_the_same_person(
    own: list[int], zeros: int, each: int, seed: int, round: int
) -> None:
    features, targets = examples_of(own, [0 if place < zeros else 1 for place in range(len(own))])
    both, classes = with_negatives(features, targets, items=ITEMS, per_example=each, seed=seed, round=round)
    count = int(targets.sum())
    np.testing.assert_array_equal(both[: len(own)], features)
    np.testing.assert_array_equal(classes[: len(own)], targets)
    further = both[len(own) :]
    assert len(further) == len(classes) - len(own) == (count * each if len(set(own)) < ITEMS else 0)
    assert not classes[len(own) :].any()
    assert not set(further[:, -1].astype(int)) & set(own)
    assert ((further[:, -1] >= 0) & (further[:, -1] < ITEMS)).all()
    if len(further):
        np.testing.assert_array_equal(further[:, :-1], np.repeat(features[targets == 1][:, :-1], each, axis=0))
    again, _ = with_negatives(features, targets, items=ITEMS, per_example=each, seed=seed, round=round)
    np.testing.assert_array_equal(both, again)


def test_draws_are_uniform_over_the_other_items() -> None:
    """Chi-squared with 36 degrees of freedom: a right sampler fails once in a million choices of the seeds, and these
    are fixed."""
    own = [0, 7, 8]
    features, targets = examples_of(own, [1, 1, 1])
    counts = np.zeros(ITEMS)
    for seed in range(40):
        drawn, _ = with_negatives(features, targets, items=ITEMS, per_example=64, seed=seed, round=seed % 3)
        counts += np.bincount(drawn[len(own) :, -1].astype(int), minlength=ITEMS)
    others = np.delete(counts, own)
    expected = 40 * 3 * 64 / len(others)
    assert ((others - expected) ** 2 / expected).sum() < 88.5
    assert not counts[own].any()


def test_seeds_and_rounds_draw_other_items() -> None:
    features, targets = examples_of([1], [1])
    drawn = {
        tuple(with_negatives(features, targets, items=ITEMS, per_example=8, seed=seed, round=round)[0][1:, -1])
        for seed in range(5)
        for round in range(5)
    }
    assert len(drawn) == 25

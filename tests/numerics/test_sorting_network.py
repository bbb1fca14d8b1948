"""Sorting and compaction of fixed access pattern, against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from hypothesis import given, settings, strategies as st

from odp.numerics import sorting_network as network


@settings(max_examples=60, deadline=None)
@given(power=st.integers(1, 10), spread=st.sampled_from([1, 2, 50, 2**64 - 1]), seed=st.integers(0, 2**32))
def test_it_sorts_any_words(power: int, spread: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, spread, 2**power, dtype=np.uint64, endpoint=True)
    expected = np.sort(words)
    network.sort(words)
    np.testing.assert_array_equal(words, expected)


def test_all_eight_words_of_zeros_and_ones_are_sorted() -> None:
    # By the 0-1 principle, a network that sorts these sorts any eight words.
    for number in range(2**8):
        words = np.array([number >> bit & 1 for bit in range(8)], dtype=np.uint64)
        network.sort(words)
        assert bool((words[1:] >= words[:-1]).all())


@pytest.mark.parametrize("length", [0, 1, 3, 6, 1000])
def test_another_length_than_a_power_of_two_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"power of two of words, got {length}"):
        network.sort(np.zeros(length, dtype=np.uint64))


@settings(max_examples=100, deadline=None)
@given(kept=st.lists(st.booleans(), min_size=1, max_size=200), seed=st.integers(0, 2**32))
def test_compaction_keeps_the_order_and_ends_in_zeros(kept: list[bool], seed: int) -> None:
    columns = np.random.default_rng(seed).integers(-(2**60), 2**60, (2, len(kept)))
    expected = columns[:, kept]
    network.compact(np.array(kept, dtype=np.int64), columns)
    np.testing.assert_array_equal(columns[:, : expected.shape[1]], expected)
    assert not columns[:, expected.shape[1] :].any()


def _trace_of_sort(words: np.ndarray) -> list[object]:
    with tracing(network) as notes:
        network.sort(traced(words.astype(np.uint64)))
    return notes


def test_sorting_does_the_same_to_the_same_places_whatever_it_sorts() -> None:
    ascending = np.arange(256)
    notes = _trace_of_sort(ascending)
    assert len(notes) > 100
    for other in (ascending[::-1], np.zeros(256), np.random.default_rng(1).integers(0, 9, 256)):
        assert _trace_of_sort(other) == notes


def test_compaction_does_the_same_to_the_same_places_whatever_it_keeps() -> None:
    def trace(kept: np.ndarray) -> list[object]:
        with tracing(network) as notes:
            network.compact(traced(kept.astype(np.int64)), traced(np.ones((2, 200), dtype=np.int64)))
        return notes

    notes = trace(np.zeros(200))
    assert len(notes) > 30
    for kept in (np.ones(200), np.arange(200) % 2, np.arange(200) > 150):
        assert trace(kept) == notes

"""Texts as columns of numbers: what is alike is near, nothing depends on ratings, and odd texts do no harm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import text_columns
from odp.datasets.item_features import _parts
from odp.errors import ConfigurationError, DataError

TITLES = (
    "Star Trek: The Motion Picture (1979)",
    "Star Trek: The Wrath of Khan (1982)",
    "Police Academy (1984)",
    "Police Academy 2: Their First Assignment (1985)",
    "Amélie",
    "",
)


def nearness(columns: np.ndarray, one: int, other: int) -> float:
    norms = np.linalg.norm(columns[one]) * np.linalg.norm(columns[other])
    return float(columns[one] @ columns[other] / norms) if norms else 0.0


def test_titles_that_share_words_are_near_and_years_tell_nothing() -> None:
    found = text_columns(TITLES)
    assert found.dtype == np.float32
    assert nearness(found, 0, 1) > 0.8
    assert nearness(found, 2, 3) > 0.8
    assert abs(nearness(found, 0, 2)) < 0.2
    assert not found[4:].any(), "a text that shares nothing, and an empty one, are 0"
    without_years = [title.rsplit(" (", 1)[0] for title in TITLES]
    np.testing.assert_array_equal(found, text_columns(without_years))


def test_products_of_rows_are_those_of_the_whole_matrix_where_no_direction_is_cut() -> None:
    """Two texts of the same words have the same row of norm 1: nothing is lost in the decomposition."""
    found = text_columns(["red car", "red car", "blue boat", "blue boat"], columns=8)
    np.testing.assert_allclose(found @ found.T, np.kron(np.eye(2), np.ones((2, 2))), atol=1e-6)


def test_the_hash_of_a_word_stays_what_it_is() -> None:
    """Else the features of a task could not be made again by a later version."""
    from odp.datasets.item_features import _column

    assert [_column(0, "star"), _column(1, "star"), _column(0, "\ud800")] == [232907, 101664, 200122]


@settings(max_examples=10, deadline=None)
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=12), columns=st.integers(1, 6))
def test_any_texts_give_finite_rows_of_norm_one_at_most(texts: list[str], columns: int) -> None:
    found = text_columns(texts, columns=columns)
    assert found.shape[0] == len(texts)
    assert found.shape[1] <= columns
    assert np.isfinite(found).all()
    assert (np.linalg.norm(found, axis=1) < 1 + 1e-5).all()


def test_texts_without_anything_in_common_have_no_columns() -> None:
    assert text_columns(["one", "two", ""]).shape == (3, 0)
    assert text_columns(["same", "same"]).shape == (2, 0), "what all have tells nothing"


def test_spaces_and_letters_that_fold_into_many_cost_no_more_than_their_number() -> None:
    """A pattern that tries each of 20,000 spaces takes a second per text, and this test a minute."""
    spaces = " " * 19_990
    assert text_columns([f"war{spaces}(1999"] * 60).shape == (60, 0)
    assert list(_parts("war" + spaces[:900] + "(1999) \n")) == list(_parts("war"))
    assert sum(1 for _ in _parts("\ufdfa" * 20_000)) < 5 * 20_000


def test_what_is_no_text_and_a_width_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="got a float for item 1"):
        text_columns(["a", 1.0])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="columns=0"):
        text_columns(["a"], columns=0)

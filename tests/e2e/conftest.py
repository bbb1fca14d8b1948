"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from odp.datasets import Ratings, synthetic_movielens


@pytest.fixture
def ratings() -> Ratings:
    """80 users, 40 items."""
    return synthetic_movielens(n_users=80, n_items=40, ratings_per_user=14, seed=5)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened

"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from e2e.world import small_ratings

from odp.datasets import Ratings


@pytest.fixture
def ratings() -> Ratings:
    return small_ratings()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened

"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

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


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.proof)])
def points_of(request: pytest.FixtureRequest) -> Callable[[list[str]], list[str]]:
    """Selects the points of a list at which a test kills a program: the middle one, and all of them in `make proof`.

    Each kill starts a program and its enclave. What a death does to state is tested at every step without processes:
    ``trusted_aggregator/enclave/test_crashes.py`` for enclaves, ``modes/*/test_restarts.py`` for sessions,
    ``modes/masked/test_masked_rounds.py`` and ``modes/tree/test_tree.py`` for their rounds, ``conformance`` for
    storage, ``server/test_driver.py``, ``device_runtime/round/test_participation.py``. So a test of one program whose
    deaths are all among these is of `make proof` alone: CI kills each program and each kind of storage once, in
    ``test_kill.py``, ``test_helper_kill.py``, ``test_soak.py``, ``test_one_database.py`` and ``test_blobs.py``.
    """
    return (lambda points: points[(len(points) - 1) // 2 :][:1]) if request.param == "some" else list

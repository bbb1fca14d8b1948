"""Noise sources: the operating system's, and the reproducible one of the simulator."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError
from odp.evaluation.noise import NoNoise, SeededNoise
from odp.privacy.mechanisms import OperatingSystemNoise


def test_the_source_of_releases_cannot_be_seeded():
    assert not inspect.signature(OperatingSystemNoise).parameters
    assert set(inspect.signature(OperatingSystemNoise.random_bytes).parameters) == {"self", "count"}


def test_the_operating_system_gives_fresh_bytes_of_the_asked_length():
    source = OperatingSystemNoise()
    assert len(source.random_bytes(32)) == 32
    assert source.random_bytes(32) != source.random_bytes(32)
    assert source.random_bytes(0) == b""
    with pytest.raises(ConfigurationError, match="count="):
        source.random_bytes(-1)


def test_seeded_noise_repeats_for_a_seed_and_differs_between_seeds():
    assert SeededNoise(3).random_bytes(64) == SeededNoise(3).random_bytes(64)
    assert SeededNoise(3).random_bytes(64) != SeededNoise(4).random_bytes(64)
    assert SeededNoise(-3).random_bytes(64) != SeededNoise(3).random_bytes(64)


@given(st.lists(st.tuples(st.integers(0, 70), st.booleans()), max_size=8))
def test_bytes_that_are_made_later_are_those_of_their_place(requests):
    """Whenever they are made, and whatever was asked for in between."""
    source, places = SeededNoise(5), []
    for count, later in requests:
        places.append(source.later(count) if later else functools.partial(bytes, source.random_bytes(count)))
    made = [place() for place in reversed(places)]
    assert b"".join(reversed(made)) == SeededNoise(5).random_bytes(sum(count for count, _ in requests))


def test_the_operating_system_makes_fresh_bytes_later():
    source = OperatingSystemNoise()
    one, two = source.later(32), source.later(32)
    assert len(one()) == 32
    assert one() != two()
    with pytest.raises(ConfigurationError, match="count="):
        source.later(-1)


def test_seeded_noise_does_not_depend_on_how_requests_are_cut():
    source = SeededNoise(5)
    parts = b"".join(source.random_bytes(count) for count in (1, 0, 15, 17, 31))
    assert parts == SeededNoise(5).random_bytes(64)


def test_seeded_noise_is_pinned_so_that_recorded_simulations_can_be_repeated():
    assert SeededNoise(0).random_bytes(8).hex() == "9105e0a6855fd2c0"


def test_no_noise_is_zero():
    noise = NoNoise().sample(1000.0, 5)
    assert noise.dtype == np.int64
    assert noise.tolist() == [0] * 5

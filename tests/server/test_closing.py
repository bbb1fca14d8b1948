"""When a round has waited long enough: a function of when contributions came, and of nothing else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from odp.transport.channel import SHORT_DEADLINE
from server.board import LATER, SOON
from server.rounds import QUIET_SECONDS, SETTLED_SECONDS, Arrivals


def at(*times: float) -> Arrivals:
    """One contribution at each time, in a round that was opened at 0."""
    arrivals = Arrivals(0, 0, 0.0)
    for number, time in enumerate(times, start=1):
        arrivals.record(number, now=time)
    return arrivals


def test_every_device_that_is_awake_asks_and_answers_within_the_least_time() -> None:
    assert LATER[1] + SHORT_DEADLINE <= QUIET_SECONDS
    assert SOON[1] < SETTLED_SECONDS


@pytest.mark.parametrize(
    ("before", "round_seconds", "seconds"),
    [
        (None, 1200, 90.0),
        (3, 1200, 90.0),  # one is missing that came the last time
        (2, 1200, 12.0),
        (1, 1200, 12.0),
        (None, 86_400, 4320.0),
        (2, 86_400, 864.0),
        (2, 60, 10.0),
    ],
)
def test_the_wait_is_a_share_of_the_rounds_time_and_shorter_where_the_same_have_come(
    before: int | None, round_seconds: float, seconds: float
) -> None:
    assert at(5.0, 6.0).quiet_at(before=before, round_seconds=round_seconds) == 6.0 + seconds


def test_devices_that_come_rarely_are_waited_for_three_times_as_long_as_the_longest_pause() -> None:
    assert at(0.0, 400.0, 500.0).quiet_at(before=None, round_seconds=1200) == 500.0 + 1200.0


def test_the_time_before_the_first_contribution_is_no_pause() -> None:
    assert at(5000.0).quiet_at(before=None, round_seconds=1200) == 5090.0


@given(st.lists(st.floats(0.0, 29.0), min_size=2, max_size=50), st.integers(0, 60), st.floats(1.0, 1e6))
def test_no_round_closes_between_devices_that_come_each_half_minute(
    pauses: list[float], before: int, round_seconds: float
) -> None:
    times = list(itertools.accumulate(pauses))
    for number, (one, following) in enumerate(itertools.pairwise(times), start=1):
        if number < before:
            assert at(*times[:number]).quiet_at(before=before, round_seconds=round_seconds) > following, one

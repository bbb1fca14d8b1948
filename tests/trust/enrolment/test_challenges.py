"""Challenges: free to make, answered once, and bounded."""

from __future__ import annotations

import sys

import pytest
from trust.enrolment.world import Clock

from odp.crypto.domains import CHALLENGE_BYTES
from odp.errors import Busy, EnrolmentError
from odp.trust.enrolment.issuer import VALID_SECONDS, Challenges


def test_challenges_that_nobody_answers_take_no_memory() -> None:
    challenges = Challenges(clock=Clock())
    made = {challenges.make() for _ in range(5_000)}
    assert len(made) == 5_000
    assert {len(challenge) for challenge in made} == {CHALLENGE_BYTES}
    assert not challenges._answered
    assert sys.getsizeof(challenges._order) < 1_000


def test_an_answered_challenge_counts_once_for_as_long_as_it_is_valid() -> None:
    clock = Clock()
    challenges = Challenges(clock=clock)
    challenge = challenges.make()
    challenges.check(challenge)
    challenges.spend(challenge)
    for _ in range(VALID_SECONDS):
        with pytest.raises(EnrolmentError):
            challenges.check(challenge)
        with pytest.raises(EnrolmentError):
            challenges.spend(challenge)
        clock.now += 1
    clock.now += 2
    challenges.spend(challenges.make())
    assert len(challenges._answered) == 1
    with pytest.raises(EnrolmentError, match="older"):
        challenges.check(challenge)


def test_of_two_calls_with_one_challenge_one_is_first() -> None:
    challenges = Challenges(clock=Clock())
    challenge = challenges.make()
    challenges.check(challenge)
    challenges.check(challenge)
    challenges.spend(challenge)
    with pytest.raises(EnrolmentError, match="answered before"):
        challenges.spend(challenge)


def test_beyond_the_limit_devices_are_told_when_to_come_back() -> None:
    clock = Clock()
    challenges = Challenges(clock=clock, most=3)
    for _ in range(3):
        challenges.spend(challenges.make())
    with pytest.raises(Busy):
        challenges.spend(challenges.make())
    clock.now += VALID_SECONDS + 2
    challenges.spend(challenges.make())


def test_no_other_bytes_and_no_other_processs_challenge_are_taken() -> None:
    clock = Clock()
    challenges, other = Challenges(clock=clock), Challenges(clock=clock)
    good = challenges.make()
    moved = good[:16] + (int.from_bytes(good[16:24], "big") + 1).to_bytes(8, "big") + good[24:]
    for wrong in (b"", bytes(CHALLENGE_BYTES), good[:-1], good + b"\x00", moved, other.make()):
        with pytest.raises(EnrolmentError, match="not from this run of the issuer"):
            challenges.check(wrong)
    challenges.check(good)

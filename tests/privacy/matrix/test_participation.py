"""Who may take part in a round of a stream, and that the record of it survives a restart."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.privacy.matrix import Participation, ParticipationRecord
from tests.privacy.matrix.patterns import patterns


def user(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def observed(record: ParticipationRecord) -> tuple[int, int | None]:
    """(the most rounds that any user was in, the least distance of two rounds of one user; None without any)."""
    entries = record._users.values()
    most = max((count for count, _, _ in entries), default=0)
    return most, min((least for _, _, least in entries if least), default=None)


def test_a_user_is_refused_one_round_before_the_separation_and_admitted_at_it():
    record = ParticipationRecord(Participation(rounds=100, most=3, separation=10))
    record.record(5, [user(1)])
    assert not record.admits(user(1), 14)
    assert record.admits(user(1), 15)
    with pytest.raises(PrivacyError, match="1 of 2 contributions to round 14"):
        record.record(14, [user(1), user(2)])
    assert record.admits(user(2), 14)  # nothing of a refused round is on record
    record.record(15, [user(1), user(2)])
    assert (*observed(record), len(record)) == (2, 10, 2)


def test_a_user_is_refused_after_its_last_round():
    record = ParticipationRecord(Participation(rounds=10, most=2, separation=1))
    for round in (0, 1):
        record.record(round, [user(1)])
    assert not record.admits(user(1), 9)
    with pytest.raises(PrivacyError, match="at most 2 times"):
        record.record(9, [user(1)])
    assert not record.admits(user(2), 10)
    assert not record.admits(user(2), -1)


@given(st.data())
@settings(max_examples=100)
def test_what_the_record_admits_are_the_patterns_that_the_sensitivity_is_over(data):
    rounds = data.draw(st.integers(1, 7))
    allowed = Participation(
        rounds=rounds, most=data.draw(st.integers(1, rounds)), separation=data.draw(st.integers(1, rounds))
    )
    wanted = data.draw(st.sets(st.integers(0, rounds - 1)))
    record, taken = ParticipationRecord(allowed), []
    for round in sorted(wanted):
        record = ParticipationRecord.from_bytes(allowed, record.to_bytes())
        if record.admits(user(0), round):
            record.record(round, [user(0)])
            taken.append(round)
    allowed_patterns = set(patterns(allowed))
    assert tuple(taken) in allowed_patterns
    assert (tuple(sorted(wanted)) in allowed_patterns) == (sorted(wanted) == taken)
    assert max(map(len, allowed_patterns)) == allowed.largest
    distances = [later - earlier for earlier, later in itertools.pairwise(taken)]
    assert observed(record)[1] == min(distances, default=None)


def test_a_record_of_another_stream_or_a_cut_one_is_refused():
    allowed = Participation(rounds=10, most=2, separation=3)
    record = ParticipationRecord(allowed)
    record.record(0, [user(number) for number in range(5)])
    data = record.to_bytes()
    assert len(data) == 24 + 5 * 44
    assert ParticipationRecord.from_bytes(allowed, data).to_bytes() == data
    for wrong in (data[:-1], b"", data + b"x"):
        with pytest.raises(StateError):
            ParticipationRecord.from_bytes(allowed, wrong)
    with pytest.raises(StateError):
        ParticipationRecord.from_bytes(Participation(rounds=10, most=2, separation=2), data)


def test_pseudonyms_that_are_no_pseudonyms_or_come_twice_are_refused():
    record = ParticipationRecord(Participation(rounds=10, most=2, separation=3))
    for wrong in ([b"short"], [user(1), user(1)], [user(1), b"x" * 33]):
        with pytest.raises(ConfigurationError):
            record.record(0, wrong)
    with pytest.raises(ConfigurationError, match="round=10"):
        record.record(10, [])
    record.record(0, [])


def test_a_participation_that_cannot_be_is_refused():
    for numbers in ((0, 1, 1), (5, 0, 1), (5, 1, 0), (5, 6, 1), (5, 1, 6)):
        with pytest.raises(ConfigurationError):
            Participation(rounds=numbers[0], most=numbers[1], separation=numbers[2])
    assert Participation(rounds=10, most=10, separation=4).largest == 3

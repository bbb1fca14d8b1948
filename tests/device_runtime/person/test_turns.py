"""A device comes back to a stream only when it is due, whatever the enclave would accept."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from device_runtime.person.ledger import Charged, TaskTerms
from device_runtime.person.limits import require_due
from odp.errors import PrivacyError
from odp.privacy.events import GaussianRelease, StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.privacy.matrix.sensitivity import Participation, ParticipationRecord

ROUNDS = 12


def terms_of(most: int, separation: int, *, task: bytes = bytes(32), streamed: bool = True) -> TaskTerms:
    stream = StreamRelease(
        name="update", sensitivity=1.0, noise_std=1.0, coordinates=ROUNDS, rounds=ROUNDS, most=most,
        separation=separation, matrix_sha256=bytes(32),
    )  # fmt: skip
    events = [(stream,), *((CoveredRelease(stream, place),) for place in range(1, ROUNDS))]
    if not streamed:
        events = [(GaussianRelease("update", 1.0, 1.0, 1),)] * ROUNDS
    return TaskTerms(
        task_sha256=task, name="words", population="people", developer=bytes(32), tables=(), epsilon=1.0, delta=1e-6,
        minimum_cohort=10, rounds=tuple(events),
    )  # fmt: skip


def is_due(terms: TaskTerms, round: int, past: list[Charged]) -> bool:
    try:
        require_due(terms, round=round, past=past)
    except PrivacyError:
        return False
    return True


@given(
    most=st.integers(1, 4),
    separation=st.integers(1, 5),
    asked=st.lists(st.booleans(), min_size=ROUNDS, max_size=ROUNDS),
)
def test_device_and_enclave_agree_on_who_is_due(most: int, separation: int, asked: list[bool]) -> None:
    terms = terms_of(most, separation)
    record = ParticipationRecord(Participation(rounds=ROUNDS, most=most, separation=separation))
    past: list[Charged] = []
    for round, wanted in enumerate(asked):
        assert is_due(terms, round, past) == record.admits(b"d" * 32, round)
        if wanted and record.admits(b"d" * 32, round):
            record.record(round, [b"d" * 32])
            past.append(Charged(terms, round, 0.0))


@pytest.mark.parametrize(("round", "due"), [(1, False), (2, False), (3, True)])
def test_a_device_is_not_due_one_round_early_and_the_message_says_when(round: int, due: bool) -> None:
    past = [Charged(terms_of(4, 3), 0, 0.0)]
    assert is_due(terms_of(4, 3), round, past) is due
    if not due:
        with pytest.raises(PrivacyError, match=r"round . is not due.*in round 0.*after 3 rounds"):
            require_due(terms_of(4, 3), round=round, past=past)


def test_other_tasks_and_tasks_without_a_stream_do_not_count() -> None:
    other = [Charged(terms_of(1, 3, task=b"o" * 32), 0, 0.0)]
    assert is_due(terms_of(1, 3), 1, other)
    plain = terms_of(1, 3, streamed=False)
    assert is_due(plain, 1, [Charged(plain, 0, 0.0)])
    with pytest.raises(PrivacyError, match="in 1 rounds, of at most 1"):
        require_due(terms_of(1, 3), round=9, past=[Charged(terms_of(1, 3), 0, 0.0)])

"""What a ledger comes to: the same epsilons as the list of all entries, and the same refusals, from much less."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import PrivacyError, StateError
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, ReleaseState, entries_of, lines_of
from odp.privacy.ledger_state import LedgerHead, LedgerState

TASKS = ("aa" * 32, "bb" * 32, "cc" * 32)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(TASKS),
        st.integers(0, 9),
        st.sampled_from([7.3, 11.1, 23.7, 1e3, 1e9]),
        st.sampled_from([None, ReleaseState.SEALED, ReleaseState.VOID]),
    ),
    max_size=25,
)


def played(steps) -> tuple[LedgerState, list]:
    """A state that was copied before every step, encoded and decoded after some, and the entries that it took."""
    state, entries = LedgerState("films"), []
    for number, (task_id, round, std, then) in enumerate(steps):
        events = (GaussianRelease("x", 0.3, std, 7), GaussianRelease("y", 1.7, 3 * std, 3))
        before, shared = state, state.encode()
        state = state.copy()
        try:
            entry = state.charge(
                task_id=task_id, round=round, events=events, contributions=50 + number, population_size=1000,
                id_set_sha256=bytes(32), task_budget=Budget(2.0, 1e-5), population_budget=Budget(3.0, 1e-6),
            )  # fmt: skip
        except PrivacyError:
            continue
        state.append(entry)
        entries.append(entry)
        if then is not None:
            named = bytes(32) if then is ReleaseState.SEALED else b""
            settled = state.advance(task_id=task_id, round=round, state=then, release_sha256=named)
            assert settled is not None
            state.append(settled)
            entries.append(settled)
        assert before.encode() == shared, "a copy changes nothing in what it was made from"
        if number % 3 == 0:
            state = LedgerState.decode(state.encode())
    return state, entries


@settings(deadline=None)
@given(STEPS)
def test_the_state_gives_the_epsilon_of_the_list_bit_for_bit_after_any_charges(steps):
    state, entries = played(steps)
    whole = Ledger("films", tuple(entries))
    for delta in (1e-5, 1e-6):
        assert state.epsilon_of_population(delta=delta) == accounting.epsilon(whole.population_events, delta=delta)
        for task_id in TASKS:
            assert state.epsilon_of_task(task_id, delta=delta) == accounting.epsilon(
                whole.task_events(task_id), delta=delta
            )
    assert state.head == whole.state.head
    assert state.charges == sum(entry.state is ReleaseState.CHARGED for entry in entries)
    assert state.largest_cohort == max((entry.contributions for entry in entries), default=0)
    whole.verify()


@settings(deadline=None)
@given(STEPS)
def test_a_state_that_was_encoded_goes_on_as_the_one_that_was_not(steps):
    state, entries = played(steps)
    whole = Ledger("films", tuple(entries)).state
    assert LedgerState.decode(state.encode()).encode() == state.encode() == whole.encode()
    for task_id in TASKS:
        assert state.rounds(task_id) == whole.rounds(task_id)
        assert all(list(entries_of(lines_of([one.charge]))) == [one.charge] for one in state.rounds(task_id).values()
                   if one.charge is not None)  # fmt: skip


@given(st.data())
def test_a_changed_byte_of_a_line_is_no_entry_or_leads_to_another_head(data):
    _, entries = played([(TASKS[0], 0, 7.3, ReleaseState.SEALED)])
    lines = bytearray(lines_of(entries))
    lines[data.draw(st.integers(0, len(lines) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        changed = Ledger("films", tuple(entries_of(bytes(lines))))
    except StateError:
        return
    assert changed.head != Ledger("films", tuple(entries)).head


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"null", b"\xff", b"[1]", LedgerHead("films", 3, bytes(31)).encode(),
     LedgerHead("films", 3, bytes(32)).encode() + b" "],
)  # fmt: skip
def test_bytes_that_are_no_head_are_refused(data):
    with pytest.raises(StateError):
        LedgerHead.decode(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":"odp-privacy-ledger-state-1"}'])
def test_bytes_that_are_no_state_are_refused(data):
    with pytest.raises(StateError):
        LedgerState.decode(data)

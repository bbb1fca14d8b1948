"""The ledger: refuses before it spends, charges once, notices damage."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, StateError
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, ReleaseState

TASK, OTHER = "aa" * 32, "bb" * 32
SIGNED = b"s" * 32
EVENTS = (GaussianRelease("gram", 1.0, 10.0, 100), GaussianRelease("right", 2.0, 20.0, 10))
WIDE = Budget(10.0, 1e-5)


def charge(ledger: Ledger, round: int = 0, *, task_id: str = TASK, ids: bytes = b"i", **changes) -> Ledger:
    arguments = {
        "task_id": task_id,
        "round": round,
        "events": EVENTS,
        "contributions": 50,
        "population_size": 1000,
        "id_set_sha256": ids * 32,
        "noise_id": b"noise",
        "task_budget": WIDE,
        "population_budget": WIDE,
    }
    return ledger.charge(**{**arguments, **changes})


def test_epsilon_comes_from_the_list_of_all_events():
    ledger = charge(charge(charge(Ledger("films"), 0), 1), 0, task_id=OTHER)
    assert ledger.task_events(TASK) == EVENTS * 2
    assert ledger.population_events == EVENTS * 3
    assert ledger.state.epsilon_of_task(TASK, delta=1e-5) == accounting.epsilon(EVENTS * 2, delta=1e-5)
    assert ledger.state.epsilon_of_population(delta=1e-6) == accounting.epsilon(EVENTS * 3, delta=1e-6)
    assert ledger.entries[-1].task_epsilon == accounting.epsilon(EVENTS, delta=1e-5)
    assert ledger.entries[-1].population_epsilon == accounting.epsilon(EVENTS * 3, delta=1e-5)
    assert Ledger("films").state.epsilon_of_task(TASK, delta=1e-5) == 0.0


def test_the_same_charge_again_changes_nothing():
    ledger = charge(charge(Ledger("films"), 0), 1)
    assert charge(ledger, 0) is ledger
    assert charge(ledger, 0, population_size=1001) is ledger


@pytest.mark.parametrize(
    "change",
    [
        {"ids": b"j"},
        {"noise_id": b"other"},
        {"events": EVENTS[:1]},
        {"contributions": 51},
        {"task_budget": Budget(11.0, 1e-5)},
    ],
)
def test_a_round_is_never_charged_for_anything_else(change):
    with pytest.raises(PrivacyError, match="was charged with another"):
        charge(charge(Ledger("films")), **change)


def test_over_the_task_budget_is_refused_with_every_number_a_person_needs():
    tight = Budget(1.0, 1e-5)
    ledger = Ledger("films")
    rounds = ledger.state.rounds_possible(TASK, EVENTS, task_budget=tight, population_budget=WIDE)
    assert rounds == 3  # mu of one round is .141421, the budget's is .26805
    for number in range(rounds):
        ledger = charge(ledger, number, task_budget=tight)
    with pytest.raises(BudgetExceeded) as caught:
        charge(ledger, rounds, task_budget=tight)
    message = str(caught.value)
    for part in (f"task {TASK}", "epsilon=1 at delta=1e-05", "0.90", "1.06", "0 more rounds", "times the noise"):
        assert part in message
    assert ledger.state.rounds_possible(TASK, EVENTS, task_budget=tight, population_budget=WIDE) == 0


def test_the_noise_that_a_refusal_advises_does_fit():
    tight = Budget(1.0, 1e-5)
    ledger = charge(Ledger("films"), task_budget=tight)
    large = (GaussianRelease("large", 1.0, 2.0, 1),)
    with pytest.raises(BudgetExceeded) as caught:
        charge(ledger, 1, events=large, task_budget=tight)
    factor = float(str(caught.value).split("with ")[1].split(" times")[0])
    charge(ledger, 1, events=(GaussianRelease("large", 1.0, 2.0 * factor, 1),), task_budget=tight)


def test_the_population_budget_holds_over_all_tasks():
    shared = Budget(0.9, 1e-5)
    ledger = charge(charge(Ledger("films"), population_budget=shared), task_id=OTHER, population_budget=shared)
    with pytest.raises(BudgetExceeded, match="population films"):
        charge(ledger, task_id="cc" * 32, population_budget=shared)
    left = ledger.state.remaining("cc" * 32, task_budget=WIDE, population_budget=shared)
    assert left.task_epsilon == 10.0
    assert left.population_epsilon == pytest.approx(0.9 - accounting.epsilon(EVENTS * 2, delta=1e-5))


def test_the_budget_of_a_task_is_fixed_by_its_first_charge():
    with pytest.raises(PrivacyError, match="submit a new task"):
        charge(charge(Ledger("films")), 1, task_budget=Budget(11.0, 1e-5))


def test_a_delta_too_large_for_the_population_is_refused():
    with pytest.raises(PrivacyError, match="n_users=100000"):
        charge(Ledger("films"), population_size=100_000)


@pytest.mark.parametrize(
    "change",
    [
        {"events": ()},
        {"contributions": -1},
        {"contributions": 1001},
        {"population_size": 0},
        {"task_id": "AA" * 32},
        {"task_id": "films"},
        {"id_set_sha256": b"short"},
        {"noise_id": b"n" * 65},
        {"round": -1},
    ],
)
def test_malformed_charges_are_refused(change):
    with pytest.raises(ConfigurationError):
        charge(Ledger("films"), **change)


def test_a_release_goes_through_its_states_and_never_back():
    ledger = charge(Ledger("films"))
    ledger = ledger.advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=SIGNED)
    assert ledger.advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=SIGNED) is ledger
    assert ledger.state.find(TASK, 0).state is ReleaseState.SEALED
    for state in (ReleaseState.CHARGED, ReleaseState.VOID):
        with pytest.raises(PrivacyError, match="cannot become"):
            ledger.advance(task_id=TASK, round=0, state=state)
    assert ledger.task_events(TASK) == EVENTS
    assert charge(ledger) is ledger


def test_a_sealed_release_names_one_hash_for_ever():
    ledger = charge(Ledger("films")).advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=SIGNED)
    assert ledger.entries[-1].release_sha256 == SIGNED
    with pytest.raises(PrivacyError):
        ledger.advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=bytes(32))
    with pytest.raises(ConfigurationError, match="release_sha256 of 32 bytes"):
        charge(Ledger("films")).advance(task_id=TASK, round=0, state=ReleaseState.SEALED)


def test_a_sealed_release_cannot_become_void():
    ledger = charge(Ledger("films")).advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=SIGNED)
    with pytest.raises(PrivacyError, match="is SEALED and cannot become VOID"):
        ledger.advance(task_id=TASK, round=0, state=ReleaseState.VOID)


def test_a_void_round_keeps_its_charge_and_cannot_be_charged_again():
    ledger = charge(Ledger("films")).advance(task_id=TASK, round=0, state=ReleaseState.VOID)
    assert ledger.task_events(TASK) == EVENTS
    with pytest.raises(PrivacyError, match="is void"):
        charge(ledger)


def test_nothing_is_released_that_was_not_charged():
    with pytest.raises(PrivacyError, match="Nothing was charged"):
        Ledger("films").advance(task_id=TASK, round=0, state=ReleaseState.SEALED, release_sha256=SIGNED)


rounds = st.lists(
    st.tuples(
        st.sampled_from([TASK, OTHER]),
        st.integers(0, 5),
        st.floats(0.5, 50.0),
        st.sampled_from([b"i", b"j"]),
        st.sampled_from([None, ReleaseState.SEALED, ReleaseState.VOID]),
    ),
    max_size=10,
)


def play(steps) -> Ledger:
    ledger = Ledger("films")
    for task_id, round, std, ids, then in steps:
        try:
            ledger = charge(
                ledger, round, task_id=task_id, ids=ids, events=(GaussianRelease("x", 1.0, std, 7),),
                task_budget=Budget(2.0, 1e-5), population_budget=Budget(3.0, 1e-6),
            )  # fmt: skip
            if then is not None:
                named = SIGNED if then is ReleaseState.SEALED else b""
                ledger = ledger.advance(task_id=task_id, round=round, state=then, release_sha256=named)
        except PrivacyError:
            continue
    return ledger


@settings(deadline=None)
@given(rounds)
def test_no_sequence_of_charges_exceeds_a_budget(steps):
    ledger = play(steps)
    for task_id in (TASK, OTHER):
        assert accounting.epsilon(ledger.task_events(task_id), delta=1e-5) <= 2.0
    assert accounting.epsilon(ledger.population_events, delta=1e-6) <= 3.0
    charged = [(e.task_id, e.round) for e in ledger.entries if e.state is ReleaseState.CHARGED]
    assert len(charged) == len(set(charged)) == len(ledger.population_events)
    ledger.verify()


@settings(deadline=None)
@given(rounds)
def test_encoding_is_canonical_and_decoding_gives_back_the_same_ledger(steps):
    ledger = play(steps)
    decoded = Ledger.decode(ledger.encode())
    assert decoded == ledger
    assert decoded.head == ledger.head
    assert decoded.encode() == ledger.encode()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_changed_byte_anywhere_is_noticed(data):
    encoded = (
        charge(charge(Ledger("films")), 1)
        .advance(task_id=TASK, round=1, state=ReleaseState.SEALED, release_sha256=SIGNED)
        .encode()
    )
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError):
        Ledger.decode(bytes(changed))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format":"odp-privacy-ledger-2"}', b"[" * 100_000, b'{"a":NaN}']
)
def test_bytes_that_are_no_ledger_are_refused_with_one_kind_of_error(data):
    with pytest.raises(StateError):
        Ledger.decode(data)


def test_a_removed_reordered_or_foreign_entry_breaks_the_chain():
    ledger = charge(charge(charge(Ledger("films"), 0), 1), 2)
    first, second, third = ledger.entries
    for entries in ((second, third), (first, third), (second, first, third)):
        with pytest.raises(StateError, match="chain"):
            Ledger("films", entries)
    with pytest.raises(StateError, match="chain"):
        Ledger("books", ledger.entries)
    value = json.loads(ledger.encode())
    value["entries"].pop()
    with pytest.raises(StateError, match="altered"):
        Ledger.decode(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def test_a_second_charge_of_a_round_does_not_fit_into_a_chain():
    ledger = charge(Ledger("films"))
    again = dataclasses.replace(ledger.entries[0], previous=ledger.head)
    with pytest.raises(StateError, match="cannot follow"):
        Ledger("films", (*ledger.entries, again))


def test_an_auditor_notices_an_understated_epsilon_even_in_an_unbroken_chain():
    ledger = charge(Ledger("films"))
    ledger.verify()
    forged = Ledger("films", (dataclasses.replace(ledger.entries[0], task_epsilon=0.1),))
    with pytest.raises(StateError, match="its events do not have"):
        Ledger.decode(forged.encode()).verify()


@pytest.mark.parametrize(("budget", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("nan"), 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_budgets_are_positive_and_delta_is_a_probability(budget, delta):
    with pytest.raises(ConfigurationError):
        Budget(budget, delta)


def test_rounds_possible_agrees_with_charging_until_refused():
    tight = Budget(3.0, 1e-5)
    ledger = charge(Ledger("films"), task_budget=tight)
    possible = ledger.state.rounds_possible(TASK, EVENTS, task_budget=tight, population_budget=WIDE)
    for number in range(1, possible + 1):
        ledger = charge(ledger, number, task_budget=tight)
    with pytest.raises(BudgetExceeded):
        charge(ledger, possible + 1, task_budget=tight)
    with pytest.raises(ConfigurationError, match="not free"):
        ledger.state.rounds_possible(TASK, (), task_budget=tight, population_budget=WIDE)

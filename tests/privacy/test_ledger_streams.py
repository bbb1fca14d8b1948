"""Streams in a ledger: charged once, covered release by release, and never for anything else."""

from __future__ import annotations

import dataclasses
import json

import pytest

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, StateError
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease, SampledRound, Sampling, StreamRelease
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, ReleaseState
from odp.privacy.ledger_events import CoveredRelease, charged, from_json, joined
from odp.privacy.ledger_state import LedgerState

TASK, OTHER = "aa" * 32, "bb" * 32
STREAM = StreamRelease(
    name="update", sensitivity=2.0, noise_std=20.0, coordinates=40, rounds=4, most=2, separation=2,
    matrix_sha256=b"m" * 32,
)  # fmt: skip
WIDE = Budget(10.0, 1e-5)


def charge(ledger: Ledger, round: int, *events, task_id: str = TASK, **changes) -> Ledger:
    arguments = {
        "task_id": task_id, "round": round, "events": events, "contributions": 50, "population_size": 1000,
        "id_set_sha256": b"i" * 32, "task_budget": WIDE, "population_budget": WIDE,
    }  # fmt: skip
    return ledger.charge(**{**arguments, **changes})


def opened(round: int = 0) -> Ledger:
    return charge(Ledger("films"), round, STREAM)


def whole_stream() -> Ledger:
    ledger = opened()
    for place in range(1, 4):
        ledger = charge(ledger, place, CoveredRelease(STREAM, place))
    return ledger


def test_all_rounds_of_a_stream_cost_its_one_charge():
    ledger = whole_stream()
    whole = accounting.epsilon([STREAM], delta=1e-5)
    assert [entry.task_epsilon for entry in ledger.entries] == [whole] * 4
    assert [entry.population_epsilon for entry in ledger.entries] == [whole] * 4
    assert ledger.task_events(TASK) == ledger.population_events == (STREAM,)
    assert ledger.state.task_events(TASK) == {STREAM: 1}
    assert ledger.state.charges == 4
    ledger.verify()
    assert Ledger.decode(ledger.encode()) == ledger
    assert charge(ledger, 2, CoveredRelease(STREAM, 2)) is ledger


def test_a_round_of_a_stream_may_have_charges_of_its_own():
    loss = GaussianRelease("loss", 1.0, 10.0, 1)
    ledger = charge(opened(), 1, CoveredRelease(STREAM, 1), loss)
    assert ledger.population_events == (STREAM, loss)
    assert ledger.entries[-1].task_epsilon == accounting.epsilon([STREAM, loss], delta=1e-5)
    ledger.verify()


def test_a_stream_may_begin_in_any_round():
    charge(opened(7), 8, CoveredRelease(STREAM, 1))
    with pytest.raises(PrivacyError, match="place 1 is due"):
        charge(opened(7), 8, CoveredRelease(STREAM, 2))


@pytest.mark.parametrize(
    "change", [{"matrix_sha256": b"n" * 32}, {"most": 1}, {"separation": 1}, {"sensitivity": 1.0}, {"noise_std": 30.0}]
)
def test_a_round_of_a_stream_with_other_numbers_is_not_covered(change):
    other = dataclasses.replace(STREAM, **change)
    with pytest.raises(PrivacyError, match="has other numbers"):
        charge(opened(), 1, CoveredRelease(other, 1))


def test_what_no_charge_covers_is_refused():
    covered = CoveredRelease(STREAM, 1)
    with pytest.raises(PrivacyError, match="no stream of this name"):
        charge(Ledger("films"), 1, covered)
    with pytest.raises(PrivacyError, match="no stream of this name"):
        charge(opened(), 1, covered, task_id=OTHER)
    with pytest.raises(PrivacyError, match="no stream of this name"):
        charge(opened(), 1, CoveredRelease(dataclasses.replace(STREAM, name="other"), 1))
    with pytest.raises(PrivacyError, match="place 2 is due"):
        charge(opened(), 2, covered)
    with pytest.raises(PrivacyError, match="place 4 is due"):
        charge(whole_stream(), 4, CoveredRelease(STREAM, 3))
    for place in (0, -1, 4, True, 1.0):
        with pytest.raises(ConfigurationError):
            CoveredRelease(STREAM, place)


def test_a_second_stream_needs_a_second_charge_and_ends_the_first():
    second = charge(charge(opened(), 1, CoveredRelease(STREAM, 1)), 2, STREAM)
    assert second.entries[-1].task_epsilon == accounting.epsilon([STREAM, STREAM], delta=1e-5)
    with pytest.raises(PrivacyError, match="charged in round 2, so place 1 is due"):
        charge(second, 3, CoveredRelease(STREAM, 3))
    charge(second, 3, CoveredRelease(STREAM, 1)).verify()
    with pytest.raises(BudgetExceeded):
        charge(opened(), 1, STREAM, population_budget=Budget(second.entries[0].task_epsilon, 1e-5))


def test_a_round_has_one_release_of_each_stream():
    for events in ((STREAM, STREAM), (STREAM, CoveredRelease(STREAM, 1)), (CoveredRelease(STREAM, 1),) * 2):
        with pytest.raises(PrivacyError, match="two releases"):
            charge(opened(), 1, *events)


def test_a_refused_release_changes_nothing():
    ledger = opened()
    before = ledger.state.encode()
    with pytest.raises(PrivacyError):
        charge(ledger, 2, CoveredRelease(STREAM, 1))
    assert ledger.state.encode() == before


def test_a_state_knows_its_streams_after_a_restart():
    ledger = charge(opened(), 1, CoveredRelease(STREAM, 1))
    restored = LedgerState.decode(ledger.state.encode())
    assert restored.encode() == ledger.state.encode()
    entry = charge(ledger, 2, CoveredRelease(STREAM, 2)).entries[-1]
    for state in (restored, restored.copy()):
        state.append(entry)
        assert state.head.sha256 == entry.sha256
    plain = charge(Ledger("films"), 0, GaussianRelease("loss", 1.0, 10.0, 1)).state.encode()
    assert len(json.loads(plain)["tasks"][0]) == 5  # as before there were streams


@pytest.mark.parametrize(
    ("place", "event"),
    [
        (2, CoveredRelease(STREAM, 3)),
        (2, CoveredRelease(dataclasses.replace(STREAM, separation=1), 2)),
        (2, CoveredRelease(dataclasses.replace(STREAM, matrix_sha256=b"n" * 32), 2)),
        (0, CoveredRelease(STREAM, 1)),
    ],
)
def test_a_forged_ledger_with_an_unbroken_chain_is_refused(place, event):
    """Whoever writes the file can chain any lines: an auditor reads their meaning too."""
    genuine = whole_stream().entries
    forged, previous = [], genuine[0].previous
    for number, entry in enumerate(genuine):
        events = (event,) if number == place else entry.events
        forged.append(dataclasses.replace(entry, events=events, previous=previous))
        previous = forged[-1].sha256
    with pytest.raises(StateError, match="not covered"):
        Ledger("films", tuple(forged))
    lines = {"entries": [entry.to_json() for entry in forged], "format": "odp-privacy-ledger-2", "population": "films"}
    data = json.dumps({**lines, "head": previous.hex()}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(StateError, match="not covered"):
        Ledger.decode(data)


def test_an_auditor_notices_a_covered_round_that_understates_epsilon():
    first, second = charge(opened(), 1, CoveredRelease(STREAM, 1)).entries
    low = dataclasses.replace(second, task_epsilon=0.5 * second.task_epsilon)
    with pytest.raises(StateError, match="states an epsilon"):
        Ledger("films", (first, low)).verify()


def test_a_void_round_uses_up_its_place():
    ledger = charge(opened(), 1, CoveredRelease(STREAM, 1)).advance(task_id=TASK, round=1, state=ReleaseState.VOID)
    with pytest.raises(PrivacyError, match="void"):
        charge(ledger, 1, CoveredRelease(STREAM, 1))
    with pytest.raises(PrivacyError, match="place 2 is due"):
        charge(ledger, 2, CoveredRelease(STREAM, 1))
    charge(ledger, 2, CoveredRelease(STREAM, 2))


def test_no_accountant_takes_a_covered_release():
    with pytest.raises(ConfigurationError, match="privacy events"):
        accounting.epsilon([CoveredRelease(STREAM, 1)], delta=1e-5)  # type: ignore[list-item]
    assert charged([CoveredRelease(STREAM, 1), STREAM]) == (STREAM,)


def test_a_stream_is_never_amplified_by_sampling():
    with pytest.raises(PrivacyError, match="without sampling"):
        SampledRound((STREAM,), Sampling(0.1, 1000, 300))


def test_a_user_who_joins_any_round_of_a_stream_pays_for_all_of_it_once():
    loss = GaussianRelease("loss", 1.0, 10.0, 1)
    rounds = [(0, (STREAM,)), (1, (CoveredRelease(STREAM, 1), loss)), (2, (CoveredRelease(STREAM, 2),))]
    assert joined(rounds) == (STREAM, loss)
    assert joined(rounds[2:]) == (STREAM,)
    assert joined([*rounds, (3, (STREAM,)), (4, (CoveredRelease(STREAM, 1),))]) == (STREAM, loss, STREAM)


def test_covered_releases_are_written_and_read():
    covered = CoveredRelease(STREAM, 3)
    written = covered.to_json()
    assert list(written) == sorted(written)
    assert from_json(json.loads(json.dumps(written))) == covered
    for wrong in (
        {**written, "extra": 1}, {**written, "place": 4}, {"mechanism": "covered_by_stream"},
        {**written, "stream": GaussianRelease("loss", 1.0, 10.0, 1).to_json()},
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            from_json(wrong)

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runtime.inference.best_value import best_value
from device_runtime.person.limits import Limits
from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.view.overview import overview
from odp.errors import ConfigurationError, NotNow, PrivacyError

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(tmp_path / "0.sqlite") as store:
        yield store


def _gate(now: float = NOW, **limits: float) -> Gate:
    return Gate(limits=Limits(**limits), clock=lambda: now)  # type: ignore[arg-type]


def _ask(store: Store, gate: Gate, *, epsilon: float = 0.5, service: str = "films", truth: int = 1) -> int:
    return best_value(store, gate, truth, service=service, app="player", choices=4, epsilon=epsilon)


def test_an_answer_is_charged_at_its_true_epsilon_and_shown_to_the_person(store: Store) -> None:
    assert 0 <= _ask(store, _gate()) < 4
    (line,) = store.answers()
    assert (line.service, line.app, line.choices, line.time) == ("films", "player", 4, NOW)
    assert 0.499 < line.epsilon <= 0.5
    found = overview(store, _gate(), now=NOW)
    assert found["spent"]["total"]["epsilon"] == line.epsilon
    assert found["answers"][0]["mechanism"] == "randomized_response"
    assert found["answers"][0]["adjacency"] == "any_two_inputs"


def test_it_is_charged_before_it_is_drawn(store: Store) -> None:
    """A device that dies while it draws has paid, and told nobody."""

    def dies(bits: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        best_value(store, _gate(), 1, service="films", app="player", choices=4, epsilon=0.5, random_bits=dies)
    assert len(store.answers()) == 1


def test_a_service_has_a_budget_of_30_days(store: Store) -> None:
    _ask(store, _gate(), epsilon=0.6)
    with pytest.raises(PrivacyError, match="max_answers_epsilon_30_days=1; change"):
        _ask(store, _gate(NOW + 29 * DAY), epsilon=0.6)
    assert len(store.answers()) == 1
    _ask(store, _gate(NOW + 29 * DAY), epsilon=0.6, service="music")
    _ask(store, _gate(NOW + 31 * DAY), epsilon=0.6)
    assert len(store.answers()) == 3


def test_a_clock_that_goes_back_frees_nothing(store: Store) -> None:
    _ask(store, _gate(), epsilon=0.6)
    with pytest.raises(PrivacyError):
        _ask(store, _gate(NOW - 1000 * DAY), epsilon=0.6)


def test_answers_count_in_the_totals(store: Store) -> None:
    gate = _gate(max_total_epsilon=0.8, max_answers_epsilon_30_days=5.0)
    _ask(store, gate)
    with pytest.raises(PrivacyError, match=r"total epsilon=1 is above max_total_epsilon=0\.8"):
        _ask(store, gate)


def test_nothing_is_told_while_paused_or_without_a_budget(store: Store) -> None:
    with pytest.raises(PrivacyError):
        _ask(store, _gate(max_answers_epsilon_30_days=0.0))
    store.change_person(lambda person: dataclasses.replace(person, paused=NOW))
    with pytest.raises(NotNow):
        _ask(store, _gate())
    assert not store.answers()


def test_a_truth_out_of_range_costs_nothing(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 3"):
        _ask(store, _gate(), truth=4)
    assert not store.answers()

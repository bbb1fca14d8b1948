from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from device_runtime.inference.shown_results import MOST_RESULTS, Notes, ShownResults
from device_runtime.isolated import Asked, HandlerFailed, Reason, Result
from odp.errors import ConfigurationError
from odp.isolated import Handler

NOW = 1_800_000_000.0


class _Host:
    """Executes when it is let; a request of ``broken`` raises what no contract names."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.executed: list[int] = []

    def execute(self, store: object, asked: Asked, *, now: float) -> Result:
        assert self.may.wait(30)
        self.executed.append(asked.request)
        if asked.work.get("broken"):
            raise ZeroDivisionError("secret-of-the-person")
        return Result(asked.request, {"best": 2, "title": "Two"})


class _Store:
    def data(self, service: str) -> object:
        return None


@contextlib.contextmanager
def _open() -> Iterator[Any]:
    yield _Store()


@pytest.fixture
def host() -> _Host:
    return _Host()


@pytest.fixture
def results(host: _Host) -> Iterator[ShownResults]:
    found = ShownResults("films", host, _open, say=lambda line: None, clock=lambda: NOW)  # type: ignore[arg-type]
    yield found
    host.may.set()
    found.close()


def test_an_app_that_asks_without_end_fills_no_queue(host: _Host, results: ShownResults) -> None:
    ids = [results.begin(Asked(number, "cinema", {})) for number in range(5 * MOST_RESULTS)]
    host.may.set()
    assert results.choice(ids[-1], "best", 3, app="cinema") == 2
    # The first was under way; of the others the newest alone.
    assert len(host.executed) <= MOST_RESULTS + 1
    with pytest.raises(ConfigurationError, match="one of the newest 64"):
        results.choice(ids[0], "best", 3, app="cinema")
    assert results.result(ids[0]) is None
    assert len(results.results()) == MOST_RESULTS


def test_numbers_of_results_do_not_count_and_are_not_guessed(results: ShownResults) -> None:
    ids = {results.begin(Asked(1, "cinema", {})) for _ in range(20)}
    assert len(ids) == 20
    assert all(len(id) == 32 for id in ids)


def test_whatever_goes_wrong_is_a_choice_like_any_other(host: _Host, results: ShownResults) -> None:
    host.may.set()
    shown = results.begin(Asked(1, "cinema", {"broken": True}))
    assert results.choice(shown, "best", 3, app="cinema") == 0
    fine = results.begin(Asked(2, "cinema", {}))
    assert results.choice(fine, "title", 3, app="cinema") == 0
    assert results.choice(fine, "best", 2, app="cinema") == 0
    assert results.choice(fine, "best", 3, app="cinema") == 2


def test_nothing_of_a_result_is_in_its_repr(host: _Host, results: ShownResults) -> None:
    host.may.set()
    shown = results.begin(Asked(1, "cinema", {"film": "private"}))
    results.choice(shown, "best", 3, app="cinema")
    assert "Two" not in repr(results._held)
    assert "private" not in repr(results._held)


def test_notes_are_few_and_newest_first() -> None:
    notes = Notes(most=3)
    for line in ("a", "b", "a", "c", "d"):
        notes.add(line)
    assert notes.lines() == ("d", "c", "a")
    with notes.failures():
        raise HandlerFailed(Handler.ON_EVENT, Reason.RAISED)
    assert notes.lines()[0] == "on_event of the service failed: its code raised an error"
    with pytest.raises(KeyError), notes.failures():
        raise KeyError

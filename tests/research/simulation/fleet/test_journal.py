"""The journal of a fleet's host, and how a host waits for services."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from odp.errors import ServiceError, ServiceUnavailable, StateError
from odp.research.simulation.fleet.faults import Outage
from odp.research.simulation.fleet.journal import FILE, Journal
from odp.transport.logs import Log


def _written(folder: Path) -> Journal:
    with Journal(folder, rounds=2) as journal:
        journal.filled()
        assert journal.fault(3, 0, "crash")
        assert not journal.fault(3, 0, "crash")
        journal.attempt(3, 0, {"rests": 2, "bytes_up": 10})
        journal.done(3, 0, {"bytes_up": 5}, sent=True)
        journal.replay(4, 0, "replayed", "already_contributed")
        journal.done(4, 0, sent=True)
        journal.done(5, 1, refused="malformed")
        assert journal.fault(6, 1, "drop_out")
    return journal


def test_a_journal_that_is_read_again_has_the_same_counts(tmp_path: Path) -> None:
    before = _written(tmp_path)
    with Journal(tmp_path, rounds=2) as again:
        assert again.counts == before.counts
        assert again.through == before.through == [{3, 4}, {5}]
        assert again.is_filled
        # What happens once does not happen again to a device that is not through.
        assert again.past(6, 1) == {"drop_out"}
    first = again.counts[0]
    assert (first.devices_in, first.rests, first.bytes_up) == (2, 2, 15)
    assert first.injected == {"crash": 1, "replayed": 1}
    assert first.refused == {"replay: already_contributed": 1}
    assert again.counts[1].refused == {"malformed": 1}


@pytest.mark.parametrize("cut", range(1, 26, 4))
def test_a_line_that_was_cut_is_left_out_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    _written(tmp_path)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(tmp_path, rounds=2) as journal:
        assert journal.past(6, 1) == frozenset()
        assert journal.fault(6, 1, "drop_out")
    with Journal(tmp_path, rounds=2) as journal:
        assert journal.past(6, 1) == {"drop_out"}
        assert journal.through == [{3, 4}, {5}]


@pytest.mark.parametrize("line", ["{}", "5", '["done",7,1,{"sent":true,"refused":""}]', '["no",0,1,null]', "[", "\xff"])
def test_a_damaged_journal_is_refused_in_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / FILE).write_text(line + "\n", encoding="latin-1")
    with pytest.raises(StateError, match=r"journal .*journal\.jsonl is damaged"):
        Journal(tmp_path, rounds=2)


def test_a_service_that_does_not_answer_is_one_line_until_it_is_given_up() -> None:
    stream, stop, now = io.StringIO(), threading.Event(), [0.0]
    stop.set()  # no pause takes time
    outage = Outage(Log("fleet", stream=stream), stop, most_seconds=60.0, monotonic=lambda: now[0])
    for _ in range(3):
        outage.wait(ServiceUnavailable("nobody there"))
    outage.over()
    outage.over()
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["outage", "outage_over"]
    outage.wait(ServiceUnavailable("nobody there"))
    now[0] = 61.0
    with pytest.raises(ServiceError, match="did not answer for 60 s: nobody there"):
        outage.wait(ServiceUnavailable("nobody there"))

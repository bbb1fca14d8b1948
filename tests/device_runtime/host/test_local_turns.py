"""When the devices of a host report to a task of local trust again."""

from __future__ import annotations

import math

from device_runtime.host import roster
from device_runtime.host.roster import LocalTurns

TASK, OTHER = b"t" * 32, b"o" * 32


def test_a_device_waits_for_its_own_turn_in_each_task() -> None:
    now = [0.0]
    turns = LocalTurns(range(5, 8), clock=lambda: now[0])
    assert turns.pending(TASK, [5, 6, 7]) == [5, 6, 7]
    assert turns.next(TASK) == 0.0
    turns.wait(TASK, 5, 10.0)
    turns.wait(TASK, 6, math.inf)
    assert turns.pending(TASK, [5, 6, 7]) == [7]
    assert turns.pending(OTHER, [5, 6]) == [5, 6]
    turns.wait(TASK, 7, 30.0)
    assert turns.next(TASK) == 10.0
    now[0] = 10.0
    assert turns.pending(TASK, [5, 6, 7]) == [5]
    turns.wait(TASK, 5, math.inf)
    turns.wait(TASK, 7, math.inf)
    assert turns.next(TASK) == math.inf


def test_a_server_that_names_any_number_of_tasks_fills_no_memory() -> None:
    turns = LocalTurns(range(2), clock=lambda: 0.0)
    for number in range(10 * roster._MOST_TASKS):
        turns.wait(number.to_bytes(32, "big"), 0, math.inf)
    assert len(turns._due) == roster._MOST_TASKS
    # What is forgotten is read from the stores again, which say that the device is not due.
    assert turns.pending((0).to_bytes(32, "big"), [0, 1]) == [0, 1]

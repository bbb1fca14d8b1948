"""Steps of a server's tasks without its threads."""

from __future__ import annotations

from server.driver import Driver


def step_once(driver: Driver) -> bool:
    """At most one step of every task, oldest first, one after the other. True where a task got further."""
    return sum(driver._attempt(task, step) for task, step in driver._steps()) > 0

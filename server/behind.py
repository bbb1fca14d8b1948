"""A server whose database was restored from a backup that is older than its aggregator's newest release."""

from __future__ import annotations

from odp.errors import ServiceError, StateError
from server.clients import Aggregator


def require_not_behind(aggregator: Aggregator, task_sha256: bytes, round: int) -> None:
    """Returns unless the release of ``round``, which the aggregator did not give, is gone because a later one was made.

    The aggregator keeps the newest release alone. A server that is one release behind gets that and goes on; one that
    is further behind lacks a model that nobody can make again.

    Raises:
        StateError: a later round was released. The task waits, as an operator may have a newer backup.
    """
    try:
        later = aggregator.progress(task_sha256, round + 1)
    except ServiceError:
        return
    if later.released:
        raise StateError(
            f"round {round} and round {round + 1} were released, and the aggregator keeps the newest release alone: "
            "this server's database is older; restore its newest backup, or cancel the task and submit it anew (what "
            "was charged stays charged)"
        )

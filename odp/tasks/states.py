"""Where a task stands, for people."""

from __future__ import annotations

from odp.algorithms.capabilities import CountsUsable, UsableAnswers
from odp.algorithms.registry import algorithm_for
from odp.models.left_out import UNKNOWN
from odp.signed.task import open_task
from odp.v1 import common_pb2, server_pb2

#: A task in such a state does not change any more.
FINAL = (
    server_pb2.TaskStatus.STATE_FINISHED,
    server_pb2.TaskStatus.STATE_CANCELLED,
    server_pb2.TaskStatus.STATE_FAILED,
)
_ROUNDS = {
    server_pb2.RoundStatus.STATE_OPEN: "open",
    server_pb2.RoundStatus.STATE_RELEASED: "released",
    server_pb2.RoundStatus.STATE_APPLIED: "applied",
}


def state_name(status: server_pb2.TaskStatus) -> str:
    """Its state in one word, such as "active"; "paused" is an active task that opens no further round."""
    if status.paused and status.state == server_pb2.TaskStatus.STATE_ACTIVE:
        return "paused"
    return server_pb2.TaskStatus.State.Name(status.state).removeprefix("STATE_").lower()


def in_one_line(status: server_pb2.TaskStatus) -> str:
    """Where a task stands: its state, its newest round from 1 on, ε that was spent, and what it waits for."""
    definition = open_task(status.task)
    parts = [f"task {definition.name!r} is {state_name(status)}"]
    if status.rounds:
        newest = status.rounds[-1]
        number = f"round {newest.round + 1} of {max(status.planned_rounds, newest.round + 1)}"
        parts.append(f"{number} is {_ROUNDS.get(newest.state, 'unknown')} with {newest.contributions} contributions")
    if status.planned_rounds:
        parts.append(f"ε spent {status.epsilon_spent:.4g} of {definition.privacy.epsilon:g}")
    else:
        parts.append(f"{status.reports} reports that are private by themselves")
    usable = usable_in_words(definition, None) if status.state == server_pb2.TaskStatus.STATE_FINISHED else ""
    parts += [line for line in (status.waits_for.reason, status.failure, usable) if line]
    return "; ".join(parts)


def usable_in_words(definition: common_pb2.TaskDefinition, counted: UsableAnswers | None) -> str:
    """How many devices have usable rows, to stand beside the figures of a task on devices; "" where it uses none.

    ``counted`` is what the task's count released; None before that, or where it has none.
    """
    algorithm = algorithm_for(definition)
    uses_rows = definition.WhichOneof("local_data") is not None or any(table.label for table in algorithm.local_data)
    if isinstance(algorithm, CountsUsable) or not uses_rows:
        return ""
    if counted is not None:
        return counted.summary()
    if definition.HasField("count_first"):
        return f"usable rows are counted by task {definition.count_first.task_sha256.hex()[:12]}"
    return UNKNOWN


def usable_in_brief(text: str, counted: UsableAnswers | None) -> str:
    """The share of devices with usable rows, for a column of a table; ``text`` is of ``usable_in_words``."""
    if counted is None:
        return "unknown" if text else ""
    return f"{100 * counted.usable.low:.0f} to {100 * counted.usable.high:.0f} %"

"""What the page shows of a task: plain values, read once from what the server answers.

Everything here is public or was released: counts of uploads, charges, states. A release never changes, so each is read
once, however often the server is asked.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from odp.signed.task import open_task, task_sha256
from odp.tasks.states import FINAL, state_name
from odp.v1 import common_pb2, server_pb2

_MOST_KEPT = 4096
_ROUND_STATES = {
    server_pb2.RoundStatus.STATE_OPEN: "open",
    server_pb2.RoundStatus.STATE_RELEASED: "released",
    server_pb2.RoundStatus.STATE_APPLIED: "applied",
}


@dataclass(frozen=True)
class ReleasedFacts:
    """A release: ε of the task so far, and one line for each charge."""

    epsilon: float
    charges: tuple[str, ...]
    numbers: int


@dataclass(frozen=True)
class RoundFacts:
    """A round. ``number`` counts from 0; times are seconds since the epoch, 0 where unknown."""

    number: int
    state: str
    contributions: int
    opened: float
    closed: float
    release: ReleasedFacts | None


@dataclass(frozen=True)
class TaskFacts:
    """A task. ``planned_rounds`` is 0 for a task of local trust, which has ``reports`` in place of rounds."""

    id: str
    definition: common_pb2.TaskDefinition
    state: str
    is_over: bool
    failure: str
    waits_for: str
    rounds: tuple[RoundFacts, ...]
    planned_rounds: int
    spent: float
    reports: int

    @property
    def name(self) -> str:
        """For people."""
        return self.definition.name

    @property
    def kind(self) -> str:
        """What the task does, as its definition names it."""
        return str(self.definition.WhichOneof("training") or "task").replace("_", " ")

    @property
    def budget(self) -> float:
        """ε of the task; infinite without noise."""
        return self.definition.privacy.epsilon

    @property
    def newest(self) -> RoundFacts | None:
        """The round that was opened last."""
        return self.rounds[-1] if self.rounds else None

    @property
    def open_round(self) -> RoundFacts | None:
        """The round that devices contribute to now."""
        newest = self.newest
        return newest if newest is not None and newest.state == "open" and not self.is_over else None

    @property
    def releases(self) -> int:
        """Number of rounds that were released."""
        return sum(entry.state != "open" for entry in self.rounds)


class Reader:
    """Turns statuses into facts, and remembers what cannot change."""

    def __init__(self) -> None:
        self._definitions: OrderedDict[bytes, common_pb2.TaskDefinition] = OrderedDict()
        self._releases: OrderedDict[tuple[bytes, int], ReleasedFacts] = OrderedDict()
        # Most tasks stand still between two readings: the same bytes are the same facts.
        self._last: dict[bytes, tuple[bytes, TaskFacts]] = {}

    def read_all(self, statuses: Iterable[server_pb2.TaskStatus]) -> tuple[TaskFacts, ...]:
        """The facts of all tasks. Raises OdpError as ``read``."""
        now: dict[bytes, tuple[bytes, TaskFacts]] = {}
        for status in statuses:
            sha256, data = task_sha256(status.task), status.SerializeToString()
            before = self._last.get(sha256)
            now[sha256] = before if before is not None and before[0] == data else (data, self.read(status))
        self._last = now
        return tuple(facts for _, facts in now.values())

    def read(self, status: server_pb2.TaskStatus) -> TaskFacts:
        """The facts of one status. Raises OdpError if its definition is malformed."""
        sha256 = task_sha256(status.task)
        definition = self._definitions.get(sha256)
        if definition is None:
            definition = open_task(status.task)
            _keep(self._definitions, sha256, definition)
        return TaskFacts(
            id=sha256.hex(),
            definition=definition,
            state=state_name(status),
            is_over=status.state in FINAL,
            failure=status.failure,
            waits_for=status.waits_for.reason,
            rounds=tuple(self._round(sha256, entry) for entry in status.rounds),
            planned_rounds=status.planned_rounds,
            spent=status.epsilon_spent,
            reports=status.reports,
        )

    def _round(self, task: bytes, status: server_pb2.RoundStatus) -> RoundFacts:
        key = task, status.round
        release = self._releases.get(key)
        if release is None and status.release.release:
            release = _released(status.release.release)
            _keep(self._releases, key, release)
        return RoundFacts(
            status.round,
            _ROUND_STATES.get(status.state, "unknown"),
            status.contributions,
            status.opened,
            status.closed,
            release,
        )


def _keep(cache: OrderedDict[Any, Any], key: object, value: object) -> None:
    cache[key] = value
    while len(cache) > _MOST_KEPT:
        cache.popitem(last=False)


def _released(data: bytes) -> ReleasedFacts:
    try:
        release = common_pb2.Release.FromString(data)
    except DecodeError:
        return ReleasedFacts(math.nan, ("the server returns a release that cannot be read",), 0)
    return ReleasedFacts(
        release.epsilon_spent,
        tuple(map(_charge, release.charges)),
        sum(math.prod(tensor.shape) for tensor in release.tensors),
    )


def _charge(charge: common_pb2.Charge) -> str:
    if charge.HasField("shuffled"):
        return f"{charge.name}: shuffled reports, each ε {charge.shuffled.report_epsilon:.3g}"
    if charge.HasField("stream") and charge.stream.place:
        return f"{charge.name}: covered by the stream's charge"
    return f"{charge.name}: sensitivity {charge.sensitivity:.3g}, noise σ {charge.noise_std:.3g}"


def planned_epsilon(definition: common_pb2.TaskDefinition) -> float | None:
    """ε at the task's delta once all planned rounds are released; None where there is no plan of charges."""
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import planned_charges
    from odp.privacy.accounting import epsilon

    if definition.privacy.epsilon == math.inf:
        return None
    charges = [event for events in planned_charges(algorithm_for(definition)) for event in events]
    return epsilon(charges, delta=definition.privacy.delta) if charges else None

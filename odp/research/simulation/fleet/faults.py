"""Faults of simulated devices, injected where a real device would have them: in its network, its process, its intent.

Everything below a fault is the device runtime as it is, against real services over TLS. Every line of the log about a
fault, or about what came of one, says ``injected=true``.

How a host of a simulated fleet waits for services that do not answer.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from device_runtime import PinnedAddresses, Services
from device_runtime.network.services import Traffic
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.local_assignment import LocalWork
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.seam import Client, LocalData
from odp.errors import ServiceError, ServiceUnavailable
from odp.numerics.arrays import Float32Array, Int64Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.protocol.wire.model import Slices
from odp.research.simulation.fleet.journal import Journal
from odp.research.simulation.fleet.plan import Act, Character, Point
from odp.transport.logs import Log
from odp.transport.sweeping import pause_after
from odp.v1 import aggregator_pb2, distributor_pb2, local_pb2, server_pb2

_INJECTED = "true"

Reply = TypeVar("Reply")


class Vanished(BaseException):
    """Injected: the device is gone for the rest of the round. Like a death, it is no error that a device handles."""


class AnswerLost(ServiceUnavailable):
    """Injected: a service counted what it was sent, and the device does not hear of it."""


class Died(BaseException):
    """Injected: the device's process died here; its store is as a death would leave it."""


@dataclasses.dataclass
class Turn:
    """One device's attempt to take part: what is to happen to it, and how far its own clock went."""

    device: int
    round: int
    act: Act
    character: Character
    log: Log
    journal: Journal
    #: A byte of which a payload is made that breaks the task's bounds.
    bad_byte: int = 1
    elapsed: float = 0.0

    def inject(self, kind: str, **fields: str | int | float) -> None:
        """Counts an injected fault once, and writes the line that says so."""
        if self.journal.fault(self.device, self.round, kind):
            self.say(kind, **fields)

    def say(self, kind: str, **fields: str | int | float) -> None:
        """Writes the line about an injected fault."""
        self.log.event("injected_fault", injected=_INJECTED, device=self.device, round=self.round, kind=kind, **fields)

    def happens(self, kind: str) -> bool:
        """Whether ``kind`` has not happened yet in this round."""
        return kind not in self.journal.past(self.device, self.round)

    def out_of_bounds(self, payload: bytes) -> bytes:
        """A payload of the same length that breaks the task's bounds."""
        return bytes([self.bad_byte]) * len(payload)

    def at(self, point: Point) -> None:
        """Ends the attempt where this is where it is to end. Raises Vanished or Died."""
        if self.act.drop_out is point:
            self.inject("drop_out", point=point.value)
            raise Vanished
        if self.act.crash is point and self.happens("crash"):
            self.inject("crash", point=point.value)
            raise Died

    def travelled(self, up: int, down: int) -> None:
        """Lets the time of one exchange pass on the device's clock: a round trip, and its bytes."""
        self.elapsed += 2 * self.character.latency + (up + down) / self.character.bytes_per_second


class SimulatedServices(Services):
    """The services as the device whose turn it is reaches them. For one thread.

    Args:
      server, ca, pinned: as ``Services``.
    """

    def __init__(self, server: str, ca: Path | bytes, *, pinned: PinnedAddresses) -> None:
        super().__init__(server, ca, pinned=pinned)
        self.turn: Turn | None = None

    def check_in(self, population: str, traffic: Traffic) -> server_pb2.CheckInResponse:
        """As ``Services``, later by the device's network."""
        return self._timed(traffic, lambda: super(SimulatedServices, self).check_in(population, traffic))

    def select(
        self, address: str, request: distributor_pb2.SelectRequest, traffic: Traffic
    ) -> distributor_pb2.SelectResponse:
        """As ``Services``, later by the device's network."""
        return self._timed(traffic, lambda: super(SimulatedServices, self).select(address, request, traffic))

    def submit(
        self, address: str, request: aggregator_pb2.SubmitRequest, traffic: Traffic
    ) -> aggregator_pb2.SubmitResponse:
        """As ``Services``; or not at all, twice, as something else, or with its answer lost."""
        if (turn := self.turn) is None:
            return super().submit(address, request, traffic)
        turn.at(Point.PREPARED)
        behaviour = turn.act.behaviour
        sent = aggregator_pb2.SubmitRequest()
        sent.CopyFrom(request)
        if behaviour == "malformed":
            turn.inject("malformed")
            sent.sealed_contribution = bytes(len(request.sealed_contribution))
        elif behaviour == "wrong_round":
            turn.inject("wrong_round")
            sent.round += 1
        reply = self._timed(traffic, lambda: super(SimulatedServices, self).submit(address, sent, traffic))
        turn.at(Point.ANSWERED)
        self._answered(
            turn, lambda: self._timed(traffic, lambda: super(SimulatedServices, self).submit(address, sent, traffic))
        )
        return reply

    def report(self, request: local_pb2.ReportRequest, traffic: Traffic) -> local_pb2.ReportResponse:
        """As ``Services``; or not at all, twice, as something else, or with its answer lost."""
        if (turn := self.turn) is None:
            return super().report(request, traffic)
        turn.at(Point.PREPARED)
        sent = local_pb2.ReportRequest()
        sent.CopyFrom(request)
        if turn.act.behaviour == "malformed":
            turn.inject("malformed")
            sent.report = request.report + b"\0"
        reply = self._timed(traffic, lambda: super(SimulatedServices, self).report(sent, traffic))
        turn.at(Point.ANSWERED)
        self._answered(turn, lambda: self._timed(traffic, lambda: super(SimulatedServices, self).report(sent, traffic)))
        return reply

    def draw(self, task_sha256: bytes, traffic: Traffic) -> bytes:
        """As ``Services``, later by the device's network."""
        return self._timed(traffic, lambda: super(SimulatedServices, self).draw(task_sha256, traffic))

    def _answered(
        self, turn: Turn, again: Callable[[], aggregator_pb2.SubmitResponse | local_pb2.ReportResponse]
    ) -> None:
        """What happens after an answer came. Raises ServiceUnavailable where it is to be lost."""
        if turn.act.behaviour == "replayed" and turn.happens("replayed"):
            turn.say("replayed")
            answer = _name(again().refusal)
            turn.journal.replay(turn.device, turn.round, "replayed", answer)
            turn.log.event(
                "replay_answered", injected=_INJECTED, device=turn.device, round=turn.round, refusal=answer
            )  # fmt: skip
        if turn.act.lost_answer and turn.happens("lost_answer"):
            turn.inject("lost_answer")
            raise AnswerLost("injected: the answer was lost on its way")

    def _timed(self, traffic: Traffic, call: Callable[[], Reply]) -> Reply:
        up, down = traffic.up, traffic.down
        try:
            return call()
        finally:
            if self.turn is not None:
                self.turn.travelled(traffic.up - up, traffic.down - down)


@dataclasses.dataclass(frozen=True)
class SimulatedClient:
    """An algorithm's client on the device whose turn it is: it may die computing, or make up what it contributes."""

    client: Client
    turn: Turn

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        self.client.check_model(dense)

    def empty(self, round: int) -> bytes:
        """As ``Client``; of a device that makes up what it contributes, and would not send it otherwise, that."""
        payload = self.client.empty(round)
        return self.turn.out_of_bounds(payload) if self.turn.act.behaviour == "out_of_bounds" else payload

    def keys(self, data: LocalData, *, round: int, seed: int) -> Int64Array:
        return self.client.keys(data, round=round, seed=seed)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """As ``Client``, but for the faults."""
        self.turn.at(Point.COMPUTING)
        payload, local = self.client.contribute(slices, data, round=round, seed=seed)
        if self.turn.act.behaviour == "out_of_bounds":
            self.turn.inject("out_of_bounds")
            payload = self.turn.out_of_bounds(payload)
        return payload, local


class SimulatedReporter:
    """An algorithm of local trust on the device whose turn it is, as ``SimulatedClient``."""

    def __init__(self, algorithm: LocalReporter, turn: Turn) -> None:
        self._algorithm, self._turn = algorithm, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def report(self, drawn_row: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        """As ``LocalReporter``, but for the faults."""
        turn = self._turn
        if turn.act.drop_out is not None:
            # A report that was prepared today would be sent tomorrow: whoever drops out does it before.
            turn.at(turn.act.drop_out)
        turn.at(Point.COMPUTING)
        report = self._algorithm.report(drawn_row, data, source=source)
        if turn.act.behaviour == "out_of_bounds":
            turn.inject("out_of_bounds")
            report = turn.out_of_bounds(report)
        return report


def local_work_of(turn: Turn, work: LocalWork) -> LocalWork:
    """``work`` with the algorithm on the device whose turn it is."""
    return dataclasses.replace(work, algorithm=cast("LocalReporter", SimulatedReporter(work.algorithm, turn)))


def work_of(turn: Turn, work: Work) -> Work:
    """``work`` with the client of the device whose turn it is."""
    model = dataclasses.replace(work.model, client=SimulatedClient(work.model.client, turn))
    return dataclasses.replace(work, model=model)


def _name(refusal: int) -> str:
    """Of an aggregator's answer; a replay that was counted again would be ``unspecified``."""
    return aggregator_pb2.Refusal.Name(refusal).removeprefix("REFUSAL_").lower()


_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class Outage:
    """Services that do not answer: one line, growing pauses, and another line when they do.

    Args:
      most_seconds: after which they are given up.
    """

    def __init__(
        self, log: Log, stop: threading.Event, *, most_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._stop, self._most, self._monotonic = log, stop, most_seconds, monotonic
        self._failures, self._since = 0, 0.0

    def wait(self, error: ServiceUnavailable) -> None:
        """Waits before the next attempt. Raises ServiceError after too long a time."""
        if not self._failures:
            self._since = self._monotonic()
            self._log.warning("outage", reason=str(error))
        elif self._monotonic() - self._since > self._most:
            raise ServiceError(f"a service did not answer for {self._most:.0f} s: {error}") from error
        self._failures += 1
        self._stop.wait(pause_after(self._failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))

    def over(self) -> None:
        """Notes an answer."""
        if self._failures:
            self._failures = 0
            self._log.event("outage_over")

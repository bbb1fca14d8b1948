"""What a device host does, how it measures time, and when it ends by itself.

It ends once its time is over, or once all its devices rest and waiting cannot help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

import grpc

from device_runtime.network.services import Services
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.local_assignment import LocalWork
from odp.algorithms.predicting import PredictingClient
from odp.errors import NotNow, ServiceError
from odp.signed.task import open_manifest
from odp.v1 import server_pb2

#: A host that has to end with its task ends with an error once all its devices have rested for this time.
RESTING_SECONDS = 3600.0


class Ending:
    """The time limit of one host. Only the host's own thread may call it, except for ``rests``.

    Args:
      until_finished: the host has to end with its task: an earlier end is an error.
      end_after: seconds that the host has; None: no limit but ``RESTING_SECONDS`` while all devices rest.
      clock: seconds that only grow.
    """

    def __init__(self, *, until_finished: bool, end_after: float | None, clock: Callable[[], float]) -> None:
        self._until_finished, self._end_after, self._clock = until_finished, end_after, clock
        self._started = clock()
        self._resting_since: float | None = None
        self._reason: NotNow | None = None

    def rests(self, error: NotNow) -> None:
        """Records why a device rests."""
        self._reason = error

    def all_rest(self, resting: bool) -> None:
        """Records whether all devices rest now."""
        if not resting:
            self._resting_since = None
        elif self._resting_since is None:
            self._resting_since = self._clock()

    def left(self, pause: float) -> float:
        """``pause``, but at most the rest of the host's time."""
        if self._end_after is None:
            return pause
        return min(pause, max(self._started + self._end_after - self._clock(), 0.0))

    def is_over(self) -> bool:
        """Whether the host ends now. Raises NotNow, with the devices' reasons, if it has to end with its task."""
        now = self._clock()
        if self._end_after is not None:
            over = now - self._started >= self._end_after
        else:
            resting = 0.0 if self._resting_since is None else now - self._resting_since
            over = self._until_finished and resting >= RESTING_SECONDS
        if not over or not self._until_finished:
            return over
        failure = f"not finished after {now - self._started:.0f} s"
        if self._resting_since is None or self._reason is None:
            raise NotNow(failure)
        raise NotNow(f"{failure}: all devices rest: {self._reason}", *self._reason.names)


def require_finished(services: Services, last: Work | LocalWork | None, population: str, *, quiet: float) -> None:
    """Returns if the server has the model of the last round. Raises NotNow where no round came, or not the last.

    ``quiet``: seconds without an open round.
    """
    if last is None:
        raise NotNow(
            f"not finished: no round of population {population!r} was open for {quiet:.0f} s: it "
            "has no task, or its task is over; submit one, or check --population and --server"
        )
    if isinstance(last, LocalWork):
        return
    model = last.model
    try:
        offer = services.newest_model(population, of_examples=isinstance(model.client, PredictingClient))
    except ServiceError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        offer = server_pb2.GetModelResponse()
    # Of another task its manifest says nothing; of this one the host may have missed the last round.
    if offer.task == model.signed_task:
        key = model.definition.developer_key
        if open_manifest(offer.model, task=offer.task, developer_key=key).version == model.rounds:
            return
    raise NotNow(
        f"not finished: round {last.round} of {model.rounds} of task {model.definition.name!r} was the last "
        f"that was open, {quiet:.0f} s ago; it was cancelled, or failed: ask its developer"
    )


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What a fleet does.

    Attributes:
      population: what the devices check in for.
      devices: their numbers in the state folder.
      durable: whether what a device sent survives a power cut (see ``Store.open``).
      until_finished: return once the task that was seen has no round left.
      keep_running: go on where a service's certificate or evidence is refused again and again, instead of ending.
      end_after: seconds after which ``run`` returns, or raises where it was to end with its task; 0 is one look at what
        the server offers.
      most_contributions: return after that many.
    """

    population: str
    devices: range
    durable: bool = True
    until_finished: bool = False
    keep_running: bool = False
    end_after: float | None = None
    most_contributions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How a fleet measures and spends time.

    Attributes:
      clock: seconds that only grow.
      wait: sleeps for some seconds and returns True when the fleet is to stop; None waits for its ``stop``.
      uniform: a random number between two bounds, for retry windows.
    """

    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], bool] | None = None
    uniform: Callable[[float, float], float] = SystemRandom().uniform

"""The stored parts of a session: what its host needs to go on with it after a restart.

A part is on the disk before any client hears of what it holds: the clients of the session, the messages of a stage that
is over, the sum of the vectors with the list of who is in it. So the survivors that clients are told are those that a
restarted host tells them; what a stage had before its end is not stored, and clients send it again. Of the last step,
each client's shares are a part of their own: a client that was told that it is done does not come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from odp.errors import StateError
from odp.v1 import secagg_state_pb2
from trusted_aggregator.rounds.host_half import Key


class Parts(Protocol):
    """The part of ``trusted_aggregator.host.storage.Storage`` that sessions are stored in."""

    def add_part(self, task_sha256: bytes, round: int, data: bytes) -> None: ...

    def parts(self, task_sha256: bytes, round: int) -> list[bytes]: ...

    def erase(self, task_sha256: bytes, round: int) -> None: ...


class Journal:
    """The parts of one attempt of one round.

    Args:
        parts: where they are stored.
        key: the round.
        attempt: the session's number; parts of other attempts do not count.
        wall: seconds since the epoch, which go on while the host is down.
    """

    def __init__(self, parts: Parts, key: Key, attempt: int, *, wall: Callable[[], float] = time.time) -> None:
        self._parts, self._key, self._attempt, self._wall = parts, key, attempt, wall

    def add(self, seconds: float, **step: Any) -> None:
        """Stores one part; the stage that follows ends in ``seconds``. Raises StateError."""
        part = secagg_state_pb2.SecAggPart(attempt=self._attempt, deadline=self._wall() + seconds, **step)
        self._parts.add_part(*self._key, part.SerializeToString())

    def stored(self) -> list[secagg_state_pb2.SecAggPart]:
        """The parts of this attempt, in order. Raises StateError where one cannot be read."""
        try:
            parts = [secagg_state_pb2.SecAggPart.FromString(data) for data in self._parts.parts(*self._key)]
        except DecodeError as error:
            raise StateError(f"a stored session of round {self._key[1]} is damaged") from error
        return [part for part in parts if part.attempt == self._attempt]

    def seconds_left(self, part: secagg_state_pb2.SecAggPart) -> float:
        """Seconds until the stage after ``part`` ends; negative where that has passed."""
        return part.deadline - self._wall()

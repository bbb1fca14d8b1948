"""What a server's answer to a check-in offers a device."""

from __future__ import annotations

import hashlib

from device_runtime.tasks.assignment import Work, open_assignment
from device_runtime.tasks.local_assignment import LocalWork, open_local_assignment
from odp._system.recent import Recent
from odp.errors import ServiceError
from odp.models.litert.trainer import ProgramTrainer
from odp.refusing import refusing
from odp.v1 import server_pb2

# What a round hands to every device is one assignment: a few of them cover the rounds that are open at once.
_MOST_REMEMBERED = 16


class AnswerReader:
    """Opens answers to check-ins, with a cache for equal bytes; thread-safe.

    Args:
      population: what the devices check in for.
      trainer: runs programs of developers, if there is one.
    """

    def __init__(self, population: str, *, trainer: ProgramTrainer | None = None) -> None:
        self._population, self._trainer = population, trainer
        self._works: Recent[bytes, Work | LocalWork] = Recent(_MOST_REMEMBERED)

    @refusing("answer of the server")
    def open(self, answer: server_pb2.CheckInResponse) -> Work | LocalWork | None:
        """The checked work of an answer, or None for a retry window.

        Raises:
          ServiceError: the answer is empty. Else as ``open_assignment`` and ``open_local_assignment``.
        """
        match answer.WhichOneof("answer"):
            case "retry":
                return None
            case None:
                raise ServiceError("the server answered a check-in with nothing; is it of another version?")
        digest = hashlib.sha256(answer.SerializeToString(deterministic=True)).digest()
        return self._works.get_or_make(digest, lambda: self._opened(answer))

    def _opened(self, answer: server_pb2.CheckInResponse) -> Work | LocalWork:
        if answer.HasField("local"):
            return open_local_assignment(answer.local, population=self._population)
        return open_assignment(answer.assignment, population=self._population, trainer=self._trainer)

"""How long a device's contribution to a task takes, and where it is computed: what its signed definition says."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from odp.algorithms.computing_time import SAFETY, fixed_seconds, keys_seconds, worst_case_bytes, worst_case_seconds
from odp.algorithms.registry import algorithm_for
from odp.protocol.terms import STEPS
from odp.v1 import common_pb2

# What needs more memory computes in a process of its own.
_BYTES_HERE = 2**26


class Place(enum.Enum):
    """Where a contribution is computed."""

    #: In a thread, where the worst case is short and small.
    HERE = "here"
    #: In a process that is stopped when its time is over, and has a limit of memory.
    PROCESS = "process"


@dataclass(frozen=True, kw_only=True)
class ComputingTerms:
    """What a task's signed definition says of one device's contribution.

    Attributes:
      seconds: from the first read to the upload; where rows are asked for by key, from the rows of the model.
      keys_seconds: from the first read to the keys; 0 where none are asked for.
      worst_seconds: of computing, on a device of the reference speed.
      worst_bytes: of memory.
      place: where it is computed.
    """

    seconds: float
    keys_seconds: float
    worst_seconds: float
    worst_bytes: float
    place: Place

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> ComputingTerms:
        """Of a checked definition."""
        worst_seconds, worst_bytes = worst_case_seconds(definition), worst_case_bytes(definition)
        large = worst_seconds > STEPS[0] / SAFETY or worst_bytes > _BYTES_HERE
        keyed = algorithm_for(definition).rows_per_request is not None
        return cls(
            seconds=fixed_seconds(definition),
            keys_seconds=keys_seconds(definition) if keyed else 0.0,
            worst_seconds=worst_seconds,
            worst_bytes=worst_bytes,
            place=Place.PROCESS if large else Place.HERE,
        )

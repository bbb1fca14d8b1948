"""What enclave and host say to each other of rounds and contributions, on either side of the socket."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from odp.errors import Refusal
from odp.v1 import aggregator_pb2


class Status(enum.Enum):
    """Where a round stands; a later state never goes back. The numbers are those of ``odp.v1.RoundState.Status``."""

    OPEN = 10
    CHARGED = 30
    SEALED = 40
    RELEASED = 50
    VOID = 90


class Refused(NamedTuple):
    """Why a contribution was refused. ``signature`` states that it can never count; it is empty if it might."""

    refusal: Refusal
    signature: bytes = b""


class Submit(NamedTuple):
    """A sealed contribution on its way to the enclave. ``host_sha256`` is of the part that stays with the host.

    A ``SubmitRequest`` says the same, but copies the contribution at each access, and those may be long.
    """

    task_sha256: bytes
    round: int
    sealed_contribution: bytes
    host_sha256: bytes = b""


Sealed = Submit | aggregator_pb2.SubmitRequest


@dataclass(frozen=True)
class HostSum:
    """The host's part of a charged round, handed in once: its sum, and the name of the set that it summed.

    ``sum`` is integers, little-endian, as the round's mode of aggregation has them.
    """

    sum: bytes
    set_sha256: bytes


@dataclass(frozen=True)
class RoundState:
    """The public facts about a round (metadata, rule P3)."""

    task_sha256: bytes
    round: int
    status: Status
    contributions: int

"""What enclave and host say to each other of rounds and contributions, on either side of the socket.

Orders are a developer's; where a round or task cannot follow one, the error says why.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from odp.crypto import domains
from odp.crypto.signing import verify
from odp.errors import ConfigurationError, PrivacyError, Refusal
from odp.signed.task import parse_known
from odp.v1 import aggregator_pb2, population_pb2

_LARGEST_ORDER = 256


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


class SealedContribution(NamedTuple):
    """A contribution on its way from the host's listener to the enclave and to the store.

    A ``SubmitRequest`` says the same, but copies ``sealed`` at each access, and that may be long.

    Attributes:
        sealed: what the enclave opens.
        host_sha256: SHA-256 of ``host_part``; empty if there is none.
        host_part: what is stored beside it, and never goes to the enclave.
    """

    task_sha256: bytes
    round: int
    sealed: bytes
    host_sha256: bytes = b""
    host_part: bytes | None = None

    @property
    def stored(self) -> bytes:
        """What the host stores, and brings back after a restart."""
        return self.sealed + self.host_sha256


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


def parse_order(order: bytes) -> aggregator_pb2.RoundOrder:
    """The order. Raises ConfigurationError."""
    if len(order) > _LARGEST_ORDER:
        raise ConfigurationError(f"Expected a round order of at most {_LARGEST_ORDER} bytes, got {len(order)}")
    try:
        parsed = aggregator_pb2.RoundOrder.FromString(order)
    except DecodeError as error:
        raise ConfigurationError("the round order is not a valid message") from error
    return parsed


def ordered(order: bytes) -> tuple[bytes, int]:
    """(task, round) that an order names. Raises ConfigurationError."""
    parsed = parse_order(order)
    return parsed.task_sha256, parsed.round


def require_same_model(round: int, model_sha256: bytes, order: aggregator_pb2.RoundOrder) -> None:
    """Raises PrivacyError where the round was opened for another model."""
    if model_sha256 != order.model_sha256:
        raise PrivacyError(f"round {round} is bound to another model: its contributions were made for that one")


def open_abandon_order(order: bytes, *, task_sha256: bytes, signature: population_pb2.CharterSignature) -> None:
    """Returns if ``order`` ends this task under a valid signature; the caller checks whose key it is.

    Raises SignatureError, ConfigurationError.
    """
    if len(order) > _LARGEST_ORDER:
        raise ConfigurationError(f"Expected an order of at most {_LARGEST_ORDER} bytes, got {len(order)}")
    verify(signature.key, signature.signature, domains.ABANDON, order)
    parsed = parse_known(population_pb2.AbandonOrder(), order, "order that ends a task")
    if parsed.task_sha256 != task_sha256:
        raise ConfigurationError("the order ends another task than the one beside it")


def void(round: int) -> PrivacyError:
    """The error for a charged round that has nothing to release."""
    return PrivacyError(
        f"round {round} is void: the charged contributions are no longer stored; its charge stays, submit a new task"
    )


def not_open(round: int) -> ConfigurationError:
    """The error for an order about a round that is not open."""
    return ConfigurationError(f"round {round} of that task is not open here; open it first")

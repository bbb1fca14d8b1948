"""The orders of a task's developer, and what is said of a round that cannot follow one."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.v1 import aggregator_pb2
from trusted_aggregator.rounds import Round

_LARGEST_ORDER = 256


def parse_order(order: bytes) -> aggregator_pb2.RoundOrder:
    """Raises ConfigurationError."""
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


def require_same_model(found: Round, order: aggregator_pb2.RoundOrder) -> None:
    """Raises PrivacyError where the round was opened for another model."""
    if found.model_sha256 != order.model_sha256:
        raise PrivacyError(f"round {found.number} is bound to another model: its contributions were made for that one")


def void(found: Round) -> PrivacyError:
    """Of a round whose charge has nothing that it could release."""
    return PrivacyError(
        f"round {found.number} is void: what was charged is no longer stored; its charge stays, submit a new task"
    )


def no_charge(found: Round) -> StateError:
    """Of a round that was charged, by a ledger that does not know it."""
    return StateError(f"the ledger lacks the charge of round {found.number}; restore the newest state folder")

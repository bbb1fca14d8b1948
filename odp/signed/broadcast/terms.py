"""The method by which the devices of a task get the rows of its model: signed with the task, equal for all."""

from __future__ import annotations

from odp.algorithms.registry import algorithm_for
from odp.crypto.public_keys import require_x25519
from odp.errors import ConfigurationError
from odp.v1 import broadcast_pb2, common_pb2

AUTO, ALL, ENCLAVE, PIR = "auto", "all", "enclave", "pir"
METHODS = (AUTO, ALL, ENCLAVE, PIR)
#: Most rows of one request to two parties (``odp.crypto.pir.shape``).
MOST_PIR_KEYS = 512

#: Method -> its number in the signed task; those that are missing are never in one.
WIRE_METHODS = {
    ENCLAVE: broadcast_pb2.BroadcastTerms.METHOD_UNSPECIFIED,
    ALL: broadcast_pb2.BroadcastTerms.METHOD_ALL,
    PIR: broadcast_pb2.BroadcastTerms.METHOD_PIR,
}


def method_of(definition: common_pb2.TaskDefinition) -> str:
    """ENCLAVE, ALL or PIR: the method in a checked definition."""
    return next(name for name, number in WIRE_METHODS.items() if number == definition.broadcast.method)


def check_broadcast(definition: common_pb2.TaskDefinition) -> None:
    """Raises ConfigurationError unless this version can follow the terms."""
    if not definition.HasField("broadcast"):
        return
    terms = definition.broadcast
    slices = algorithm_for(definition).rows_per_request
    if slices is None:
        raise ConfigurationError("Expected no broadcast terms in a task whose devices fetch no rows")
    if terms.method not in WIRE_METHODS.values():
        raise ConfigurationError(f"Expected broadcast.method={terms.method} to be a method that this version knows")
    wanted = terms.method == broadcast_pb2.BroadcastTerms.METHOD_PIR
    if wanted and not 1 <= slices <= MOST_PIR_KEYS:
        raise ConfigurationError(
            f"Expected slices_per_device={slices} to be at most {MOST_PIR_KEYS} with method='pir'; lower it, or "
            "max_items_per_user"
        )
    if wanted:
        require_x25519(terms.helper_key, name="broadcast.helper_key")
    elif terms.helper_key:
        raise ConfigurationError("Expected no broadcast.helper_key: this method uses no helper")

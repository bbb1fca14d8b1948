"""The numbers of sessions of rounds that a hand-over ended: they outlive the round, and go along to the successor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.v1 import aggregator_pb2

#: A GetHandOversResponse with the number of the next session of each.
ATTEMPTS = "session-attempts"


def read_attempts(state: StateFolder) -> Sequence[aggregator_pb2.UsedAttempts]:
    """The number of the next session of each round. Raises StateError."""
    try:
        return aggregator_pb2.GetHandOversResponse.FromString(state.read(ATTEMPTS) or b"").attempts
    except DecodeError:
        raise StateError(f"{state.path(ATTEMPTS)} is damaged: restore the state folder") from None


def write_attempts(state: StateFolder, attempts: Iterable[aggregator_pb2.UsedAttempts]) -> None:
    """Keeps them in the place of earlier ones. Raises StateError."""
    reply = aggregator_pb2.GetHandOversResponse(attempts=attempts)
    state.write_atomically(ATTEMPTS, reply.SerializeToString(deterministic=True))

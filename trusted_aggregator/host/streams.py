"""Reads a sealed contribution from a stream into memory, at most the round's exact length."""

from __future__ import annotations

from collections.abc import Iterator

from odp.errors import ConfigurationError, Refusal
from odp.transport.channel import CHUNK_BYTES
from odp.v1 import aggregator_pb2

Requests = Iterator[aggregator_pb2.SubmitStreamRequest]


def read_header(requests: Requests) -> aggregator_pb2.SubmitHeader:
    """The first message of a stream. Raises ConfigurationError if it is no header, or missing."""
    first = next(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise ConfigurationError("the first message of a submit stream must be its header")
    return first.header


def read_sealed(requests: Requests, length: int) -> bytes | Refusal:
    """The sealed bytes, if they are exactly ``length``; stops reading a longer stream.

    A stream that is cut looks like one that ended early: both are MALFORMED, and nothing of them is kept.

    Raises:
      ConfigurationError: a chunk is empty or above 1 MiB, or a message holds something else.
    """
    chunks: list[bytes] = []
    received = 0
    for request in requests:
        chunk = request.chunk  # each access copies it
        if request.WhichOneof("part") != "chunk" or not 0 < len(chunk) <= CHUNK_BYTES:
            raise ConfigurationError(f"Expected chunks of 1 to {CHUNK_BYTES} bytes after the submit header")
        received += len(chunk)
        if received > length:
            return Refusal.MALFORMED
        chunks.append(chunk)
    return b"".join(chunks) if received == length else Refusal.MALFORMED

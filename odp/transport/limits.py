"""The limits of one listener: memory, threads, and waiting times of callers.

A call goes through three stages. While its request is *received* it costs a few kilobytes and no thread. Then it is
*queued*, with its request in memory, until a worker thread is free, which *works* on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from odp import _validate
from odp._system.posix import resource
from odp.errors import ConfigurationError
from odp.transport.channel import LONG_DEADLINE, MAX_REPLY_BYTES, MAX_REQUEST_BYTES

_MILLISECONDS = 1000
_MOST_RECEIVING = 256
_MOST_PENDING = 4096
#: What a caller can send of a request before anybody reads it, whatever its bandwidth.
AHEAD_BYTES = 2**14
#: What all calls of a connection can send together before one of them is read (RFC 9113, section 6.9.2).
FIRST_WINDOW_BYTES = 2**16
_READ_BYTES = 2**16
# A program has at most two listeners, and its files and databases need descriptors too: each listener takes this share.
_SHARE_OF_DESCRIPTORS = 0.25


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a listener, in seconds, bytes and counts.

    Attributes:
      request_bytes: A request, or a message of a stream, has at most this size.
      receiving_bytes: Requests on their way have at most this size together. It decides ``receiving``, the number of
        them, which is at most 256. Beyond it the connection with the most of them loses its oldest.
      receiving_per_connection: Of these, a connection may take this number from others; its further
        calls wait for a free one.
      arrived: Calls that wait for a place to be received in. Beyond it the connection with the most loses its newest.
      queued: Calls that wait for a worker. Beyond it the connection with the most of them loses its newest.
      queued_bytes: Requests that wait for a worker, and those that are worked on, have at most this size together.
      share_of_address: Connections of one address have at most this share of the calls that are received or queued, and
        of all connections. An IPv6 /64 counts as one address, here and below.
      message_seconds: The caller sends its next message, or reads the next reply of a stream, within this time.
      queue_seconds: Maximum wait of a call for a place, and again for a worker.
      call_seconds: Maximum duration of a call, whatever deadline its caller set.
      streams: Calls at once on one connection; a caller's further ones wait on its side.
      connections: Connections at once, and no more than a quarter of the file descriptors that the process may open.
      new_connections: Of these, connections without an answered call; beyond it the address with the most of them
        loses its oldest.
      unasked_bytes: A connection may send this beyond what its calls explain: its handshake, settings and pings. One
        that sends more is ended.
      unasked_all_bytes: The same of all new connections together; beyond it those with the most are ended.
      unasked_memory_bytes: What the program's memory may grow by while connections send such bytes, which gRPC may keep
        at a hundred times their size. Beyond it, those with the most of them are ended, new or not.
      penalty_seconds: For each connection so ended, its address can open none for this time, times the number of such
        addresses, and longer each time that it goes on; 0 for never.
      handshake_seconds: TLS is agreed on within this time.
      idle_seconds: A connection without calls is closed after this time.
      age_seconds: Time for which a connection takes new calls; its callers reconnect by themselves.
      metadata_bytes: The metadata of one call.

    Raises:
      ConfigurationError: a number is out of its range.
    """

    request_bytes: int = MAX_REQUEST_BYTES
    receiving_bytes: int = 256 * 2**20
    receiving_per_connection: int = 2
    arrived: int = 1024
    queued: int = 512
    queued_bytes: int = 32 * 2**20
    share_of_address: float = 0.75
    message_seconds: float = 10.0
    queue_seconds: float = 10.0
    call_seconds: float = LONG_DEADLINE
    streams: int = 64
    connections: int = 2048
    new_connections: int = 512
    unasked_bytes: int = 2**15
    unasked_all_bytes: int = 16 * 2**20
    unasked_memory_bytes: int = 32 * 2**20
    penalty_seconds: float = 0.1
    handshake_seconds: float = 10.0
    idle_seconds: float = 300.0
    age_seconds: float = 3600.0
    metadata_bytes: int = 8192

    def __post_init__(self) -> None:
        _validate.integer(
            low=1,
            high=2**16,
            receiving_per_connection=self.receiving_per_connection,
            arrived=self.arrived,
            queued=self.queued,
            streams=self.streams,
        )
        _validate.integer(low=1024, high=2**30, request_bytes=self.request_bytes)
        _validate.integer(
            low=self.request_bytes, high=2**40, receiving_bytes=self.receiving_bytes, queued_bytes=self.queued_bytes
        )
        _validate.integer(low=1, high=2**20, connections=self.connections, new_connections=self.new_connections)
        _validate.integer(
            low=2**14,
            high=2**40,
            unasked_bytes=self.unasked_bytes,
            unasked_all_bytes=self.unasked_all_bytes,
            unasked_memory_bytes=self.unasked_memory_bytes,
        )
        _validate.within(low=0.0, high=60.0, penalty_seconds=self.penalty_seconds)
        _validate.integer(low=1024, high=2**20, metadata_bytes=self.metadata_bytes)
        _validate.within(low=0.01, high=1.0, share_of_address=self.share_of_address)
        _validate.within(
            low=0.05,
            high=86_400.0,
            message_seconds=self.message_seconds,
            queue_seconds=self.queue_seconds,
            call_seconds=self.call_seconds,
            handshake_seconds=self.handshake_seconds,
            idle_seconds=self.idle_seconds,
            age_seconds=self.age_seconds,
        )

    @property
    def receiving(self) -> int:
        """Maximum number of calls whose request, or first message, is being received."""
        return min(_MOST_RECEIVING, self.receiving_bytes // self.request_bytes)

    def changed(self, settings: Sequence[str]) -> Limits:
        """These limits with ``NAME=VALUE`` settings. Raises ConfigurationError for an unknown name or a bad value."""
        values: dict[str, float] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            _validate.known_keys([name], [field.name for field in dataclasses.fields(self)], where="--limit")
            try:
                values[name] = type(getattr(self, name))(text)
            except ValueError:
                raise ConfigurationError(f"Expected --limit {name}={text!r} to be a number") from None
        return dataclasses.replace(self, **values)  # type: ignore[arg-type]  # each value has its field's own type

    def of_address(self, places: int) -> int:
        """Maximum number of ``places`` for one address."""
        return max(1, int(self.share_of_address * places))

    def most_connections(self) -> int:
        """``connections``, or fewer where the process may open few descriptors."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            return self.connections
        return min(self.connections, max(1, int(_SHARE_OF_DESCRIPTORS * descriptors)))

    @property
    def ahead_bytes(self) -> int:
        """Maximum bytes of calls that a connection has sent and the listener has not begun."""
        return self.streams * (AHEAD_BYTES + self.metadata_bytes)

    def channel_arguments(self) -> list[tuple[str, int]]:
        """The limits that gRPC itself enforces, as its channel arguments."""
        return [
            ("grpc.max_receive_message_length", self.request_bytes),
            ("grpc.max_send_message_length", MAX_REPLY_BYTES),
            # Two programs on one port would each get half of the connections: the second must fail instead.
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", self.streams),
            ("grpc.max_allowed_incoming_connections", self.most_connections()),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_seconds)),
            ("grpc.max_connection_idle_ms", _ms(self.idle_seconds)),
            ("grpc.max_connection_age_ms", _ms(self.age_seconds)),
            ("grpc.max_connection_age_grace_ms", _ms(self.call_seconds)),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes),
            ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
            ("grpc.http2.bdp_probe", 0),
            # What gRPC reads of a connection at once; without it that grows with the speed of the caller.
            ("grpc.experimental.tcp_max_read_buffer_size", _READ_BYTES),
            # Until a caller has acknowledged the limits, gRPC does not apply them.
            ("grpc.http2.settings_timeout", _ms(self.handshake_seconds)),
            # Calls that the event loop has not looked at yet: gRPC drops more of them the more there are.
            ("grpc.server.max_pending_requests", _MOST_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", 2 * _MOST_PENDING),
            ("grpc.server_max_unrequested_time_in_server", max(1, int(self.message_seconds))),
            # A peer that is gone without a word is noticed; one that pings more often than our clients do is cut off.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 12_000),
            ("grpc.http2.max_ping_strikes", 2),
        ]


def _ms(seconds: float) -> int:
    return int(_MILLISECONDS * seconds)

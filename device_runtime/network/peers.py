"""One channel per address that a device talks to, opened on first use, and only to addresses that its person allows."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from device_runtime.network.addresses import SERVER, PinnedAddresses
from odp.transport.channel import connect
from odp.transport.tls import read_ca
from odp.v1 import (
    aggregator_pb2_grpc,
    attestation_pb2_grpc,
    catalogue_pb2_grpc,
    distributor_pb2_grpc,
    enrolment_pb2_grpc,
    local_pb2_grpc,
    log_pb2_grpc,
    retrieval_pb2_grpc,
    secagg_service_pb2_grpc,
    server_pb2_grpc,
    table_pb2_grpc,
)

#: Seconds until a name is resolved again: its service may have moved.
_NAME_SECONDS = 300.0
#: Seconds after which a replaced channel is closed: more than any call on it takes.
_CALL_SECONDS = 3600.0


class Peer:
    """The stubs of one address, the addresses that its name resolved to, and the time until which these count as
    current.
    """

    def __init__(self, channel: grpc.Channel, targets: tuple[str, ...], until: float) -> None:
        self.channel, self.targets, self.until = channel, targets, until
        self.attestation = attestation_pb2_grpc.AttestationServiceStub(channel)
        self.distributor = distributor_pb2_grpc.DistributorServiceStub(channel)
        self.retrieval = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        self.aggregator = aggregator_pb2_grpc.AggregatorServiceStub(channel)
        self.secagg = secagg_service_pb2_grpc.SecureAggregationServiceStub(channel)
        self.server = server_pb2_grpc.ServerServiceStub(channel)
        self.local = local_pb2_grpc.LocalServiceStub(channel)
        self.log = log_pb2_grpc.LogServiceStub(channel)
        self.catalogue = catalogue_pb2_grpc.CatalogueServiceStub(channel)
        self.table = table_pb2_grpc.TableServiceStub(channel)
        self.enrolment = enrolment_pb2_grpc.EnrolmentServiceStub(channel)


class Peers:
    """The channels of a process; thread-safe, closed once.

    Args:
      ca: PEM file (or its bytes) of the authority that all services' certificates descend from.
      pinned: where the other services may be.
      monotonic: seconds that only grow.

    Raises:
      ConfigurationError: the file is missing or no certificate.
    """

    def __init__(
        self,
        ca: Path | bytes,
        pinned: PinnedAddresses,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pinned = pinned
        self._ca = ca if isinstance(ca, bytes) else read_ca(ca)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        # With the time when each was replaced, oldest first.
        self._replaced: list[tuple[float, grpc.Channel]] = []

    def at(self, role: str, address: str) -> Peer:
        """The service of ``role`` at ``address``.

        Raises:
          AddressRefused: it is not pinned there, or its name leads to an address that the person did not allow.
          ServiceUnavailable: its name has no address.
        """
        if role != SERVER:
            self.pinned.require(role, address)
        with self._lock:
            current = self._peers.get(address)
        if current is not None and (not current.targets or self._monotonic() < current.until):
            return current
        # In one order: names with several addresses give them in turn.
        targets = tuple(sorted(self.pinned.targets(address)))
        now = self._monotonic()
        until = now + _NAME_SECONDS
        with self._lock:
            self._close_replaced(before=now - _CALL_SECONDS)
            current = self._peers.get(address)
            if current is None or current.targets != targets:
                channel = connect(address, self._ca, targets=targets)
                if current is not None:
                    # Calls may be under way on it.
                    self._replaced.append((now, current.channel))
            else:
                channel = current.channel
            peer = self._peers[address] = Peer(channel, targets, until)
            return peer

    def close(self) -> None:
        """Closes all channels; calls in flight end with ServiceUnavailable."""
        with self._lock:
            channels = [peer.channel for peer in self._peers.values()]
            self._peers = {}
            self._close_replaced(before=math.inf)
        for channel in channels:
            channel.close()

    def _close_replaced(self, *, before: float) -> None:
        while self._replaced and self._replaced[0][0] < before:
            self._replaced.pop(0)[1].close()

"""Where a device connects: only to addresses that its person pinned, whatever a server names.

An untrusted server tells a device where distributor and aggregator are. Left alone, it could have every device of a
population connect wherever it likes: to a victim, or to what only the device can reach, such as its router. So:

- The person pins ``host:port`` per role, in the reference values (``odp up`` writes its own there). What a server names
  is compared as it is written, before any connection; the server's own address is the person's own word.
- A name is resolved here, once, and its addresses are checked; the channel gets these addresses and not the name, so
  that nothing resolves it a second time to something else. The certificate still has to be the name's.
- Private, loopback, link-local, multicast and other addresses that are not global need the person's word: by pinning
  such an address itself, or ``localhost``, or for names by ``--allow-private-addresses``.

``Peers`` has one channel per address that a device talks to, opened on first use.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from odp.errors import AddressRefused, ServiceUnavailable
from odp.transport.channel import connect, parse_addresses
from odp.transport.tls import read_ca
from odp.trust.enclave.reference_values import ReferenceValues
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

SERVER = "server"
#: A resolver that answers later than this is down.
_RESOLVE_SECONDS = 10.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: As ``socket.getaddrinfo``: (host, port, type=..) -> (family, type, protocol, name, socket address) of each address.
Resolve = Callable[..., Sequence[tuple[Any, ...]]]
#: Seconds until a name is resolved again: its service may have moved.
_NAME_SECONDS = 300.0
#: Seconds after which a replaced channel is closed: more than any call on it takes.
_CALL_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class PinnedAddresses:
    """The addresses that a device may connect to, ``host:port`` by role.

    Args:
      by_role: of services that a server names: "distributor", "aggregator", "issuer".
      allow_private: names may lead to addresses that are not global.
      resolve: finds the addresses of a name.
    """

    by_role: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allow_private: bool = False
    resolve: Resolve = socket.getaddrinfo

    @classmethod
    def of(cls, values: ReferenceValues, *, allow_private: bool = False) -> PinnedAddresses:
        """The addresses that reference values pin."""
        return cls(by_role=values.addresses, allow_private=allow_private)

    @classmethod
    def at(cls, **addresses: str) -> PinnedAddresses:
        """One address per role."""
        return cls(by_role={role: (address,) for role, address in addresses.items()})

    def require(self, role: str, address: str) -> None:
        """Returns if the service of ``role`` may be at ``address``. Raises AddressRefused otherwise."""
        pinned = self.by_role.get(role, ())
        if address in pinned:
            return
        pins = f"the pinned addresses are {', '.join(pinned)}" if pinned else "the reference values pin no address"
        raise AddressRefused(
            f"the server names {address} as the {role}, which is not pinned ({pins}); nothing was sent "
            f"there; if you trust it, `odp enclave pin-address {role} {address}` adds it"
        )

    def targets(self, address: str) -> tuple[str, ...]:
        """``ip:port`` of every address that the name in ``address`` resolves to now; empty if it is no name.

        Raises:
          AddressRefused: one of them is not global, and the person did not allow that.
          ServiceUnavailable: the name has no address, or nobody said so in time.
        """
        several = parse_addresses(address)
        if len(several) == 1 and _literal(several[0][0]) is not None:
            return ()
        addresses: dict[tuple[_Address, int], None] = {}
        for host, port in several:
            for ip in self._allowed(host, port):
                addresses[ip, port] = None
        # One family: gRPC takes no mixture. The first is the one that this machine would take.
        family = next(iter(addresses))[0].version
        same = [entry for entry in addresses if entry[0].version == family]
        return tuple(f"{allowed}:{port}" if family == 4 else f"[{allowed}]:{port}" for allowed, port in same)

    def _allowed(self, host: str, port: int) -> Sequence[_Address]:
        """The addresses of one host. Raises as ``targets``."""
        if (literal := _literal(host)) is not None:
            return [literal]
        resolved = self._resolved(host, port)
        here = _is_localhost(host)
        private = [ip for ip in resolved if not (_is_global(ip) or (here and ip.is_loopback))]
        if private and not self.allow_private:
            raise AddressRefused(
                f"{host}:{port} leads to {private[0]}, which is not a public address; nothing was sent "
                "there; pin the address itself, or allow private addresses with --allow-private-addresses"
            )
        return resolved

    def _resolved(self, host: str, port: int) -> Sequence[_Address]:
        answers: list[Sequence[tuple[Any, ...]]] = []

        def ask() -> None:
            try:
                answers.append(self.resolve(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError):
                answers.append(())

        asking = threading.Thread(target=ask, name="resolve", daemon=True)
        asking.start()
        asking.join(_RESOLVE_SECONDS)
        addresses = [_literal(str(entry[4][0])) for entry in (answers[0] if answers else ())]
        valid = [address for address in addresses if address is not None]
        if not valid:
            raise ServiceUnavailable(f"could not find an address of {host}; check the name, and the network")
        return valid


def _literal(host: str) -> _Address | None:
    """The address that ``host`` is, or None if it is a name. An IPv4 address in another spelling counts as a name and
    is resolved.
    """
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _is_localhost(host: str) -> bool:
    return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _is_global(address: _Address) -> bool:
    """Whether an address (or the IPv4 address inside an IPv6 one) is a public address of a single machine."""
    inner: _Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        inner = (
            ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
            if address in _NAT64
            else address.ipv4_mapped or address.sixtofour
        )
    return (inner is None or _is_global(inner)) and address.is_global and not address.is_multicast


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

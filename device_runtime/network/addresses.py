"""Where a device connects: only to addresses that its person pinned, whatever a server names.

An untrusted server tells a device where distributor and aggregator are. Left alone, it could have every device of a
population connect wherever it likes: to a victim, or to what only the device can reach, such as its router. So:

- The person pins ``host:port`` per role, in the reference values (``odp up`` writes its own there). What a server names
  is compared as it is written, before any connection; the server's own address is the person's own word.
- A name is resolved here, once, and its addresses are checked; the channel gets these addresses and not the name, so
  that nothing resolves it a second time to something else. The certificate still has to be the name's.
- Private, loopback, link-local, multicast and other addresses that are not global need the person's word: by pinning
  such an address itself, or ``localhost``, or for names by ``--allow-private-addresses``.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from odp.errors import AddressRefused, ServiceUnavailable
from odp.transport.channel import parse_addresses
from odp.trust.enclave.reference_values import ReferenceValues

SERVER = "server"
#: A resolver that answers later than this is down.
_RESOLVE_SECONDS = 10.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: As ``socket.getaddrinfo``: (host, port, type=..) -> (family, type, protocol, name, socket address) of each address.
Resolve = Callable[..., Sequence[tuple[Any, ...]]]


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
        literal = _literal(host)
        if literal is not None:
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
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return (inner is None or _is_global(inner)) and address.is_global and not address.is_multicast

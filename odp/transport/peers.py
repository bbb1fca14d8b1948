"""Callers as gRPC names them, and the address that limits count for each.

Whoever has an IPv6 address has a /64 at least, and may use any address of it. So limits count the /64 as one address.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from urllib.parse import quote, unquote

_NETWORK_BITS = 64


def peer_name(address: str, port: int) -> str:
    """A peer as gRPC names it, ``ipv4:192.0.2.1:50051`` or ``ipv6:%5B2001:db8::1%5D:50051``."""
    if ":" in address:
        return f"ipv6:{quote(f'[{address}]', safe=':')}:{port}"
    return f"ipv4:{address}:{port}"


def address_of(peer: str) -> str:
    """The address that limits count for a peer: ``192.0.2.1``, or the network of an IPv6 one, ``2001:db8::/64``.

    ``::1`` stays itself, an IPv4 address within an IPv6 one is the IPv4 address, and a peer without an IP address keeps
    its name.
    """
    kind, _, rest = peer.partition(":")
    if kind == "ipv4":
        return rest.rpartition(":")[0]
    if kind != "ipv6":
        return peer
    try:
        address = IPv6Address(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(IPv6Network((int(address), _NETWORK_BITS), strict=False))

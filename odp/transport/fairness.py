"""A bounded set of calls, shared fairly by connections: the connection with the most calls loses first.

Places that go to whoever comes first belong to whoever opens the most calls. Here a newcomer gets a place while some
connection holds more than its own does, so that silent and greedy callers take places from each other and not from a
caller with one call.

Whoever has an IPv6 address has a /64 at least, and may use any address of it. So limits count the /64 as one address.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from ipaddress import IPv6Address, IPv6Network
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, unquote

_NETWORK_BITS = 64


class Caller(Protocol):
    """The origin of a call: ``connection`` is one TLS connection, ``address`` its IP address."""

    @property
    def connection(self) -> str: ...

    @property
    def address(self) -> str: ...


_Call = TypeVar("_Call", bound=Caller)
_Calls = OrderedDict[_Call, int]


class Fair(Generic[_Call]):
    """Calls in order of arrival, at most ``most``, and at most ``most_of_address`` from one address.

    Every call has a weight. A connection that has to give up a call loses its newest where ``newest`` says so, else its
    oldest. Not thread-safe.
    """

    def __init__(self, *, most: int, most_of_address: int, newest: bool) -> None:
        self._most, self._most_of_address, self._newest = most, most_of_address, newest
        # The connections in the order of their turns; of each, its calls with their weights in the order they came.
        self._connections: OrderedDict[str, _Calls[_Call]] = OrderedDict()
        self._of_address: Counter[str] = Counter()
        self._count = 0
        self.weight = 0

    def __len__(self) -> int:
        return self._count

    def add(self, call: _Call, weight: int = 0) -> _Call | None:
        """Adds ``call``; returns the call that it displaces, which may be ``call`` itself."""
        self._connections.setdefault(call.connection, OrderedDict())[call] = weight
        self._of_address[call.address] += 1
        self._count += 1
        self.weight += weight
        if self._of_address[call.address] > self._most_of_address:
            neighbours = [calls for calls in self._connections.values() if next(iter(calls)).address == call.address]
            return self._remove_one(neighbours, call)
        if self._count > self._most:
            return self._remove_one(list(self._connections.values()), call)
        return None

    def lighten(self, newcomer: _Call) -> _Call:
        """Removes a call of the connection with the most weight. Raises ValueError if there is no call."""
        return self._remove_one(list(self._connections.values()), newcomer, by_weight=True)

    def discard(self, call: _Call) -> bool:
        """Removes a call; returns whether it was in the set."""
        calls = self._connections.get(call.connection)
        if calls is None or call not in calls:
            return False
        self.weight -= calls.pop(call)
        self._count -= 1
        if not calls:
            del self._connections[call.connection]
        self._of_address[call.address] -= 1
        if not self._of_address[call.address]:
            del self._of_address[call.address]
        return True

    def take(self) -> _Call | None:
        """Removes the oldest call of the next connection in turn; None if there is no call."""
        if not self._connections:
            return None
        connection, calls = next(iter(self._connections.items()))
        self._connections.move_to_end(connection)
        call = next(iter(calls))
        self.discard(call)
        return call

    def of_connection(self, connection: str) -> int:
        """The number of calls of a connection."""
        return len(self._connections.get(connection, ()))

    def take_of(self, connection: str) -> _Call | None:
        """Removes the oldest call of a connection; None if it has none."""
        if (calls := self._connections.get(connection)) is None:
            return None
        call = next(iter(calls))
        self.discard(call)
        return call

    def _remove_one(self, candidates: list[_Calls[_Call]], newcomer: _Call, *, by_weight: bool = False) -> _Call:
        def size(calls: _Calls[_Call]) -> int:
            return sum(calls.values()) if by_weight else len(calls)

        largest = max(candidates, key=size)
        same_connection = self._connections.get(newcomer.connection)
        # Of two that hold the same, the newcomer gives way: whoever queued before it keeps its place.
        if self._newest and same_connection is not None and size(same_connection) == size(largest):
            largest = same_connection
        call = next(reversed(largest)) if self._newest else next(iter(largest))
        self.discard(call)
        return call


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

"""Limits of SecAgg+ sessions at a host: total memory, seats per address, and cores.

A session holds little while it gathers clients, and a share for every pair of neighbours once it has begun. So memory
is reserved when a session begins; where none is left, it goes on gathering until another one ends.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass

from odp import _validate
from odp.crypto.secure_aggregation.parameters import find
from odp.crypto.secure_aggregation.session import Configuration

MEBIBYTE = 2**20
# Of a pair of neighbours: a sealed share as it came and as it is handed on, and the share that is given back; with what
# Python adds to each.
_PAIR_BYTES = 640
# Of a client: its advert, its seat, and what it said.
_CLIENT_BYTES = 6 * 1024
# The sum, and a vector that is added to it.
_VECTORS = 3


@dataclass(frozen=True, kw_only=True)
class SessionLimits:
    """Limits of a host.

    Attributes:
        memory: bytes of all sessions together that have begun; one of them may take half.
        seats_per_address: seats of one session that clients of one address, or of one IPv6 /64, may take. Addresses of
            this machine have no limit: a device host plays many devices, and whoever runs it could play them from many
            addresses.
        threads: cores that unmask one sum.

    Raises:
        ConfigurationError: a limit is out of range.
    """

    memory: int = 2048 * MEBIBYTE
    seats_per_address: int = 256
    threads: int = 1

    def __post_init__(self) -> None:
        _validate.integer(low=MEBIBYTE, high=2**50, secagg_memory=self.memory)
        _validate.integer(low=1, high=2**31, secagg_seats=self.seats_per_address)
        _validate.integer(low=1, high=64, secagg_threads=self.threads)

    @property
    def session_memory(self) -> int:
        """Maximum bytes of one session, so that no task blocks all others."""
        return self.memory // 2

    def seats(self, address: str) -> int | None:
        """Seats of one session for clients of ``address``; None if unlimited."""
        try:
            return None if ipaddress.ip_network(address).is_loopback else self.seats_per_address
        except ValueError:  # a socket of this machine, or a test's
            return None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Time limits of clients, in seconds.

    Attributes:
        step: for a step.
        vector: for the step of the masked vector, which may be long.
        silent: a client without a call for this time is dropped when the session begins.

    Raises:
        ConfigurationError: a time is not within 1 to 3600 seconds.
    """

    step: float = 30.0
    vector: float = 120.0
    silent: float = 15.0

    def __post_init__(self) -> None:
        _validate.within(low=1.0, high=3600.0, step=self.step, vector=self.vector, silent=self.silent)


class Memory:
    """Memory that sessions reserve, in bytes. Thread-safe.

    Args:
        most: of all of them together.
        held: whether no session may begin now.
    """

    def __init__(self, most: int, *, held: Callable[[], bool] = lambda: False) -> None:
        self.most = most
        self._held = held
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        """Reserves ``amount`` if that much is left and sessions may begin; returns whether it did."""
        with self._lock:
            if self._held() or self._taken + amount > self.most:
                return False
            self._taken += amount
            return True

    def give(self, amount: int) -> None:
        """Returns reserved memory."""
        with self._lock:
            self._taken -= amount


def session_bytes(configuration: Configuration, clients: int) -> int:
    """Maximum bytes that a session with this number of clients may hold.

    Raises:
        PrivacyError: no graph suits this number of clients.
    """
    neighbours = find(clients=clients, threat=configuration.threat).neighbours
    vector = configuration.length * configuration.ring.dtype.itemsize
    return _VECTORS * vector + clients * (_CLIENT_BYTES + neighbours * _PAIR_BYTES)

"""Tells the newest sealed ledger from an older one, and from a *sibling* of the same age, by two monotonic counters.

A version number alone is not enough. The host may start the enclave twice from one state, let either copy charge a
round over another set of contributions, keep both new records, and release from both: the two would have one number.
So each version carries a *stamp* of two numbers, each larger than its parent's by a random amount of up to 48 bits, and
the counters hold the stamp of the version from which a release was made:

- a record is current when its stamp is the counters', and
- it may become current when its *parent's* stamp is the counters' (it was stored, and the crash came before the step).

Every other record is refused. For two siblings to be mixed up, 96 random bits chosen inside the enclave must agree.
Two counters move one after the other; a crash between them leaves (new, old), which only the one record can continue.
A write that failed between them leaves the same, and ``advance`` finishes it when it is called again.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from odp.errors import StateError
from odp.trust.enclave.identity import EnclaveIdentity

_RANDOM_BYTES = 6


class Stamp(NamedTuple):
    """Values of the two counters."""

    first: int
    second: int

    def successor(self) -> Stamp:
        """A new stamp: both numbers are larger, and it is unique."""
        return Stamp(self.first + _step(), self.second + _step())


ZERO = Stamp(0, 0)


class RolledBack(StateError):
    """The platform's counters are at a version that is neither the given record nor one that continues it."""


class HandedOver(StateError):
    """The successor that a population's record names has moved the counters on: the population is its own now."""


class RollbackGuard:
    """The two counters of one population's ledger.

    Their names depend on the population alone: an enclave that starts anew on this platform, without the stored ledger,
    finds them raised and does not hand out the budget again.
    """

    def __init__(self, identity: EnclaveIdentity, population: str) -> None:
        name = "ledger-" + hashlib.sha256(population.encode()).hexdigest()[:40]
        self._first = identity.counter(f"{name}-a")
        self._second = identity.counter(f"{name}-b")
        self._population = population
        self._unfinished: tuple[Stamp, ...] = ()

    @property
    def current(self) -> Stamp:
        """The present values of the counters."""
        return Stamp(self._first.value, self._second.value)

    def require(self, stamp: Stamp) -> None:
        """Raises RolledBack unless ``stamp`` is the counters', and StateError while a move from it is unfinished."""
        current = self.current
        if current in self._unfinished:
            raise StateError(
                f"the platform has not stored the last change of population {self._population!r}: see its disk for "
                "room and errors; the next call stores it again, and nothing is lost"
            )
        if current != stamp:
            raise self._rolled_back()

    def is_moved_on(self, stamp: Stamp) -> bool:
        """Whether another enclave moved the counters on from ``stamp``; an unfinished move of this one is none."""
        return self.current not in (stamp, *self._unfinished)

    def advance(self, *, parent: Stamp, to: Stamp) -> None:
        """Makes ``to`` the current stamp, durably; after a failed write, a second call finishes what the first began.

        Raises RolledBack unless ``parent``, or ``to``, is current, and StateError where a counter cannot be written.
        """
        half = Stamp(to.first, parent.second)
        if self.current not in (parent, half, to):
            raise self._rolled_back()
        self._unfinished = (half, to)
        # The first counter decides between two live copies of this enclave: only one of them moves it from ``parent``.
        self._first.advance(expected=parent.first, to=to.first)
        self._second.advance(expected=parent.second, to=to.second)
        self._unfinished = ()

    def _rolled_back(self) -> RolledBack:
        return RolledBack(
            f"the stored ledger of population {self._population!r} was rolled back: the platform's "
            "counters are at a newer one; restore the newest state folder or backup, or take another population"
        )


def _step() -> int:
    return 1 + int.from_bytes(os.urandom(_RANDOM_BYTES), "big")

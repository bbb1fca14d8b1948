"""Signed refusals: the enclave's statement that exactly these bytes can never count in this round.

A device charges itself for what it sent unless it has that word. The enclave signs in two cases:

- The bytes and the round's opening alone decide that the round does not take them: they do not open under its key, or
  what is in them is not what the round takes. Every copy of this enclave that knows the key decides the same.
- The round's set is in force, by a charge, by the end of its task or by a hand-over that made it void, and these bytes
  are not in it. A ciphertext begins
  with a public key that its device drew for it alone, so the enclave remembers the first bytes of what counted, of a
  bounded number of closed rounds, until its next start.

All else is unsigned: a set that is not in force yet may be another one after a restart. Each signature names the
round's key, so that an opening of the round that is not the device's own says nothing of its bytes.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from odp.crypto import domains
from odp.crypto.refusals import CLOSED, closed_digest
from odp.crypto.signing import SigningKey
from odp.errors import Refusal
from trusted_aggregator.boundary.interface import SealedContribution, Status
from trusted_aggregator.rounds.enclave_half import MARK_BYTES, Round
from trusted_aggregator.state.sealed_state import VoidedKey

#: Contributions of closed rounds whose first bytes are remembered, and rounds.
MOST_MARKS = 2**21
MOST_CLOSED = 4096

Key = tuple[bytes, int]


class ClosedRound(NamedTuple):
    """A round whose set is in force: its public key, and the prefixes that counted, ascending."""

    public_key: bytes
    marks: npt.NDArray[np.uint64]

    def counts(self, sealed: bytes) -> bool:
        """Whether a ciphertext with this prefix may have counted."""
        (mark,) = _sorted(sealed[:MARK_BYTES])
        place = int(np.searchsorted(self.marks, mark))
        return place < len(self.marks) and bool(self.marks[place] == mark)


class ClosedRounds:
    """The remembered closed rounds; the oldest are dropped first.

    Thread-safe, with a lock of its own: whoever asks for a refusal waits for no change of a population.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: OrderedDict[Key, ClosedRound] = OrderedDict()
        self._marks = 0

    def add_charged(self, rounds: Iterable[Round]) -> None:
        """Adds those of ``rounds`` that are charged, in force."""
        for round in rounds:
            if round.signs_refusals and round.status is not Status.OPEN:
                before = self._rounds.get((round.task_sha256, round.number))
                if before is None or before.public_key != round.public_key:
                    self._add(round, bytes(round.marks))

    def add_ended(self, rounds: Iterable[Round]) -> None:
        """Adds rounds whose task ended before their release, in force: no contribution to them counted."""
        for round in rounds:
            self._add(round, b"")

    def add_voided(self, voided: Iterable[VoidedKey]) -> None:
        """Adds void openings of rounds, oldest first, in force: no contribution to them counted."""
        for task_sha256, round, hpke_key in voided:
            self._add_closed((task_sha256, round), ClosedRound(hpke_key, _sorted(b"")))

    def _add(self, round: Round, marks: bytes) -> None:
        self._add_closed((round.task_sha256, round.number), ClosedRound(round.public_key, _sorted(marks)))

    def _add_closed(self, key: Key, closed: ClosedRound) -> None:
        with self._lock:
            before = self._rounds.pop(key, None)
            self._rounds[key] = closed
            self._marks += len(closed.marks) - (0 if before is None else len(before.marks))
            while len(self._rounds) > MOST_CLOSED or self._marks > MOST_MARKS:
                _, forgotten = self._rounds.popitem(last=False)
                self._marks -= len(forgotten.marks)

    def find(self, key: Key) -> ClosedRound | None:
        """A closed round, or None."""
        with self._lock:
            return self._rounds.get(key)


def sign_judged(signing: SigningKey, round: Round, refusal: Refusal, contribution: SealedContribution) -> bytes:
    """The signature of a refusal by ``Round.judge``; empty if the round closed in the meantime."""
    if refusal in CLOSED:
        return b""
    digest = hashlib.sha256(contribution.sealed).digest()
    data = domains.refusal(
        round.task_sha256, round.number, refusal.value, round.public_key, digest, contribution.host_sha256
    )
    return signing.sign(domains.REFUSAL, data)


def sign_closed(
    signing: SigningKey, closed: ClosedRound | None, refusal: Refusal, contribution: SealedContribution
) -> bytes:
    """The signature of a refusal by a closed round; empty if the bytes may have counted."""
    sealed = contribution.sealed
    if closed is None or refusal not in CLOSED or len(sealed) < MARK_BYTES or closed.counts(sealed):
        return b""
    data = domains.refusal(
        contribution.task_sha256, contribution.round, refusal.value, closed.public_key, closed_digest(sealed), b""
    )
    return signing.sign(domains.REFUSAL, data)


def _sorted(marks: bytes) -> npt.NDArray[np.uint64]:
    return np.sort(np.frombuffer(marks, dtype="<u8")).astype(np.uint64)

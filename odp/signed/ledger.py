"""A population's ledger as an aggregator hands it out: entries, page by page, and a head that its enclave signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odp.crypto import domains
from odp.crypto.signing import verify
from odp.errors import ServiceError, StateError
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import LINE_END, entries_of
from odp.privacy.ledger_state import LedgerHead
from odp.v1 import aggregator_pb2

#: More than what 10,000 rounds of the largest entries take.
_LARGEST_LEDGER = 2**27


@dataclass(frozen=True)
class LedgerPart:
    """The end of a ledger.

    Attributes:
        first: number of its first entry.
        lines: the entries, as ``odp.privacy.ledger_entry.lines_of`` gives them.
        head: of the whole ledger, encoded.
        signature: over ``head``.
    """

    first: int
    lines: bytes
    head: bytes
    signature: bytes

    def ledger(self, signing_key: bytes | None = None) -> Ledger:
        """The whole ledger, of a part that begins with entry 0.

        ``signing_key`` is the one in the evidence of the aggregator's enclave; None leaves the signature unchecked.

        Raises:
            SignatureError: the head is not signed by that key.
            StateError: the entries do not lead to the head, or are damaged.
        """
        if signing_key is not None:
            verify(signing_key, self.signature, domains.LEDGER, self.head)
        head = LedgerHead.decode(self.head)
        ledger = Ledger(head.population, tuple(entries_of(self.lines)))
        if ledger.state.head != head:
            raise StateError(f"the entries of ledger {head.population!r} do not lead to its signed head")
        return ledger


def read_ledger(ask: Callable[[int], aggregator_pb2.GetLedgerResponse], *, first: int = 0) -> LedgerPart:
    """The ledger from entry ``first`` on; ``ask`` gives the page that begins with an entry.

    Raises:
        ServiceError: the aggregator sends no page that leads on, or more than a ledger has.
        StateError: what it sends as a head is none.
    """
    pages: list[bytes] = []
    number = first
    while True:
        page = ask(number)
        pages.append(page.entries)
        number += page.entries.count(LINE_END)
        end = LedgerHead.decode(page.head).entries
        if number == end:
            return LedgerPart(first, b"".join(pages), page.head, page.signature)
        if number > end or not page.entries or sum(map(len, pages)) > _LARGEST_LEDGER:
            raise ServiceError(f"the aggregator gave entries up to {number} of a ledger that has {end}")

"""Writes of a ledger to the host's store, and the restored ledger.

Each entry is stored once, as it comes: it is public, and the head in the population's sealed record stands for it. Now
and then the whole state is sealed as well, so that a start reads that and the few entries behind it, however many there
are. A host may bring back an older state: with the entries behind it, the head is the same or the start fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from odp.errors import StateError
from odp.privacy.ledger_entry import Entry, entries_of, lines_of
from odp.privacy.ledger_state import LedgerHead, LedgerState
from trusted_aggregator.state import records as names
from trusted_aggregator.state.records import SealedRecord
from trusted_aggregator.state.sealed_state import Sealer

#: Entries behind the sealed state after which it is sealed again.
STATE_EVERY = 128


class LedgerWrites:
    """The writes of one ledger that may not be stored yet; ``stored_state`` counts the entries of its state."""

    def __init__(self, stored_state: int) -> None:
        self._entries: list[tuple[int, Entry]] = []
        self._stored_state = self._given_state = stored_state

    def add(self, number: int, entry: Entry) -> None:
        """Adds a new entry of the ledger."""
        self._entries.append((number, entry))

    def pending(self, sealer: Sealer, ledger: LedgerState) -> Iterator[SealedRecord]:
        """The records that are not stored yet; repeated calls return the same."""
        name, entries = ledger.head.population, ledger.head.entries
        for number, entry in self._entries:
            yield SealedRecord(names.ledger_key(name, number), lines_of([entry]))
        if entries - self._stored_state >= STATE_EVERY:
            sealed = sealer.seal(names.ledger_state_key(name), ledger.encode())
            yield SealedRecord(sealed.key, names.numbered_state(entries, sealed.data or b""))
            self._given_state = entries

    def all_stored(self) -> None:
        """Marks all pending records as stored."""
        self._entries, self._stored_state = [], self._given_state


def restored_ledger(head: LedgerHead, sealer: Sealer, records: Mapping[str, bytes]) -> LedgerState:
    """The state under ``head``, from the sealed one and the entries behind it.

    Raises:
        StateError: the records do not lead to that head: some are missing, changed, or of another ledger.
    """
    state = LedgerState(head.population)
    if (key := names.ledger_state_key(head.population)) in records:
        state = LedgerState.decode(sealer.open(key, names.split_state(records[key])[1]))
    try:
        while state.head.entries < head.entries:
            (entry,) = entries_of(records[names.ledger_key(head.population, state.head.entries)])
            state.append(entry)
    except (StateError, KeyError, ValueError) as error:
        raise _altered(head, state) from error
    if state.head != head:
        raise _altered(head, state)
    return state


def _altered(head: LedgerHead, state: LedgerState) -> StateError:
    return StateError(
        f"the stored entries of the ledger of population {head.population!r} lead only to entry "
        f"{state.head.entries} of {head.entries}: some are missing, changed or outdated; restore the "
        "newest state folder"
    )

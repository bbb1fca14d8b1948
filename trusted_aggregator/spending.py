"""The ledger of one population inside the enclave: charged first, stored second, acted upon third.

Order of one charge, each step durable before the next:

1. ``charge`` puts the event into a new ledger version with a new stamp; the host stores it sealed.
2. ``commit`` moves the platform's counters to that stamp: from now on every older version is refused.
3. Only then is the noise added and the release signed.

A crash after 1 leaves a version whose parent is current: ``restore`` finishes step 2. A crash after 2 leaves the
current version. A host that skipped the storing of 1 finds its older version refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from odp.enclave.identity import EnclaveIdentity
from odp.errors import BudgetExceeded, PrivacyError, StateError
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import Event
from odp.privacy.ledger import Budget, Entry, Ledger, ReleaseState
from trusted_aggregator.rollback import ZERO, RollbackGuard
from trusted_aggregator.sealed_state import LedgerRecord


def _require_zero_out(events: Sequence[Event]) -> None:
    """Every mode of a task states the exact number of contributions, and releases nothing below its minimum."""
    for event in events:
        if event.adjacency is not Adjacency.ZERO_OUT_USER:
            raise PrivacyError(
                f"adjacency={event.adjacency.value!r} of event {event.name!r} does not fit a task of an enclave, whose "
                f"releases depend on how many contribute: only {Adjacency.ZERO_OUT_USER.value!r} is charged"
            )


class Spending:
    """Ledger and rollback guard of one population. Not thread-safe: its owner calls it under one lock."""

    def __init__(self, identity: EnclaveIdentity, population: str, *, record: LedgerRecord | None = None) -> None:
        """Starts from ``record``, or anew where there is none.

        Raises StateError where the record is not the newest, or none is given although one was stored once.
        """
        self._budget = Budget(identity.policy.population_epsilon, identity.policy.population_delta)
        self._guard = RollbackGuard(identity, population)
        self._pending: LedgerRecord | None = None
        #: Whether the ledger is ahead of what it was started from, by something that costs nothing to lose.
        self.changed = False
        if record is None:
            self._guard.require(ZERO)
            record = LedgerRecord(Ledger(population), stamp=ZERO, parent=ZERO)
        else:
            self._guard.advance(parent=record.parent, to=record.stamp)
        self._committed = record

    @property
    def ledger(self) -> Ledger:
        """The current ledger. Raises StateError where another copy of this enclave has charged since."""
        self._guard.require(self._committed.stamp)
        return self._committed.ledger

    @property
    def record(self) -> LedgerRecord:
        """What the host has to store: the pending version where there is one."""
        return self._committed if self._pending is None else self._pending

    def charged(self, task_id: str, round: int) -> Entry | None:
        """The entry that charged a round, in the current or the pending version; None where nothing was charged."""
        entries = self.record.ledger.entries
        return next((entry for entry in entries if entry.task_id == task_id and entry.round == round), None)

    def require_room(self, *, task_id: str, events: Sequence[Event], budget: Budget, users: int, what: str) -> None:
        """Returns if task and population can pay for ``events`` now; spends nothing (rule P29).

        Raises:
            BudgetExceeded: they cannot.
            PrivacyError: an event is a claim about another adjacency than an enclave's releases are.
        """
        _require_zero_out(events)
        ledger = self.ledger
        try:
            ledger.require_room(
                task_id=task_id, events=events, population_size=self._users(users),
                task_budget=budget, population_budget=self._budget,
            )  # fmt: skip
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{what} was not started: {error}") from error

    def charge(
        self, *, task_id: str, round: int, events: Sequence[Event], budget: Budget, contributions: int,
        set_sha256: bytes, noise_id: bytes,
    ) -> None:  # fmt: skip
        """Prepares the version that holds the charge of a round; ``record`` has to be stored before ``commit``.

        Raises:
            BudgetExceeded, PrivacyError: as ``Ledger.charge`` and ``require_room``; nothing changed.
            StateError: another round's charge is not committed yet, or another copy of this enclave has charged.
        """
        if self._pending is not None:
            raise StateError("the charge of another round of this population is not stored yet; close that round first")
        _require_zero_out(events)
        ledger = self.ledger.charge(
            task_id=task_id, round=round, events=events, contributions=contributions,
            population_size=self._users(contributions), id_set_sha256=set_sha256, noise_id=noise_id,
            task_budget=budget, population_budget=self._budget,
        )  # fmt: skip
        parent = self._committed.stamp
        self._pending = LedgerRecord(ledger, stamp=parent.successor(), parent=parent)

    def commit(self) -> None:
        """Makes the stored version the only one. Raises StateError where another copy of this enclave was faster."""
        record = self.record
        self._guard.advance(parent=record.parent, to=record.stamp)
        self._committed, self._pending = record, None

    def mark_sealed(self, *, task_id: str, round: int) -> None:
        """Notes that a charged round's release is stored. The stamp stays: it is the charge that must not roll back."""
        committed = self._committed
        ledger = committed.ledger.advance(task_id=task_id, round=round, state=ReleaseState.SEALED)
        self._committed = LedgerRecord(ledger, stamp=committed.stamp, parent=committed.parent)

    def mark_void(self, *, task_id: str, round: int) -> None:
        """Notes that nothing can be released for a charged round; a release that was made once stays as it is."""
        committed = self._committed
        entry = committed.ledger.find(task_id, round)
        if entry is not None and entry.state is ReleaseState.CHARGED:
            ledger = committed.ledger.advance(task_id=task_id, round=round, state=ReleaseState.VOID)
            self._committed = LedgerRecord(ledger, stamp=committed.stamp, parent=committed.parent)
            self.changed = True

    def is_void(self, *, task_id: str, round: int) -> bool:
        """Whether ``mark_void`` was stored."""
        entry = self.record.ledger.find(task_id, round)
        return entry is not None and entry.state is ReleaseState.VOID

    def _users(self, now: int) -> int:
        """Devices enrolled, as far as it was measured: the largest cohort of the population, ``now`` included."""
        return max([now, *(entry.contributions for entry in self._committed.ledger.entries)])

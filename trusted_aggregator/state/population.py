"""One population inside the enclave: its owners, its spending, its ended tasks, and the enclave that has it.

Each of the four changes in one way, and each step is durable before the next:

1. A change (``charge``, ``seal``, ``set_charter``, ``abandon``, ``hand_over``, ``take_over``) prepares a new version
   with a new stamp; the host stores it sealed.
2. ``commit`` moves the platform's counters to that stamp: from now on every older version is refused.
3. Only then is the change acted upon: a release leaves, a new owner is obeyed, an end is acknowledged, a successor gets
   the key to the record.

A crash after 1 leaves a version whose parent is current: the next start finishes step 2. A crash after 2 leaves the
current version. A host that skipped the storing of 1 finds its older version refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from odp.errors import BudgetExceeded, PrivacyError, StateError
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import SampledRound, ShuffledReports
from odp.privacy.ledger_entry import Budget, Entry, ReleaseState
from odp.privacy.ledger_events import LedgerEvent, charged
from odp.privacy.ledger_state import LedgerState, Standing
from odp.signed.charter import Charter
from odp.trust.enclave.identity import EnclaveIdentity
from trusted_aggregator.state.ledger_writes import LedgerWrites
from trusted_aggregator.state.limits import MOST_ABANDONED, MOST_CHARGES, MOST_EVENTS, MOST_SAMPLED, MOST_TASKS
from trusted_aggregator.state.records import Writes, population_key
from trusted_aggregator.state.rollback import ZERO, HandedOver, RollbackGuard, RolledBack
from trusted_aggregator.state.sealed_state import PopulationRecord, Sealer, Successor, VoidedKey


def _require_zero_out(events: Sequence[LedgerEvent]) -> None:
    """Refuses other adjacencies: every mode of a task states the exact number of contributions, and has a minimum."""
    for event in events:
        if event.adjacency is not Adjacency.ZERO_OUT_USER:
            raise PrivacyError(
                f"adjacency={event.adjacency.value!r} of event {event.name!r} does not fit a task of an enclave, whose "
                f"releases depend on how many contribute: only {Adjacency.ZERO_OUT_USER.value!r} is charged"
            )


class Population:
    """State and rollback guard of one population. Not thread-safe: its owner calls it under one lock."""

    def __init__(
        self, identity: EnclaveIdentity, name: str, *, record: PopulationRecord | None = None, stored_state: int = 0
    ) -> None:
        """Starts from ``record``; without one, there is no charter.

        ``stored_state`` is how many entries the state of the ledger covers that the host has stored.

        Raises StateError where the record is not the newest, or none is given although one was stored once; HandedOver
        where it names a successor, which has the population now.
        """
        self.name = name
        self._budget = Budget(identity.policy.population_epsilon, identity.policy.population_delta)
        self._guard = RollbackGuard(identity, name)
        self._pending: PopulationRecord | None = None
        #: Whether the ledger is ahead of what it was started from, by something that costs nothing to lose.
        self.changed = False
        if record is None:
            self._guard.require(ZERO)
            record = PopulationRecord.unfounded(name)
        else:
            try:
                self._guard.advance(parent=record.parent, to=record.stamp)
            except RolledBack as error:
                if record.successor is None:
                    raise
                raise HandedOver(_handed_over(name, record.successor)) from error
        self._committed = record
        self._writes = LedgerWrites(stored_state)

    @property
    def charter(self) -> Charter | None:
        """The charter in force; None before the population is founded."""
        return self._committed.charter

    @property
    def ledger(self) -> LedgerState:
        """The ledger in force; read-only.

        Raises StateError where another copy of this enclave has changed it since.
        """
        self._guard.require(self._committed.stamp)
        return self._committed.ledger

    @property
    def successor(self) -> Successor | None:
        """The enclave that the population was handed over to, in force; None if it is this enclave's."""
        return self._committed.successor

    @property
    def record(self) -> PopulationRecord:
        """The record for the host's store: the pending version if there is one."""
        return self._committed if self._pending is None else self._pending

    @property
    def is_pending(self) -> bool:
        """Whether a change waits for ``commit``."""
        return self._pending is not None

    def require_owner(self, key: bytes, *, of: str) -> None:
        """Returns if ``key`` owns the population now; ``of`` says what it signed.

        Raises:
            PrivacyError: it does not.
            StateError: the population was handed over, or another copy of this enclave has changed it since.
        """
        self._require_held()
        self._guard.require(self._committed.stamp)
        if self.charter is None:
            raise unfounded(self.name)
        self.charter.require_owner(key, of=of)

    def require_committed(self) -> None:
        """Raises StateError if a change waits for ``commit``, or if another copy of this enclave has made one since.

        Also where the population was handed over.
        """
        self._require_held()
        if self._pending is not None:
            raise StateError(f"an earlier change of population {self.name!r} is not stored yet; store it, then retry")
        self._guard.require(self._committed.stamp)

    def knows(self, task_sha256: bytes) -> bool:
        """Whether a task was charged to this population, or ended in it."""
        return self._committed.knows(task_sha256)

    def find(self, task_id: str, round: int) -> Standing | None:
        """The state of a round in the current or the pending version; None if nothing was charged."""
        return self.record.ledger.find(task_id, round)

    def writes(self, sealer: Sealer) -> Writes:
        """The host's writes that make ``record`` what the next start reads."""
        return (
            sealer.seal(population_key(self.name), self.record.encode()),
            *self._writes.pending(sealer, self.record.ledger),
        )

    def require_budget(
        self, *, task_id: str, events: Sequence[LedgerEvent], budget: Budget, users: int, what: str
    ) -> None:
        """Returns if task and population can pay for ``events`` now; spends nothing (rule P29).

        Raises:
            BudgetExceeded: they cannot.
            PrivacyError: an event is a claim about another adjacency than an enclave's releases are; or the ledger is
                full.
        """
        self._require_paid(task_id=task_id, rounds=[events], budget=budget, users=users, what=what)

    def require_plan(
        self, *, task_id: str, rounds: Sequence[Sequence[LedgerEvent]], budget: Budget, users: int, what: str,
        promised: Sequence[Sequence[LedgerEvent]],
    ) -> None:  # fmt: skip
        """As ``require_budget``, for all ``rounds`` that a task has left.

        ``promised`` are the rounds that other tasks under way have left: ledger and population hold these as well.
        """
        self._require_paid(task_id=task_id, rounds=rounds, budget=budget, users=users, what=what, promised=promised)

    def _require_paid(
        self, *, task_id: str, rounds: Sequence[Sequence[LedgerEvent]], budget: Budget, users: int, what: str,
        promised: Sequence[Sequence[LedgerEvent]] | None = None,
    ) -> None:  # fmt: skip
        of_task, others = ([event for events in some for event in events] for some in (rounds, promised or ()))
        _require_zero_out(of_task)
        ledger = self.ledger
        self._require_room(ledger, rounds=len(rounds) + len(promised or ()), events=[*of_task, *others], what=what)
        try:
            ledger.require_budget(
                task_id=task_id, events=of_task, population_size=self._users(users),
                task_budget=budget, population_budget=self._budget,
                promised=None if promised is None else others,
            )  # fmt: skip
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{what} was not started: {error}") from error

    def set_charter(self, charter: Charter, *, abandoned: Collection[bytes], voided: Sequence[VoidedKey] = ()) -> None:
        """Prepares the version under ``charter``; the caller has checked its signatures.

        ``abandoned`` are the tasks of the keys that own the population no longer, ``voided`` their open rounds.

        Raises StateError as ``charge``.
        """
        self._prepare(charter=charter, abandoned=abandoned, voided=voided)

    def abandon(self, task_sha256: bytes, *, held: bool, voided: Sequence[VoidedKey] = ()) -> None:
        """Prepares the version in which a task is over: its charged and unsealed rounds are void, as ``voided`` are.

        ``held`` says whether the enclave holds the task: of those, each can be ended, since each had room for that when
        it was opened (``require_capacity_for_ends``).

        Raises:
            PrivacyError: the task is not held, and too many were ended before.
            StateError: as ``charge``.
        """
        if not held and len(self._committed.abandoned) >= MOST_ABANDONED - MOST_TASKS:
            raise PrivacyError(f"{self._ended_most()}: this enclave has no state of this one")
        self._prepare(abandoned=[task_sha256], voided=voided)

    def require_capacity_for_ends(self, tasks: int) -> None:
        """Raises PrivacyError if the ends of ``tasks`` open tasks could not all be recorded."""
        if len(self.record.abandoned) + tasks > MOST_ABANDONED:
            raise PrivacyError(f"{self._ended_most()}: take another population")

    def charge(
        self, *, task_id: str, round: int, events: Sequence[LedgerEvent], budget: Budget, contributions: int,
        set_sha256: bytes, noise_id: bytes,
    ) -> None:  # fmt: skip
        """Prepares the version with the charge of a round; ``record`` has to be stored before ``commit``.

        Raises:
            BudgetExceeded, PrivacyError: as ``Ledger.charge`` and ``require_budget``; nothing changed.
            StateError: another change is not committed yet, or another copy of this enclave has made one.
        """
        _require_zero_out(events)
        ledger = self.ledger
        self._require_room(ledger, rounds=1, events=events, what=f"round {round}")
        entry = ledger.charge(
            task_id=task_id, round=round, events=events, contributions=contributions,
            population_size=self._users(contributions), id_set_sha256=set_sha256, noise_id=noise_id,
            task_budget=budget, population_budget=self._budget,
        )  # fmt: skip
        self._prepare(entry)

    def seal(self, *, task_id: str, round: int, release_sha256: bytes) -> None:
        """Prepares the version that names the one release of a charged round. Raises PrivacyError, StateError."""
        self._prepare(
            self._committed.ledger.advance(
                task_id=task_id, round=round, state=ReleaseState.SEALED, release_sha256=release_sha256
            )
        )

    @property
    def is_taken_over(self) -> bool:
        """Whether the successor that this enclave named has written a version of its own, in force."""
        return self.successor is not None and self._guard.is_moved_on(self._committed.stamp)

    @property
    def voided(self) -> tuple[VoidedKey, ...]:
        """The openings of rounds that never have a release, in force, as far as they are remembered."""
        return self._committed.voided

    @property
    def voided_uncharged(self) -> tuple[VoidedKey, ...]:
        """Those of ``voided`` whose round has no charge since, and whose task goes on."""
        return tuple(opening for opening in self._committed.voided if not self._committed.is_past(opening))

    def hand_over(self, successor: Successor, *, voided: Sequence[VoidedKey] = ()) -> None:
        """Prepares the version of ``successor``: once it is in force, this enclave charges nothing. Idempotent.

        ``voided`` are the rounds that were open, and never have a release then.

        One that was named before, and has not taken over, does not get the population any more: it would move the
        counters from a version that is no longer the newest.

        Raises:
            PrivacyError: another one has taken the population over.
            StateError: as ``charge``.
        """
        self.require_may_hand_over(successor)
        if self.record.successor != successor:
            self._pending = self._committed.handed_to(successor, voided=voided)

    def require_may_hand_over(self, successor: Successor) -> None:
        """Returns if the population can go to ``successor``, or went there. Raises as ``hand_over``."""
        if self.record.successor == successor:
            return
        if self._pending is not None or self.successor is None:
            self.require_committed()
            return
        try:
            self._guard.require(self._committed.stamp)
        except RolledBack as error:
            raise PrivacyError(_handed_over(self.name, self.successor)) from error

    def take_over(self, successor: Successor) -> None:
        """Prepares the first version of the new owner enclave, which is ``own``.

        Raises:
            PrivacyError: it was handed over to another one, or to nobody.
            StateError: the version that was handed over is not the newest.
        """
        self._guard.require(self._committed.stamp)
        if self._committed.successor != successor:
            raise PrivacyError(f"population {self.name!r} was not handed over to this enclave: use the one that has it")
        self._pending = self._committed.handed_to(None)

    def commit(self) -> None:
        """Makes the stored version the only valid one.

        Raises StateError where another copy of this enclave was faster, or where the platform could not store its
        counters: the same call, made again, finishes that.
        """
        self._writes.all_stored()
        if self._pending is not None:
            self._guard.advance(parent=self._pending.parent, to=self._pending.stamp)
            self._committed, self._pending = self._pending, None

    def mark_void(self, *, task_id: str, round: int) -> None:
        """Marks a charged round as one without a release; a release that was sealed stays.

        The stamp stays: it is the charge that must not roll back. Raises StateError where a change is not committed.
        """
        self.require_committed()
        standing = self._committed.ledger.find(task_id, round)
        if standing is not None and standing.state is ReleaseState.CHARGED:
            ledger = self._committed.ledger.copy()
            self._append(ledger, ledger.advance(task_id=task_id, round=round, state=ReleaseState.VOID))
            self._committed = dataclasses.replace(self._committed, ledger=ledger)
            self.changed = True

    def _prepare(
        self, entry: Entry | None = None, *, charter: Charter | None = None, abandoned: Collection[bytes] = (),
        voided: Sequence[VoidedKey] = (),
    ) -> None:  # fmt: skip
        self.require_committed()
        ledger = self._committed.ledger.copy()
        self._append(ledger, entry)
        for task_id in (task.hex() for task in abandoned):
            charged = [
                round for round, standing in ledger.rounds(task_id).items() if standing.state is ReleaseState.CHARGED
            ]
            for round in charged:
                self._append(ledger, ledger.advance(task_id=task_id, round=round, state=ReleaseState.VOID))
        self._pending = self._committed.after(
            charter=charter, ledger=ledger, abandoned=self._committed.abandoned.union(abandoned), voided=voided
        )

    def _require_held(self) -> None:
        if self._committed.successor is None and self.record.successor is None:
            return
        if self._pending is not None:
            raise StateError(f"the hand-over of population {self.name!r} is not stored yet; store it, then retry")
        # Not for good: its server may ask before it knows the successor, which has the population.
        raise StateError(_handed_over(self.name, self._committed.successor))

    def _append(self, ledger: LedgerState, entry: Entry | None) -> None:
        if entry is not None:
            self._writes.add(ledger.head.entries, entry)
            ledger.append(entry)

    def _require_room(self, ledger: LedgerState, *, rounds: int, events: Sequence[LedgerEvent], what: str) -> None:
        full = f"{what} was not started: population {self.name!r}"
        if ledger.charges + rounds > MOST_CHARGES:
            raise PrivacyError(
                f"{full} has charged {ledger.charges} rounds, and has {rounds} to come with this and the tasks under "
                f"way, of at most {MOST_CHARGES} of one ledger; take another population"
            )
        different = {*ledger.events, *charged(events)}
        sampled = sum(isinstance(event, (SampledRound, ShuffledReports)) for event in different)
        if len(different) > MOST_EVENTS or sampled > MOST_SAMPLED:
            raise PrivacyError(
                f"{full} would be charged for {len(different)} different events, {sampled} of them sampled or "
                f"shuffled, of at most {MOST_EVENTS} and {MOST_SAMPLED}; repeat the settings of earlier tasks, or "
                "take another population"
            )

    def _ended_most(self) -> str:
        return f"population {self.name!r} has ended {len(self.record.abandoned)} tasks, of at most {MOST_ABANDONED}"

    def _users(self, now: int) -> int:
        """Enrolled devices, as far as measured: the largest cohort of the population, ``now`` included."""
        return max(now, self._committed.ledger.largest_cohort)


def _handed_over(name: str, successor: Successor | None) -> str:
    to = "other code" if successor is None else f"the code {successor.image_digest[:19]}.."
    return f"population {name!r} was handed over to {to}: this version cannot charge it any more; run the new one"


def unfounded(name: str) -> PrivacyError:
    """The error for a population without a charter."""
    return PrivacyError(
        f"population {name!r} is not founded here: a founder from the enclave's policy has to sign its charter "
        "(`odp population found`); list the server's key with `odp aggregator run --founder`"
    )

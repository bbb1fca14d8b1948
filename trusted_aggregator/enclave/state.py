"""What the parts of an aggregator's enclave share: its lock, populations, tasks and rounds, and the keys to records.

Each round has keys of its own, which are erased with the round. Its contributions are sealed to an HPKE key that is
drawn with its opening. Its private half, the seed of its draw and its noise are in records under a key of two parts:
the enclave's sealing key, which can be derived for as long as chip and code are the same, and a secret in an erasable
slot of the platform. A task has one slot, since at most one of its rounds is open or charged. It is erased when the
round is released, void, given up, forgotten or ended: once that is in force, and before its signature leaves or its end
is acknowledged. A start erases what a death left of rounds that are over, and so does the opening of the next round.

What stays possible: whoever copies the memory of a running enclave, or the slots of a chip, before that has the key.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto import domains
from odp.errors import PrivacyError, Refusal, StateError
from odp.trust.enclave import sealing
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, common_pb2
from trusted_aggregator.boundary.interface import RoundState, Status, not_open
from trusted_aggregator.enclave.holdings import Holdings
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.refusing import ClosedRounds
from trusted_aggregator.enclave.streams import Streams
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state import records as names
from trusted_aggregator.state.population import Population, unfounded
from trusted_aggregator.state.records import SealedRecord, Writes
from trusted_aggregator.state.sealed_state import Sealer, VoidedKey


class EnclaveState:
    """The state of one enclave. ``find_round`` may be called by any thread, all else under ``lock``."""

    def __init__(self, identity: EnclaveIdentity) -> None:
        self.identity = identity
        self.lock = threading.RLock()
        self.populations: dict[str, Population] = {}
        self.holdings = Holdings()
        self.closed = ClosedRounds()
        self.sealer = Sealer(identity.sealing_key)
        self.keys = RoundKeys(identity)
        self.streams = Streams(identity)
        # Tasks whose round is over, and its key not erased yet: until it is, nothing that rests on the end leaves.
        self._over: set[bytes] = set()
        # Of tasks that are being ended, or handed over: what can never count once that is in force.
        self._ending: list[Round] = []
        # Tasks whose end is not in force yet, held or not: a host may have withheld their records.
        self._ended: set[bytes] = set()
        # What evidence shows of each population.
        self._shown: dict[str, bytes] = {}

    def resume(self) -> None:
        """Puts what ``restore`` read in force."""
        self.closed.add_charged(self.holdings.rounds())
        self._over.update(self.holdings.tasks_without_rounds())
        self._remember_voided()
        self.erase_over()
        self._show_charters()

    # What is here

    def population(self, name: str) -> Population:
        """A population. Raises PrivacyError where it is not founded."""
        if (population := self.populations.get(name)) is None:
            raise unfounded(name)
        return population

    def require_authorized(self, task: OpenedTask, population: Population) -> None:
        """Returns if the developer of ``task`` owns the population, and no owner ended it. Raises PrivacyError."""
        if self.holdings.is_ended(task.sha256):
            raise PrivacyError(f"{task.label} was ended by its developer: it has no more releases; submit a new task")
        population.require_owner(task.developer_key, of=task.label)

    def require_holder(self) -> None:
        """Raises StateError after a hand-over: this enclave then founds no other populations either."""
        for population in self.populations.values():
            if population.record.successor is not None:
                population.require_committed()

    def ordered(self, order: aggregator_pb2.RoundOrder) -> tuple[OpenedTask, Population]:
        """The task of an order; its developer owns the population now. Raises ConfigurationError, PrivacyError."""
        if (task := self.holdings.task(order.task_sha256)) is None:
            raise not_open(order.round)
        population = self.population(task.population)
        self.require_authorized(task, population)
        return task, population

    def find_round(self, task_sha256: bytes, number: int) -> Round | Refusal:
        """A round in memory; otherwise the refusal for a contribution to it."""
        return self.holdings.find_round(task_sha256, number, self.populations)

    def held(self, task_sha256: bytes, number: int) -> Round:
        """A round in memory. Raises StateError where there is none."""
        held = self.find_round(task_sha256, number)
        if isinstance(held, Refusal):
            raise StateError(f"round {number} is not open here; open it first")
        return held

    def round_state(self, task_sha256: bytes, number: int) -> RoundState | None:
        """The number of contributions of a round; None for an unknown one."""
        with self.lock:
            task = self.holdings.task(task_sha256)
            return None if task is None else self.holdings.state(task, number, self.populations[task.population])

    def round_states(self) -> list[RoundState]:
        """All open or charged rounds, and those that the last start found void, by task and number."""
        with self.lock:
            held = [(round.task_sha256, round.number) for round in self.holdings.rounds()]
            states = [self.round_state(*key) for key in sorted({*held, *self.holdings.lost})]
        return [state for state in states if state is not None]

    def signed_key(self, round: Round) -> common_pb2.SignedRoundKey:
        """The signed public key of a round, with every void opening of its population."""
        task = self.holdings.task(round.task_sha256)
        return self.keys.signed(round, () if task is None else self.populations[task.population].voided)

    # What ends

    def openings(self, tasks: Collection[bytes]) -> list[VoidedKey]:
        """The open rounds of tasks that end: nothing that was sealed to them is released once the end is in force."""
        held = self.holdings.rounds(tasks)
        ended = [round for round in held if round.status is Status.OPEN and round.can_be_void]
        return [VoidedKey(round.task_sha256, round.number, round.public_key) for round in ended]

    def end(self, ended: Collection[bytes], population: Population) -> Writes:
        """Ends tasks, held or not, by a change of ``population`` that is pending; the writes are those of the change.

        Contributions, sums and noise are erased now; the secrets go with ``commit``.
        """
        held = [task for task in map(self.holdings.task, ended) if task is not None]
        self._ending += self.holdings.rounds(ended)
        self._ended.update(ended)
        self.holdings.end(ended)
        dropped = (record for task in held for record in self.holdings.drop_task(task.sha256, population))
        return (*population.writes(self.sealer), *dropped, *self.streams.end(ended))

    def drop_rounds(self) -> tuple[Mapping[str, Sequence[VoidedKey]], Writes]:
        """Drops all rounds; returns their public keys by population, and what the host has to erase.

        Their secrets are erased once that is in force: before, a death leaves the rounds open.
        """
        voided: dict[str, list[VoidedKey]] = {}
        held = self.holdings.rounds()
        for round in held:
            if (task := self.holdings.task(round.task_sha256)) is not None:
                key = VoidedKey(round.task_sha256, round.number, round.public_key)
                voided.setdefault(task.population, []).append(key)
            self.holdings.drop_round(round)
        self._over.update(round.task_sha256 for round in held)
        keys = [names.round_key(round.task_sha256, round.number) for round in held]
        return voided, tuple(SealedRecord(name, None) for key in keys for name in (key, names.noise_beside(key)))

    def add_round(self, task: OpenedTask, round: Round) -> None:
        """Takes in a round whose opening is to be stored."""
        self._over.discard(task.sha256)
        self.holdings.add_task(task)
        self.holdings.add_round(round)

    def erase(self, tasks: Collection[bytes]) -> None:
        """Erases the secrets of these tasks' rounds, and of what their streams need no more. Raises StateError."""
        self.keys.erase(tasks)
        self.streams.erase(tasks)

    def erase_over(self) -> None:
        """Erases the secrets of all rounds whose end is in force. Raises StateError where the platform cannot."""
        self.erase(self._over)
        self._over.clear()

    # What is in force

    def commit(self, request: aggregator_enclave_pb2.CommitWrites) -> None:
        """Puts the writes of all calls before this one in force: the host confirms that they are durable.

        Raises StateError where another copy of this enclave was faster, or the key of a released round is not erased.
        """
        with self.lock:
            # In one order: of two enclaves that both may, one gets the first population, and with it all of them.
            for _, population in sorted(self.populations.items()):
                population.commit()
            held = self.holdings.rounds()
            released = [round for round in held if round.status is Status.SEALED]
            self.closed.add_charged(held)
            self.closed.add_ended(self._ending)
            self._remember_voided()
            self._over.update(round.task_sha256 for round in released)
            self._over.update(self._ended)
            self._ending, self._ended = [], set()
            for round in released:
                self.holdings.drop_round(round)
            self._show_charters()
            self.erase_over()

    def _remember_voided(self) -> None:
        """Has the refusals of void openings signed, as far as they are in force, until the round is charged."""
        for _, population in sorted(self.populations.items()):
            self.closed.add_voided(population.voided_uncharged)

    def _show_charters(self) -> None:
        """Records charters in force in the event log, so that evidence shows the owners of each population."""
        for name in sorted(self.populations):
            charter = self.populations[name].charter
            if charter is not None and self._shown.get(name) != charter.sha256:
                if name not in self._shown:
                    self.identity.guest.extend(f"ledger {name} {self.populations[name].record.ledger_id.hex()}")
                self.identity.guest.extend(f"population {name} {charter.sha256.hex()}")
                self._shown[name] = charter.sha256


class RoundKeys:
    """Slots and signatures of one enclave's rounds."""

    def __init__(self, identity: EnclaveIdentity) -> None:
        self._identity = identity

    def new_sealer(self, task_sha256: bytes) -> Sealer:
        """A sealer for the records of a new round; the task's earlier rounds become unreadable for good.

        Raises StateError where the platform cannot store or erase.
        """
        return self._sealer(self._identity.guest.slots.create(task_sha256.hex()))

    def sealer(self, task_sha256: bytes) -> Sealer | None:
        """The sealer for the records of the task's round; None if its secret is erased."""
        secret = self._identity.guest.slots.read(task_sha256.hex())
        return None if secret is None else self._sealer(secret)

    def erase(self, tasks: Iterable[bytes]) -> None:
        """Erases the secrets for the records of these tasks' rounds. Idempotent. Raises StateError if that fails."""
        names = [task.hex() for task in tasks]
        if names:
            self._identity.guest.slots.erase(names)

    def signed(self, round: Round, voided: Sequence[VoidedKey] = ()) -> common_pb2.SignedRoundKey:
        """A round's signed public key: the same bytes at every call and after every restart.

        ``voided`` are openings of any rounds that never have a release, in force.
        """
        data = domains.round_key(
            round.task_sha256, round.number, round.model_sha256, self._identity.policy.sha256, round.public_key
        )
        sign = self._identity.signing.sign
        key = common_pb2.SignedRoundKey(hpke_key=round.public_key, signature=sign(domains.ROUND_KEY, data))
        for opening in voided:
            key.voided.add(hpke_key=opening.hpke_key, signature=sign(domains.VOIDED_KEY, domains.voided_key(*opening)))
        return key

    def _sealer(self, secret: bytes) -> Sealer:
        derived = HKDF(hashes.SHA384(), length=sealing.KEY_BYTES, salt=secret, info=domains.ROUND_SEALING)
        return Sealer(derived.derive(self._identity.sealing_key))

"""The aggregator's enclave: verifies, counts once, charges before it releases, and gives one release per round.

Guarantee: about one user, everything that leaves this object over the life of a task is (ε, δ)-DP at the task's terms,
and at the policy's for all tasks of a population, whatever the host does: stop it, restart it from old state, run two
copies, replay or withhold contributions. What leaves is signed releases, the ledger, counts of uploads and refusals.

The object does no input or output and logs nothing. Calls that change its state answer with *writes*: sealed records
that the host makes durable, all or none, **before** it forwards the reply. A host that does not only harms itself.

Life of a round; the calls in brackets can be repeated at any time::

    open_round ─ submit, submit, .. ─ [charge] ─ writes durable ─ [release] ─ writes durable ─ reply

Rules P22 to P34 of the privacy design; docs/threat-model.md names the test that attacks each.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import MaskedSum
from odp.enclave.identity import EnclaveIdentity
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.privacy.mechanisms import IntegerNoise
from odp.signed_task import open_order
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator import records as names
from trusted_aggregator.interface import Charged, Released, RoundState, Status, Writes
from trusted_aggregator.noise import noise_of
from trusted_aggregator.opened_task import OpenedTask
from trusted_aggregator.orders import no_charge, parse_order, require_same_model, void
from trusted_aggregator.records import SealedRecord
from trusted_aggregator.releasing import signed_release
from trusted_aggregator.rounds import Round, draw_round_noise, noised_here
from trusted_aggregator.sealed_state import LedgerRecord, RoundNoise, RoundRecord, Sealer
from trusted_aggregator.spending import Spending

#: A release travels in one reply of at most 32 MiB, with room for all that is not integers.
LARGEST_RELEASE_BYTES = 31 * 2**20


class AggregatorCore:
    """The enclave. Thread-safe: ``submit`` runs in parallel, everything else one at a time.

    Args:
        identity: keys, policy and counters of this enclave.
        noise: what is added to the sums; the default draws exact Gaussians from the operating system's randomness.
            An object of the same process is the only way to another noise (rule P23), but for a policy with a
            ``test_noise_seed``, which evidence shows and devices refuse unless told otherwise.

    Raises:
        ConfigurationError: the policy is of another role.
    """

    def __init__(self, identity: EnclaveIdentity, *, noise: IntegerNoise | None = None) -> None:
        if identity.policy.role != "aggregator":
            raise ConfigurationError(f"Expected a policy of role 'aggregator', got role={identity.policy.role!r}")
        self._identity = identity
        self._noise_of = noise_of(identity.policy) if noise is None else lambda round: noise
        self._sealer = Sealer(identity.sealing_key)
        self._admin = threading.RLock()
        self._lookup = threading.Lock()
        self._tasks: dict[bytes, OpenedTask] = {}
        self._rounds: dict[tuple[bytes, int], Round] = {}
        self._spending: dict[str, Spending] = {}
        self._announced: set[bytes] = set()
        #: What ``restore`` found out and the host has to store: charged rounds that are void.
        self.restored_writes: Writes = ()

    @classmethod
    def restore(
        cls,
        identity: EnclaveIdentity,
        records: Mapping[str, bytes],
        contributions: Callable[[bytes, int], Iterable[bytes]],
        *,
        noise: IntegerNoise | None = None,
    ) -> AggregatorCore:
        """The enclave as it was when ``records`` were written.

        ``records`` are all records but those under ``RELEASE_PREFIX``; ``contributions(task_sha256, round)`` gives the
        accepted ciphertexts of a round that is not released. A charged round whose contributions or noise are not those
        that were charged is void: its charge stays (rule P31).

        Raises:
            StateError: a record was changed, or the ledger was rolled back.
        """
        core = cls(identity, noise=noise)
        opened = {
            key: core._sealer.open(key, data)
            for key, data in records.items()
            if not key.startswith(names.RELEASE_PREFIX)
        }
        for key in opened:
            if key.startswith("ledger/"):
                record = LedgerRecord.decode(opened[key])
                core._spending[record.ledger.population] = Spending(identity, record.ledger.population, record=record)
        for key in opened:
            if key.startswith("task/"):
                task = OpenedTask.open(common_pb2.SignedTask.FromString(opened[key]))
                core._tasks[task.sha256] = task
        for key in opened:
            if key.startswith("round/"):
                core._restore_round(RoundRecord.decode(opened[key]), opened, contributions)
        core.restored_writes = tuple(
            core._ledger_record(spending) for spending in core._spending.values() if spending.changed
        )
        return core

    def open_round(self, signed_task: common_pb2.SignedTask, order: bytes, signature: bytes) -> Writes:
        """Opens the round that ``order`` names, and draws its noise. Idempotent.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or not of one developer.
            PrivacyError: the cohort minimum is below the policy's, the rounds before were not released, the round has
                another model or was charged already; BudgetExceeded where a budget cannot pay.
            StateError: the population's ledger was rolled back.
        """
        given = OpenedTask.open(signed_task)
        parsed = open_order(order, signature, domain=domains.OPEN, developer_key=given.definition.developer_key)
        if parsed.task_sha256 != given.sha256:
            raise ConfigurationError("the round order belongs to another task")
        with self._admin:
            existing = self._rounds.get((given.sha256, parsed.round))
            if existing is not None:
                require_same_model(existing, parsed)
                if existing.status is Status.VOID:
                    raise void(existing)
                self._announce(given)
                return self._records_of(given, existing) if existing.status is Status.OPEN else ()
            self._require_may_open(given, parsed.round)
            self._announce(given)
            query = given.queries[parsed.round]
            noise = draw_round_noise(query, self._noise_of(parsed.round), model_sha256=parsed.model_sha256)
            opened = Round(
                task_sha256=given.sha256,
                order=parsed,
                record=RoundRecord(order=order, noise_id=noise.noise_id),
                query=query,
                noise=noise,
                policy=self._identity.policy,
                sampling=given.sampling,
                most=given.most(self._identity.policy.population_delta),
            )
            writes = self._records_of(given, opened)
            with self._lookup:
                self._tasks[given.sha256] = given
                self._rounds[given.sha256, parsed.round] = opened
            return writes

    def submit(self, task_sha256: bytes, round: int, sealed: bytes, *, masked_sha256: bytes = b"") -> Refusal | None:
        """Counts one sealed contribution, once; None means accepted, and to be stored before it is acknowledged."""
        found = self._lookup_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.submit([sealed], self._identity.hpke, masked_sha256=[masked_sha256])[0]

    def submit_batch(self, submits: Sequence[aggregator_pb2.SubmitRequest]) -> list[Refusal | None]:
        """``submit`` for each; those of one round in order."""
        answers: list[Refusal | None] = [None] * len(submits)
        rounds: dict[tuple[bytes, int], list[int]] = {}
        for number, given in enumerate(submits):
            rounds.setdefault((given.task_sha256, given.round), []).append(number)
        for key, numbers in rounds.items():
            held = self._lookup_round(*key)
            if isinstance(held, Refusal):
                found: list[Refusal | None] = [held] * len(numbers)
            else:
                sealed = [submits[number].sealed_contribution for number in numbers]
                masked = [submits[number].masked_sha256 for number in numbers]
                found = held.submit(sealed, self._identity.hpke, masked_sha256=masked)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers

    def sealed_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of every well-formed sealed contribution to a round: what a host may take in of one.

        The refusal that each of them would meet where the round takes none.
        """
        found = self._lookup_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.sealed_bytes if found.status is Status.OPEN else Refusal.ROUND_CLOSED

    def masked_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of the masked vector that comes with each contribution, 0 where none does; or the refusal."""
        found = self._lookup_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.masked_bytes if found.status is Status.OPEN else Refusal.ROUND_CLOSED

    def masked_set(self, task_sha256: bytes, round: int, start: int) -> bytes:
        """Digests (32 bytes each, ascending) of the masked vectors that a charged round sums, a page from ``start`` on.

        Raises StateError where no such round is charged and waits for its sum.
        """
        with self._admin:
            found = self._lookup_round(task_sha256, round)
            if isinstance(found, Refusal) or found.status is not Status.CHARGED or found.halves is None:
                raise StateError(f"round {round} does not wait for a masked sum; close it first")
            return found.halves.page(start)

    def announce(self, task_sha256: bytes, round: int, clients: int, set_sha256: bytes) -> None:
        """Notes what the host can unmask in a round of SecAgg+; see ``Round.announce``, and what it raises."""
        with self._admin:
            found = self._lookup_round(task_sha256, round)
            if isinstance(found, Refusal):
                raise StateError(f"round {round} is not open here; open it first")
            found.announce(clients, set_sha256)

    def _lookup_round(self, task_sha256: bytes, round: int) -> Round | Refusal:
        with self._lookup:
            if task_sha256 not in self._tasks:
                return Refusal.WRONG_TASK
            return self._rounds.get((task_sha256, round), Refusal.WRONG_ROUND)

    def charge(self, order: bytes, signature: bytes) -> Charged:
        """Closes the set of contributions and charges the ledger for it. Idempotent.

        Raises:
            SignatureError, ConfigurationError: the order is not valid, or of no round that is open here.
            PrivacyError: fewer contributions than the minimum, or the budget cannot pay: the round stays open; or the
                round is void.
            StateError: the ledger was rolled back.
        """
        with self._admin:
            task, found = self._find(parse_order(order))
            open_order(order, signature, domain=domains.CLOSE, developer_key=task.definition.developer_key)
            spending = self._spending_of(task)
            if found.status is Status.VOID:
                raise void(found)
            if found.status is Status.OPEN:
                self._charge_open(task, found, spending)
            entry = spending.charged(task.id, found.number)
            if entry is None:
                raise no_charge(found)
            released = found.status is Status.RELEASED
            writes = () if released else (self._ledger_record(spending),)
            return Charged(task.sha256, found.number, entry.contributions, released, writes, found.masked_bytes)

    def release(self, order: bytes, *, stored: bytes | None = None, masked: MaskedSum | None = None) -> Released:
        """The release of a charged round, whose charge the host has stored. The same bytes for ever.

        ``stored`` is the record under ``release_key`` where the round was released before, ``masked`` the host's half
        where it was not and is masked.

        Raises:
            ConfigurationError: the order is of no round that is open here.
            PrivacyError: the round was not charged, or is void, or the host's half is of another set.
            StateError: the ledger was rolled back, or the stored release or the host's half is missing or changed.
        """
        with self._admin:
            task, found = self._find(parse_order(order))
            if found.status is Status.RELEASED:
                return Released(self._stored_release(found, stored), ())
            if found.status is Status.VOID:
                raise void(found)
            if found.status is not Status.CHARGED:
                raise PrivacyError(f"round {found.number} was not charged: a release is charged first")
            spending = self._spending_of(task)
            spending.commit()
            entry = spending.charged(task.id, found.number)
            if entry is None or entry.events != task.charges(found.number):
                raise no_charge(found)
            signed = signed_release(found, entry, self._identity.signing, masked=masked)
            spending.mark_sealed(task_id=task.id, round=found.number)
            found.record = RoundRecord(
                order=found.record.order,
                noise_id=found.record.noise_id,
                release_sha256=hashlib.sha256(signed).digest(),
            )
            found.status = Status.RELEASED
            found.erase()
            writes = (
                self._ledger_record(spending),
                self._sealer.seal(names.round_key(task.sha256, found.number), found.record.encode()),
                self._sealer.seal(names.release_key(task.sha256, found.number), signed),
                SealedRecord(names.noise_key(task.sha256, found.number), None),
            )
            return Released(signed, writes)

    def give_up(self, task_sha256: bytes, round: int) -> Writes:
        """Ends a charged round of SecAgg+ whose survivors cannot be unmasked any more: its charge stays. Idempotent.

        Raises StateError where no such round is charged.
        """
        with self._admin:
            found = self._lookup_round(task_sha256, round)
            if (
                isinstance(found, Refusal)
                or found.status not in (Status.CHARGED, Status.VOID)
                or not found.is_announced
            ):
                raise StateError(f"round {round} is no charged round of SecAgg+: there is nothing to give up")
            spending = self._spending_of(self._tasks[task_sha256])
            if found.status is Status.CHARGED:
                spending.commit()
                spending.mark_void(task_id=self._tasks[task_sha256].id, round=round)
                found.status = Status.VOID
                found.erase()
            return (self._ledger_record(spending),)

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        """(the population's ledger as canonical JSON, signature); None for an unknown task.

        Raises StateError where another copy of this enclave has charged since.
        """
        with self._admin:
            task = self._tasks.get(task_sha256)
            if task is None:
                return None
            data = self._spending_of(task).ledger.encode()
            return data, self._identity.signing.sign(domains.LEDGER, data)

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        """How many contributions a round has; None for an unknown one."""
        with self._lookup:
            task, found = self._tasks.get(task_sha256), self._rounds.get((task_sha256, round))
        return None if task is None or found is None else self._state(task, found)

    def round_states(self) -> list[RoundState]:
        """All rounds that were ever opened, in the order of task and number."""
        with self._lookup:
            held = sorted(self._rounds.items())
        return [self._state(self._tasks[key[0]], found) for key, found in held]

    def _state(self, task: OpenedTask, found: Round) -> RoundState:
        contributions = found.contributions
        if found.status is not Status.OPEN:
            spending = self._spending.get(task.definition.population)
            entry = None if spending is None else spending.charged(task.id, found.number)
            contributions = 0 if entry is None else entry.contributions
        return RoundState(task.sha256, found.number, found.status, contributions)

    def _require_may_open(self, task: OpenedTask, number: int) -> None:
        cohort, policy = task.definition.cohort, self._identity.policy
        if cohort.minimum < policy.minimum_cohort:
            raise PrivacyError(
                f"Expected cohort.minimum={cohort.minimum} of task {task.definition.name!r} to be at least "
                f"{policy.minimum_cohort}, the minimum of this enclave's policy"
            )
        if task.sampling is not None and policy.accumulation != "oblivious":
            raise PrivacyError(
                f"accumulation={policy.accumulation!r} of this enclave's policy shows which contributions count: task "
                f"{task.definition.name!r} is sampled in secret, and needs 'oblivious'"
            )
        if number >= len(task.queries):
            raise ConfigurationError(f"Expected round={number} of the task to be from 0 to {len(task.queries) - 1}")
        for planned, query in enumerate(task.queries):
            size = 8 * sum(release.coordinates for release in query.releases)
            if size > LARGEST_RELEASE_BYTES:
                raise ConfigurationError(
                    f"The release of round {planned} would have {size} bytes, more than {LARGEST_RELEASE_BYTES}: "
                    "choose a smaller rank, or fewer items or bins"
                )
        spending = self._spending_of(task)
        if spending.charged(task.id, number) is not None:
            raise PrivacyError(f"round {number} is void: it was charged, and its state is gone; submit a new task")
        if number:
            before = self._rounds.get((task.sha256, number - 1))
            if before is None or before.status is not Status.RELEASED:
                raise PrivacyError(f"round {number} cannot be opened before round {number - 1} is released")
        elif task.sha256 not in self._tasks:
            everything = [event for planned in range(len(task.queries)) for event in task.charges(planned)]
            spending.require_room(
                task_id=task.id, events=everything, budget=task.budget, users=cohort.goal,
                what=f"task {task.definition.name!r} with all its {len(task.queries)} rounds",
            )  # fmt: skip
        spending.require_room(
            task_id=task.id, events=task.charges(number), budget=task.budget,
            users=cohort.goal, what=f"round {number} of task {task.definition.name!r}",
        )  # fmt: skip

    def _charge_open(self, task: OpenedTask, found: Round, spending: Spending) -> None:
        minimum = max(task.definition.cohort.minimum, self._identity.policy.minimum_cohort)
        if found.contributions < minimum:
            raise PrivacyError(
                f"round {found.number} has {found.contributions} contributions of at least {minimum}: it stays open"
            )
        contributions, set_sha256 = found.freeze()
        try:
            spending.charge(
                task_id=task.id, round=found.number, events=task.charges(found.number), budget=task.budget,
                contributions=contributions, set_sha256=set_sha256, noise_id=found.record.noise_id,
            )  # fmt: skip
        except BaseException:
            found.thaw()
            raise
        found.status = Status.CHARGED

    def _stored_release(self, found: Round, stored: bytes | None) -> bytes:
        if stored is None:
            raise StateError(f"the release of round {found.number} is not stored; restore the newest state folder")
        signed = self._sealer.open(names.release_key(found.task_sha256, found.number), stored)
        if hashlib.sha256(signed).digest() != found.record.release_sha256:
            raise StateError(f"the stored release of round {found.number} is another one: restore the state folder")
        return signed

    def _restore_round(
        self,
        record: RoundRecord,
        opened: Mapping[str, bytes],
        contributions: Callable[[bytes, int], Iterable[bytes]],
    ) -> None:
        order = parse_order(record.order)
        task = self._tasks.get(order.task_sha256)
        if task is None:
            raise StateError(f"the sealed records lack the task of round {order.round}: restore the state folder")
        query = task.queries[order.round]
        data = opened.get(names.noise_key(task.sha256, order.round))
        noise = None if data is None else RoundNoise.decode(data, noised_here(query))
        if noise is not None and (noise.noise_id, noise.model_sha256) != (record.noise_id, order.model_sha256):
            noise = None  # of another opening of this round
        restored = Round(
            task_sha256=task.sha256,
            order=order,
            record=record,
            query=query,
            noise=noise,
            policy=self._identity.policy,
            sampling=task.sampling,
            most=task.most(self._identity.policy.population_delta),
        )
        self._rounds[task.sha256, order.round] = restored
        spending = self._spending_of(task)
        entry = spending.charged(task.id, order.round)
        if entry is not None and record.release_sha256 and entry.noise_id == record.noise_id:
            restored.status = Status.RELEASED
            restored.erase()
            return
        if entry is None and record.release_sha256:
            raise no_charge(restored)
        if noise is None and entry is None:
            raise StateError(f"the sealed noise of round {order.round} is missing; restore the newest state folder")
        if entry is not None and spending.is_void(task_id=task.id, round=order.round):
            restored.status = Status.VOID
            restored.erase()
            return
        restored.resubmit(contributions(task.sha256, order.round), self._identity.hpke)
        if entry is None:
            return
        as_charged = (entry.contributions, entry.id_set_sha256, entry.noise_id)
        if noise is not None and (*restored.freeze(), record.noise_id) == as_charged:
            restored.status = Status.CHARGED
        else:
            restored.status = Status.VOID
            restored.erase()
            spending.mark_void(task_id=task.id, round=order.round)

    def _find(self, order: aggregator_pb2.RoundOrder) -> tuple[OpenedTask, Round]:
        task, found = self._tasks.get(order.task_sha256), self._rounds.get((order.task_sha256, order.round))
        if task is None or found is None:
            raise ConfigurationError(f"round {order.round} of that task is not open here; open it first")
        require_same_model(found, order)
        return task, found

    def _spending_of(self, task: OpenedTask) -> Spending:
        population = task.definition.population
        if population not in self._spending:
            self._spending[population] = Spending(self._identity, population)
        return self._spending[population]

    def _ledger_record(self, spending: Spending) -> SealedRecord:
        record = spending.record
        return self._sealer.seal(names.ledger_key(record.ledger.population), record.encode())

    def _announce(self, task: OpenedTask) -> None:
        """Puts the task into the log that evidence carries, once per launch: who attests sees what is served."""
        if task.sha256 not in self._announced:
            self._identity.guest.extend(f"task {task.id}")
            self._announced.add(task.sha256)

    def _records_of(self, task: OpenedTask, opened: Round) -> Writes:
        if opened.noise is None:
            raise StateError(f"the noise of round {opened.number} is not stored")
        noise = opened.noise.encode(noised_here(opened.query))
        return (
            self._sealer.seal(names.task_key(task.sha256), task.signed.SerializeToString(deterministic=True)),
            self._sealer.seal(names.round_key(task.sha256, opened.number), opened.record.encode()),
            self._sealer.seal(names.noise_key(task.sha256, opened.number), noise),
        )

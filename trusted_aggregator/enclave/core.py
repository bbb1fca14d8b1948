"""The aggregator's enclave: verifies, counts once, charges before it releases, and gives one release per round.

Guarantee: about one user, everything that leaves this object over the life of a task is (ε, δ)-DP at the task's terms,
and at the policy's for all tasks of a population, whatever the host does: stop it, restart it from old state, run two
copies, replay or withhold contributions. What leaves is signed releases, the ledger, counts of uploads and refusals.
Only the keys that own a population spend its budget.

The object does no input or output and logs nothing. Calls that change its state answer with *writes*: sealed records
that the host makes durable, all or none, **before** it forwards the reply. ``commit`` then puts them in force: nothing
leaves that rests on a change before that. A host that does otherwise only harms itself.

Life of a round; the calls in brackets can be repeated at any time::

    open_round ─ submit, submit, .. ─ [charge] ─ durable, [commit] ─ [seal_release] ─ durable, [commit] ─ [release]

Rules P22 to P34 of the privacy design; docs/threat-model.md names the test that attacks each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from odp.crypto import domains
from odp.enclave.identity import EnclaveIdentity
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.privacy.ledger_entry import ReleaseState
from odp.privacy.mechanisms import IntegerNoise
from odp.signed.charter import charter_sha256, open_charter
from odp.signed.task import open_order, open_task, task_sha256
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2, population_pb2
from trusted_aggregator.boundary.interface import Charged, HostSum, Status
from trusted_aggregator.boundary.orders import not_open, open_abandon_order, parse_order, require_same_model, void
from trusted_aggregator.enclave.large_values import WithLargeValues
from trusted_aggregator.enclave.noise import noise_of
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.opening import make_room, require_may_begin, require_may_open
from trusted_aggregator.enclave.releasing import release_sha256, signed_release
from trusted_aggregator.enclave.restoring import Contributions, held_round, restore
from trusted_aggregator.enclave.taking_over import TakenOver
from trusted_aggregator.rounds.admission import require_same_key, sealed_key
from trusted_aggregator.rounds.enclave_half import Round, new_record
from trusted_aggregator.state import records as names
from trusted_aggregator.state.chartering import changeable
from trusted_aggregator.state.population import Population, unfounded
from trusted_aggregator.state.records import SealedRecord, Writes


class AggregatorCore(WithLargeValues):
    """The enclave. Thread-safe: ``submit`` runs in parallel, everything else one at a time.

    Args:
        identity: keys, policy and counters of this enclave.
        noise: what is added to the sums; the default draws exact Gaussians from the operating system's randomness.
            An object of the same process is the only way to another noise (rule P23), but for a policy with a
            ``test_noise_seed``, which evidence shows and devices refuse by default.

    Raises:
        ConfigurationError: the policy is of another role.
    """

    def __init__(self, identity: EnclaveIdentity, *, noise: IntegerNoise | None = None) -> None:
        if identity.policy.role != "aggregator":
            raise ConfigurationError(f"Expected a policy of role 'aggregator', got role={identity.policy.role!r}")
        super().__init__(identity)
        self._noise_of = noise_of(identity.policy) if noise is None else lambda round: noise
        # Tasks whose end is not in force yet, held or not: a host may have withheld their records.
        self._ended: set[bytes] = set()
        # What evidence shows of each population, and how often it changed since the launch.
        self._shown: dict[str, bytes] = {}
        self._changes: Counter[str] = Counter()
        #: What ``restore`` found out and the host has to store: charged rounds that are void, records that are over.
        self.restored_writes: Writes = ()

    @classmethod
    def restore(
        cls,
        identity: EnclaveIdentity,
        records: Mapping[str, bytes],
        contributions: Contributions,
        *,
        noise: IntegerNoise | None = None,
    ) -> AggregatorCore:
        """The enclave as it was when ``records`` were written.

        ``records`` are all records but those under ``LATER_PREFIXES``; ``contributions(task_sha256, round)`` gives the
        accepted ciphertexts of a round that is not released. A charged round whose contributions are not those that
        were charged is void: its charge stays (rule P31).

        Raises:
            StateError: a record was changed, or a population was rolled back.
        """
        core = cls(identity, noise=noise)
        core._populations, core._holdings, erased = restore(
            identity, core._sealer, core._keys.sealer, records, contributions, streams=core._streams
        )
        core._closed.add_charged(core._holdings.rounds())
        core._over.update(core._holdings.tasks_without_rounds())
        core._remember_voided()
        core._erase_over()
        core._show_charters()
        changed = [population for population in core._populations.values() if population.changed]
        core.restored_writes = (*(one for each in changed for one in each.writes(core._sealer)), *erased)
        return core

    @classmethod
    def succeed(cls, taken: TakenOver, *, noise: IntegerNoise | None = None) -> AggregatorCore:
        """The enclave that continues the state of another version; the host has to store ``restored_writes``."""
        core = cls(taken.identity, noise=noise)
        core._populations, core._holdings, core._streams = dict(taken.populations), taken.holdings, taken.streams
        written = (record for population in core._populations.values() for record in population.writes(core._sealer))
        core.restored_writes = (*written, *taken.tasks)
        return core

    # Whose a population is

    def set_charter(self, signed: population_pb2.SignedCharter) -> Writes:
        """Founds a population, or changes its owners; tasks of former owners end. Idempotent.

        Raises:
            ConfigurationError: the charter is malformed.
            SignatureError, PrivacyError: it is not signed by those who may, does not follow the one in force, or a
                limit is reached.
            StateError: the population was rolled back.
        """
        charter = open_charter(signed)
        with self._admin:
            population = self._populations.get(charter.population)
            if population is not None and population.record.charter_bytes:
                known = population_pb2.SignedCharter.FromString(population.record.charter_bytes)
                if charter_sha256(known) == charter.sha256:
                    return population.writes(self._sealer) if population.is_pending else ()
            self._require_holder()
            population = changeable(charter, self._populations, self._identity, changes=self._changes)
            retired = [
                task for task in self._holdings.tasks_of(charter.population) if task.developer_key not in charter.owners
            ]
            ended = [task.sha256 for task in retired]
            population.set_charter(charter, abandoned=ended, voided=self._openings(ended))
            self._populations[charter.population] = population
            self._changes[charter.population] += 1
            return (*population.writes(self._sealer), *self._end(retired, population))

    def charter(self, population: str) -> population_pb2.SignedCharter | None:
        """The charter in force; None where the population is not founded."""
        with self._admin:
            found = self._populations.get(population)
            return None if found is None or found.charter is None else found.charter.signed

    def commit(self) -> None:
        """Puts the writes of all calls before this one in force: the host confirms that they are durable.

        Raises StateError where another copy of this enclave was faster, or the key of a released round is not erased.
        """
        with self._admin:
            # In one order: of two enclaves that both may, one gets the first population, and with it all of them.
            for _, population in sorted(self._populations.items()):
                population.commit()
            held = self._holdings.rounds()
            released = [round for round in held if round.status is Status.SEALED]
            self._closed.add_charged(held)
            self._closed.add_ended(self._ending)
            self._remember_voided()
            self._over.update(round.task_sha256 for round in released)
            self._over.update(self._ended)
            self._ending, self._ended = [], set()
            for round in released:
                self._holdings.drop_round(round)
            self._show_charters()
            self._erase_over()

    def abandon(
        self, signed_task: common_pb2.SignedTask, order: bytes, signature: population_pb2.CharterSignature
    ) -> Writes:
        """Ends a task by an order of an owner of its population: contributions, sums and noise are erased. Idempotent.

        What it has charged stays charged; nothing of it is accepted or released any more.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or not of one task.
            PrivacyError: the signer does not own the population, or too many tasks were ended and this one is not held.
            StateError: the population was rolled back.
        """
        definition, task = open_task(signed_task), task_sha256(signed_task)
        open_abandon_order(order, task_sha256=task, signature=signature)
        with self._admin:
            population = self._population(definition.population)
            if task in population.record.abandoned:
                return population.writes(self._sealer) if population.is_pending else ()
            population.require_owner(signature.key, of=f"the end of task {definition.name!r}")
            held = self._holdings.task(task)
            population.abandon(task, held=held is not None, voided=self._openings([task]))
            self._ended.add(task)
            self._holdings.end([task])
            return (*population.writes(self._sealer), *self._end([] if held is None else [held], population))

    # Rounds

    def check_task(self, signed_task: common_pb2.SignedTask) -> None:
        """Returns if the task could begin now, after its population is founded. Raises as ``open_round``."""
        task = OpenedTask.open(signed_task)
        with self._admin:
            if not self._holdings.is_ended(task.sha256) and self._holdings.task(task.sha256) is None:
                require_may_begin(task, self._populations, holdings=self._holdings, identity=self._identity)

    def open_round(
        self,
        signed_task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> Writes:
        """Opens the round that ``order`` names, and draws its noise. Idempotent.

        ``token_key`` is of the issuer that the population's charter names, and None where it names none.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or not of one developer.
            PrivacyError: the developer does not own the population, a limit of the population is reached, the cohort
                minimum is below the policy's, the rounds before were not released, the round has another model or token
                key or was charged already, its token key is missing or not the issuer's; BudgetExceeded where a budget
                cannot pay.
            StateError: the population was rolled back.
        """
        task = OpenedTask.open(signed_task)
        parsed = open_order(order, signature, domain=domains.OPEN, developer_key=task.developer_key)
        if parsed.task_sha256 != task.sha256:
            raise ConfigurationError("the round order belongs to another task")
        with self._admin:
            population = self._population(task.population)
            self._require_authorized(task, population)
            existing = self._find_round(task.sha256, parsed.round)
            if isinstance(existing, Round):
                require_same_model(existing.number, existing.model_sha256, parsed)
                require_same_key(existing.number, existing.record.token_key, token_key)
                return ()
            standing = population.find(task.id, parsed.round)
            if standing is not None and standing.state is ReleaseState.SEALED:
                if self._holdings.task(task.sha256) is None:
                    raise PrivacyError(
                        f"round {parsed.round} of {task.label} was released, and this enclave has "
                        "erased the task: submit a new task"
                    )
                return ()
            require_may_open(
                task, parsed.round, population=population, holdings=self._holdings, policy=self._identity.policy
            )
            admitting = sealed_key(token_key, population.charter, task_sha256=task.sha256, round=parsed.round)
            participation = self._streams.participation(task, parsed.round, population)
            if not parsed.round:
                self._streams.require_room(task, self._holdings)
            erased = make_room(task, parsed.round, population=population, holdings=self._holdings)
            query = task.queries[parsed.round]
            noise = task.rounds.draw_noise(query, self._noise_of(parsed.round))
            record = new_record(order, noise, token_key=admitting, policy_sha256=self._identity.policy.sha256)
            opened = held_round(task, record, self._identity, participation)
            sealer = self._keys.new_sealer(task.sha256)
            self._streams.erase([task.sha256])
            self._over.discard(task.sha256)
            self._holdings.add_task(task)
            self._holdings.add_round(opened)
            return (
                self._sealer.seal(names.task_key(task.sha256), task.record.encode()),
                sealer.seal(names.round_key(task.sha256, parsed.round), opened.record.encode()),
                self._sealed_noise(opened, noise, sealer),
                *erased,
            )

    def round_key(self, task_sha256: bytes, round: int) -> common_pb2.SignedRoundKey | None:
        """The signed public key of an open or charged round; the host forwards it once the opening is stored."""
        with self._admin:
            found = self._find_round(task_sha256, round)
            return None if isinstance(found, Refusal) else self._signed_key(found)

    def charge(self, order: bytes, signature: bytes) -> Charged:
        """Closes the set of contributions and charges the ledger for it. Idempotent.

        Raises:
            SignatureError, ConfigurationError: the order is not valid, or of no round that is open here.
            PrivacyError: the developer does not own the population any more, fewer contributions than the minimum, or
                the budget cannot pay: the round stays open; or the round is void, or its task was ended.
            StateError: the population was rolled back, or an earlier change of it is not stored yet.
        """
        with self._admin:
            parsed = parse_order(order)
            task, population = self._ordered(parsed)
            open_order(order, signature, domain=domains.CLOSE, developer_key=task.developer_key)
            found = self._find_round(task.sha256, parsed.round)
            if isinstance(found, Round):
                require_same_model(found.number, found.model_sha256, parsed)
                if found.status is Status.OPEN:
                    self._charge_open(task, found, population)
            standing = population.find(task.id, parsed.round)
            if standing is None:
                raise not_open(parsed.round)
            if not (released := standing.state is ReleaseState.SEALED) and not isinstance(found, Round):
                raise void(parsed.round)
            writes = () if released else population.writes(self._sealer)
            part_bytes = found.host_part_bytes if isinstance(found, Round) else 0
            return Charged(task.sha256, parsed.round, standing.contributions, released, writes, part_bytes)

    def seal_release(
        self, order: bytes, *, noise: bytes | None = None, stream: bytes | None = None, host_sum: HostSum | None = None
    ) -> Writes:
        """Makes the one release of a charged round, sealed. Idempotent.

        Its hash is in force before its signature leaves: of two that are made of two sums, by whatever restarts in
        between, at most one is ever opened by ``release``. ``noise`` is the record under ``noise_key``, ``stream`` that
        under ``stream_key``, ``host_sum`` the sum of the host where it holds a part.

        Raises:
            ConfigurationError: the order is of no round that is open here.
            PrivacyError: the round was not charged, or is void, or its task was ended, or the host's half is of another
                set.
            StateError: the population was rolled back, its charge is not committed, or the noise or the host's half is
                missing or changed.
        """
        with self._admin:
            parsed = parse_order(order)
            task, population = self._ordered(parsed)
            found = self._find_round(task.sha256, parsed.round)
            standing = population.find(task.id, parsed.round)
            if standing is not None and standing.state is ReleaseState.SEALED:
                return population.writes(self._sealer) if population.is_pending else ()
            if standing is None:
                raise PrivacyError(f"round {parsed.round} was not charged: a release needs a charge first")
            if not isinstance(found, Round) or standing.charge is None:
                raise void(parsed.round)
            require_same_model(found.number, found.model_sha256, parsed)
            population.require_committed()
            if standing.charge.events != task.charges(found.number):
                raise StateError(f"the ledger has another charge of round {found.number}; restore the state folder")
            drawn = self._opened_noise(found, noise)
            encoder = self._streams.encoder(task, found, stream)
            made = signed_release(
                found, standing.charge, self._identity.signing, noise=drawn, host_sum=host_sum, encoder=encoder
            )
            sha256 = release_sha256(made.signed)
            after = self._streams.after(task, found, encoder, sha256)
            population.seal(task_id=task.id, round=found.number, release_sha256=sha256)
            self._streams.move(task.sha256, after)
            found.status = Status.SEALED
            found.erase()
            return (
                *population.writes(self._sealer),
                self._sealed_release(found, made),
                SealedRecord(names.round_key(task.sha256, found.number), None),
                SealedRecord(names.noise_key(task.sha256, found.number), None),
                *(() if after is None else after.writes),
            )

    def release(self, order: bytes, *, stored: bytes) -> bytes:
        """The serialized StoredRelease of a round whose sealed release is in force: the same bytes each time.

        ``stored`` is the record under ``release_key``. Where the values are in pieces, their key leaves here.

        Raises:
            ConfigurationError: the order is of no round of this enclave.
            PrivacyError: the release is not sealed and in force, the round is void, or its task was ended.
            StateError: the population was rolled back, the stored release is missing or another one, or the round's key
                is not erased.
        """
        with self._admin:
            parsed = parse_order(order)
            task, population = self._ordered(parsed)
            in_force = population.ledger.find(task.id, parsed.round)
            if in_force is None or in_force.state is not ReleaseState.SEALED:
                raise PrivacyError(
                    f"round {parsed.round} has no release in force: charge it and seal its release first"
                )
            if not stored:
                raise StateError(f"the release of round {parsed.round} is not stored; restore the newest state folder")
            data = self._sealer.open(names.release_key(task.sha256, parsed.round), stored)
            signed = common_pb2.SignedRelease.FromString(data)
            if release_sha256(signed) != in_force.release_sha256:
                raise StateError(f"the stored release of round {parsed.round} is altered: restore the state folder")
            model = common_pb2.Release.FromString(signed.release).model_sha256
            require_same_model(parsed.round, model, parsed)
            self._erase_over()
            return data

    def give_up(self, task_sha256: bytes, round: int) -> Writes:
        """Ends a charged round whose sum or noise the host has lost; its charge stays. Idempotent.

        Raises StateError where no such round is charged.
        """
        with self._admin:
            task = self._holdings.task(task_sha256)
            standing = None if task is None else self._populations[task.population].find(task.id, round)
            if task is None or standing is None or standing.state is ReleaseState.SEALED:
                raise StateError(f"round {round} is not a charged round: there is nothing to give up")
            population = self._populations[task.population]
            found = self._find_round(task_sha256, round)
            ended = self._streams.end([task_sha256])
            self._erase([task_sha256])
            if isinstance(found, Round):
                population.mark_void(task_id=task.id, round=round)
                self._holdings.drop_round(found)
            return (
                *population.writes(self._sealer),
                *ended,
                SealedRecord(names.round_key(task_sha256, round), None),
                SealedRecord(names.noise_key(task_sha256, round), None),
            )

    def forget(self, task_sha256: bytes) -> Writes:
        """Erases an idle task: its open rounds (uncharged) and its last release. Idempotent.

        The host decides when, since an enclave has no trusted clock; its server can open it again.

        Raises StateError where a round of it is charged and not released: its budget is spent, its release can come.
        """
        with self._admin:
            task = self._holdings.task(task_sha256)
            if task is None:
                return ()
            if any(held.status is not Status.OPEN for held in self._holdings.rounds([task_sha256])):
                raise StateError(f"{task.label} has a round that is charged and not released: close that round first")
            ended = self._streams.end([task_sha256])
            self._erase([task_sha256])
            return (*self._holdings.drop_task(task_sha256, self._populations[task.population]), *ended)

    # What may be told

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        """(head of the population's ledger, encoded; its signature); None for an unknown task.

        The host has the entries, and the head stands for them.

        Raises StateError where another copy of this enclave has charged since.
        """
        with self._admin:
            task = self._holdings.task(task_sha256)
            if task is None:
                population = next((each for each in self._populations.values() if each.knows(task_sha256)), None)
            else:
                population = self._populations[task.population]
            if population is None:
                return None
            data = population.ledger.head.encode()
            return data, self._identity.signing.sign(domains.LEDGER, data)

    def _population(self, name: str) -> Population:
        population = self._populations.get(name)
        if population is None:
            raise unfounded(name)
        return population

    def _require_authorized(self, task: OpenedTask, population: Population) -> None:
        if self._holdings.is_ended(task.sha256):
            raise PrivacyError(f"{task.label} was ended by its developer: it has no more releases; submit a new task")
        population.require_owner(task.developer_key, of=task.label)

    def _ordered(self, order: aggregator_pb2.RoundOrder) -> tuple[OpenedTask, Population]:
        """The task of an order; its developer owns the population now."""
        task = self._holdings.task(order.task_sha256)
        if task is None:
            raise not_open(order.round)
        population = self._population(task.population)
        self._require_authorized(task, population)
        return task, population

    def _require_minimum(self, task: OpenedTask, number: int, contributions: int) -> None:
        if contributions < (minimum := max(task.definition.cohort.minimum, self._identity.policy.minimum_cohort)):
            raise PrivacyError(
                f"round {number} has {contributions} contributions and needs at least {minimum}: it stays open"
            )

    def _charge_open(self, task: OpenedTask, found: Round, population: Population) -> None:
        self._require_minimum(task, found.number, found.contributions)
        contributions, set_sha256 = found.freeze()
        try:
            population.charge(
                task_id=task.id, round=found.number, events=task.charges(found.number), budget=task.budget,
                contributions=contributions, set_sha256=set_sha256, noise_id=found.record.noise_id,
            )  # fmt: skip
        except BaseException:
            found.thaw()
            raise
        found.status = Status.CHARGED

    def _end(self, tasks: Sequence[OpenedTask], population: Population) -> Writes:
        self._ending += self._holdings.rounds({task.sha256 for task in tasks})
        self._ended.update(task.sha256 for task in tasks)
        self._holdings.end(task.sha256 for task in tasks)
        dropped = tuple(record for task in tasks for record in self._holdings.drop_task(task.sha256, population))
        return (*dropped, *self._streams.end(task.sha256 for task in tasks))

    def _show_charters(self) -> None:
        """Records charters in force in the event log, so that evidence shows the owners of each population."""
        for name in sorted(self._populations):
            charter = self._populations[name].charter
            if charter is not None and self._shown.get(name) != charter.sha256:
                if name not in self._shown:
                    self._identity.guest.extend(f"ledger {name} {self._populations[name].record.ledger_id.hex()}")
                self._identity.guest.extend(f"population {name} {charter.sha256.hex()}")
                self._shown[name] = charter.sha256

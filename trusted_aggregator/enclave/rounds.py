"""The rounds of an enclave, from opening to release.

Life of a round; the calls in brackets can be repeated at any time::

    open_round ─ submit, submit, .. ─ [charge] ─ durable, [commit] ─ [seal_release] ─ durable, [commit] ─ [release]
"""

from __future__ import annotations

from collections.abc import Callable

from odp.crypto import domains
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.privacy.ledger_entry import ReleaseState
from odp.privacy.mechanisms import IntegerNoise
from odp.signed.task import open_order
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, common_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Status, not_open, parse_order, require_same_model, void
from trusted_aggregator.enclave.large_values import LargeValues, release_sha256, signed_release
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.opening import make_room, require_may_begin, require_may_open, require_summed
from trusted_aggregator.enclave.restoring import held_round
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.rounds.enclave_half import Round, new_record, require_same_key, sealed_key
from trusted_aggregator.state import records as names
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord


class Rounds:
    """Calls about tasks and their rounds. Thread-safe. ``noise_of`` gives the noise of a round, by its number."""

    def __init__(self, state: EnclaveState, large_values: LargeValues, noise_of: Callable[[int], IntegerNoise]) -> None:
        self._state, self._large_values, self._noise_of = state, large_values, noise_of

    def check_task(self, request: aggregator_pb2.CheckTaskRequest) -> None:
        """Returns if the task could begin now, after its population is founded. Raises as ``open_round``."""
        state = self._state
        task = self._opened(request.task)
        with state.lock:
            if not state.holdings.is_ended(task.sha256) and state.holdings.task(task.sha256) is None:
                require_may_begin(task, state.populations, holdings=state.holdings, identity=state.identity)

    def open_round(self, request: aggregator_pb2.OpenRoundRequest) -> aggregator_enclave_pb2.RecordWrites:
        """Opens the round that the order names, and draws its noise. Idempotent.

        The token key is of the issuer that the population's charter names, and absent where it names none.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or not of one developer.
            PrivacyError: the developer does not own the population, a limit of the population is reached, the cohort
                minimum is below the policy's, the rounds before were not released, the round has another model or token
                key or was charged already, its token key is missing or not the issuer's; BudgetExceeded where a budget
                cannot pay.
            StateError: the population was rolled back.
        """
        state = self._state
        task = self._opened(request.task)
        parsed = open_order(request.order, request.signature, domain=domains.OPEN, developer_key=task.developer_key)
        if parsed.task_sha256 != task.sha256:
            raise ConfigurationError("the round order belongs to another task")
        with state.lock:
            population = state.population(task.population)
            state.require_authorized(task, population)
            existing = state.find_round(task.sha256, parsed.round)
            if isinstance(existing, Round):
                require_same_model(existing.number, existing.model_sha256, parsed)
                require_same_key(existing.number, existing.record.token_key, request.token_key)
                return aggregator_enclave_pb2.RecordWrites()
            standing = population.find(task.id, parsed.round)
            if standing is not None and standing.state is ReleaseState.SEALED:
                if state.holdings.task(task.sha256) is None:
                    raise PrivacyError(
                        f"round {parsed.round} of {task.label} was released, and this enclave has "
                        "erased the task: submit a new task"
                    )
                return aggregator_enclave_pb2.RecordWrites()
            require_may_open(
                task, parsed.round, population=population, holdings=state.holdings, policy=state.identity.policy
            )
            admitting = sealed_key(request.token_key, population.charter, task_sha256=task.sha256, round=parsed.round)
            participation = state.streams.participation(task, parsed.round, population)
            if not parsed.round:
                state.streams.require_room(task, state.holdings)
            erased = make_room(task, parsed.round, population=population, holdings=state.holdings)
            query = task.queries[parsed.round]
            noise = task.rounds.draw_noise(query, self._noise_of(parsed.round))
            record = new_record(request.order, noise, token_key=admitting, policy_sha256=state.identity.policy.sha256)
            opened = held_round(task, record, state.identity, participation)
            sealer = state.keys.new_sealer(task.sha256)
            state.streams.erase([task.sha256])
            state.add_round(task, opened)
            writes = (
                state.sealer.seal(names.task_key(task.sha256), task.record.encode()),
                sealer.seal(names.round_key(task.sha256, parsed.round), opened.record.encode()),
                self._large_values.sealed_noise(opened, noise, sealer),
                *erased,
            )
            return wire.written(writes)

    def round_key(self, request: aggregator_pb2.GetRoundRequest) -> common_pb2.SignedRoundKey:
        """The signed public key of an open or charged round, empty of any other.

        The host forwards it once the opening is stored.
        """
        state = self._state
        with state.lock:
            held = state.find_round(request.task_sha256, request.round)
            return common_pb2.SignedRoundKey() if isinstance(held, Refusal) else state.signed_key(held)

    def announce(self, request: aggregator_enclave_pb2.AnnounceSurvivors) -> None:
        """Records the contributions of an open round that only the host holds; see ``Round.announce`` for errors."""
        with self._state.lock:
            self._state.held(request.task_sha256, request.round).announce(request.clients, request.set_sha256)

    def host_parts(self, request: aggregator_enclave_pb2.AskHostParts) -> aggregator_enclave_pb2.HostParts:
        """A page of the parts that the host has to sum in a charged round; see ``Round.host_parts`` for errors."""
        with self._state.lock:
            held = self._state.held(request.task_sha256, request.round)
            return aggregator_enclave_pb2.HostParts(digests=held.host_parts(request.start))

    def charge(self, request: aggregator_pb2.CloseRoundRequest) -> aggregator_enclave_pb2.ChargedRound:
        """Closes the set of contributions and charges the ledger for it. Idempotent.

        Raises:
            SignatureError, ConfigurationError: the order is not valid, or of no round that is open here.
            PrivacyError: the developer does not own the population any more, fewer contributions than the minimum, or
                the budget cannot pay: the round stays open; or the round is void, or its task was ended.
            StateError: the population was rolled back, or an earlier change of it is not stored yet.
        """
        state = self._state
        with state.lock:
            parsed = parse_order(request.order)
            task, population = state.ordered(parsed)
            open_order(request.order, request.signature, domain=domains.CLOSE, developer_key=task.developer_key)
            held = state.find_round(task.sha256, parsed.round)
            if isinstance(held, Round):
                require_same_model(held.number, held.model_sha256, parsed)
                if held.status is Status.OPEN:
                    self._charge_open(task, held, population)
            if (standing := population.find(task.id, parsed.round)) is None:
                raise not_open(parsed.round)
            if not (released := standing.state is ReleaseState.SEALED) and not isinstance(held, Round):
                raise void(parsed.round)
            writes = () if released else population.writes(state.sealer)
            part_bytes = held.host_part_bytes if isinstance(held, Round) else 0
            return aggregator_enclave_pb2.ChargedRound(
                task_sha256=task.sha256,
                round=parsed.round,
                contributions=standing.contributions,
                released=released,
                writes=wire.records(writes),
                host_part_bytes=part_bytes,
            )

    def seal_release(self, request: aggregator_enclave_pb2.SealRelease) -> aggregator_enclave_pb2.RecordWrites:
        """Makes the one release of a charged round, sealed. Idempotent.

        Its hash is in force before its signature leaves: of two that are made of two sums, by whatever restarts in
        between, at most one is ever opened by ``release``. Noise is the record under ``noise_key``, stream that under
        ``stream_key``, and the host's sum comes where it holds a part.

        Raises:
            ConfigurationError: the order is of no round that is open here.
            PrivacyError: the round was not charged, or is void, or its task was ended, or the host's half is of another
                set.
            StateError: the population was rolled back, its charge is not committed, or the noise or the host's half is
                missing or changed.
        """
        state = self._state
        with state.lock:
            parsed = parse_order(request.order)
            task, population = state.ordered(parsed)
            held = state.find_round(task.sha256, parsed.round)
            standing = population.find(task.id, parsed.round)
            if standing is not None and standing.state is ReleaseState.SEALED:
                return wire.written(population.writes(state.sealer) if population.is_pending else ())
            if standing is None:
                raise PrivacyError(f"round {parsed.round} was not charged: a release needs a charge first")
            if not isinstance(held, Round) or standing.charge is None:
                raise void(parsed.round)
            require_same_model(held.number, held.model_sha256, parsed)
            population.require_committed()
            if standing.charge.events != task.charges(held.number):
                raise StateError(f"the ledger has another charge of round {held.number}; restore the state folder")
            round_noise = self._large_values.opened_noise(held, request.noise if request.HasField("noise") else None)
            encoder = state.streams.encoder(task, held, request.stream if request.HasField("stream") else None)
            made = signed_release(
                held,
                standing.charge,
                state.identity.signing,
                noise=round_noise,
                host_sum=wire.host_sum_of(request),
                encoder=encoder,
            )
            sha256 = release_sha256(made.signed)
            after = state.streams.after(task, held, encoder, sha256)
            population.seal(task_id=task.id, round=held.number, release_sha256=sha256)
            state.streams.move(task.sha256, after)
            held.status = Status.SEALED
            held.erase()
            writes = (
                *population.writes(state.sealer),
                self._large_values.sealed_release(held, made),
                SealedRecord(names.round_key(task.sha256, held.number), None),
                SealedRecord(names.noise_key(task.sha256, held.number), None),
                *(() if after is None else after.writes),
            )
            return wire.written(writes)

    def release(self, request: aggregator_enclave_pb2.ReleaseRound) -> aggregator_enclave_pb2.ReleasedRound:
        """The serialized StoredRelease of a round whose sealed release is in force: the same bytes each time.

        Its record is that under ``release_key``. Where the values are in pieces, their key leaves here.

        Raises:
            ConfigurationError: the order is of no round of this enclave.
            PrivacyError: the release is not sealed and in force, the round is void, or its task was ended.
            StateError: the population was rolled back, the stored release is missing or another one, or the round's key
                is not erased.
        """
        state = self._state
        with state.lock:
            parsed = parse_order(request.order)
            task, population = state.ordered(parsed)
            in_force = population.ledger.find(task.id, parsed.round)
            if in_force is None or in_force.state is not ReleaseState.SEALED:
                raise PrivacyError(
                    f"round {parsed.round} has no release in force: charge it and seal its release first"
                )
            if not request.stored:
                raise StateError(f"the release of round {parsed.round} is not stored; restore the newest state folder")
            data = state.sealer.open(names.release_key(task.sha256, parsed.round), request.stored)
            signed = common_pb2.SignedRelease.FromString(data)
            if release_sha256(signed) != in_force.release_sha256:
                raise StateError(f"the stored release of round {parsed.round} is altered: restore the state folder")
            model = common_pb2.Release.FromString(signed.release).model_sha256
            require_same_model(parsed.round, model, parsed)
            state.erase_over()
            return aggregator_enclave_pb2.ReleasedRound(signed_release=data)

    def give_up(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_enclave_pb2.RecordWrites:
        """Ends a charged round whose sum or noise the host has lost; its charge stays. Idempotent.

        Raises StateError where no such round is charged.
        """
        state = self._state
        task_sha256, number = request.task_sha256, request.round
        with state.lock:
            task = state.holdings.task(task_sha256)
            standing = None if task is None else state.populations[task.population].find(task.id, number)
            if task is None or standing is None or standing.state is ReleaseState.SEALED:
                raise StateError(f"round {number} is not a charged round: there is nothing to give up")
            population = state.populations[task.population]
            held = state.find_round(task_sha256, number)
            ended = state.streams.end([task_sha256])
            state.erase([task_sha256])
            if isinstance(held, Round):
                population.mark_void(task_id=task.id, round=number)
                state.holdings.drop_round(held)
            writes = (
                *population.writes(state.sealer),
                *ended,
                SealedRecord(names.round_key(task_sha256, number), None),
                SealedRecord(names.noise_key(task_sha256, number), None),
            )
            return wire.written(writes)

    def forget_task(self, request: aggregator_enclave_pb2.ForgetTask) -> aggregator_enclave_pb2.RecordWrites:
        """Erases an idle task: its open rounds (uncharged) and its last release. Idempotent.

        The host decides when, since an enclave has no trusted clock; its server can open it again.

        Raises StateError where a round of it is charged and not released: its budget is spent, its release can come.
        """
        state = self._state
        task_sha256 = request.task_sha256
        with state.lock:
            if (task := state.holdings.task(task_sha256)) is None:
                return aggregator_enclave_pb2.RecordWrites()
            if any(held.status is not Status.OPEN for held in state.holdings.rounds([task_sha256])):
                raise StateError(f"{task.label} has a round that is charged and not released: close that round first")
            ended = state.streams.end([task_sha256])
            state.erase([task_sha256])
            dropped = state.holdings.drop_task(task_sha256, state.populations[task.population])
            return wire.written((*dropped, *ended))

    def require_minimum(self, task: OpenedTask, number: int, contributions: int) -> None:
        """Returns if a round with these contributions may be charged. Raises PrivacyError."""
        if contributions < (minimum := max(task.definition.cohort.minimum, self._state.identity.policy.minimum_cohort)):
            raise PrivacyError(
                f"round {number} has {contributions} contributions and needs at least {minimum}: it stays open"
            )

    def _opened(self, signed: common_pb2.SignedTask) -> OpenedTask:
        task = OpenedTask.open(signed)
        if self._state.identity.policy.leaves:
            require_summed(task)
        return task

    def _charge_open(self, task: OpenedTask, held: Round, population: Population) -> None:
        self.require_minimum(task, held.number, held.contributions)
        contributions, set_sha256 = held.freeze()
        try:
            population.charge(
                task_id=task.id, round=held.number, events=task.charges(held.number), budget=task.budget,
                contributions=contributions, set_sha256=set_sha256, noise_id=held.record.noise_id,
            )  # fmt: skip
        except BaseException:
            held.thaw()
            raise
        held.status = Status.CHARGED

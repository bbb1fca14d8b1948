"""Takes every active task from round to round. Each step is idempotent, so a driver may die between any two of them.

::

    version v stored -> published -> round v open -> enough contributions: closed, release checked and stored
        -> applied: version v+1 stored in the same transaction -> .. -> last version published -> FINISHED

What is done next follows from the storage alone. A step that was done but not noted is done again, with the same bytes:
publishing, opening and closing answer the same the second time.

Each task has a thread for its steps (``server/steps.py``), so that a party that does not answer one holds up no other.
A refusal that would be the same the next time (over budget, bad task, a release of something else) ends the task as
FAILED at once. A party that cannot be reached, or fails inside, is asked again for as long as ``server/waits.py`` says.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

import grpc

from odp.algorithms.cohorts import goal_of
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Algorithm, Server
from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import (
    AttestationError,
    Busy,
    ConfigurationError,
    EnrolmentError,
    OdpError,
    PrivacyError,
    ServiceError,
    StateError,
    StoreUnreachable,
)
from odp.protocol.aggregation import mode_of
from odp.protocol.wire.model import ModelVersion
from odp.protocol.wire.tables import manifest_for, table_bytes
from odp.signed.release import ReleaseRefused, noisy_tensors, open_release
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_order
from odp.transport.logs import Log, short
from odp.transport.sweeping import pause_after
from odp.trust.enclave.chip_end import ChipLooks
from odp.v1 import aggregator_pb2, common_pb2
from server.board import Board
from server.leading import LOG, Leads
from server.rounds import Arrivals, RoundClock, require_founded, require_not_behind
from server.steps import Parties, StepThreads, traced
from server.storage import NewVersion, RoundRecord, RoundState, Storage, TaskRecord, TaskState, VersionRecord
from server.storage.leases import Deposed
from server.upkeep import Upkeep, end_elsewhere
from server.waits import PAUSED, Wait, Waits, count_wait, given_up

#: Seconds between two looks at an open round.
POLL_SECONDS = 0.25
#: Seconds after which models are published again: a distributor that was restored, or lost a disk, may lack them.
PUBLISH_AGAIN_SECONDS = 600.0
_STOP_SECONDS = 10.0
# The longest pause between two looks at a storage that does not answer.
_STORAGE_SECONDS = 4.0
# What has a thread besides the tasks, whose names are hashes.
_LOG, _MODELS, _CHIP = b"log", b"models", b"chip"
# Between two looks at whose a population is, while a round waits: other owners may change that elsewhere.
_OWNED_SECONDS = 30.0

# Answers to an order to end a task: no enclave can hold one that it would refuse so.
_PERMANENT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class _StaysOpen(OdpError):
    """The aggregator keeps the round open; nothing is wrong with the task."""


class Driver:
    """Steps of the active tasks: ``start`` takes one of each again and again, in threads."""

    def __init__(
        self,
        *,
        storage: Storage,
        board: Board,
        parties: Parties,
        key: SigningKey,
        log: Log,
        algorithm: Callable[[common_pb2.TaskDefinition], Algorithm] = algorithm_for,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._board = board
        self._distributor, self._lagging = parties.distributor, parties.lagging
        self._aggregator = parties.aggregator
        self._key = key
        self._log = log
        self._signing_key = parties.signing_key
        self._keeper = parties.keeper
        self._values = parties.values
        self._local = parties.local
        self._populations = parties.populations
        self._tokens = parties.tokens
        self._leads = parties.leads or Leads(storage, place="alone", shared=False, log=log, monotonic=monotonic)
        self._algorithm, self._clock = algorithm, clock
        self._ages = RoundClock(clock=clock, monotonic=monotonic)
        self._monotonic = monotonic
        # What this process saw accepted: after a restart a distributor may have lost what it took before.
        self._published: dict[bytes, int] = {}
        # When a population was last seen to be this server's, on the monotonic clock.
        self._owned: dict[str, float] = {}
        # Of the tasks whose signature and fields this process has verified.
        self._definitions: dict[bytes, common_pb2.TaskDefinition] = {}
        self._arrivals: dict[bytes, Arrivals] = {}
        self._waits = Waits(clock=clock, monotonic=monotonic)
        self._leads.waits_for = self._waits.of
        self.upkeep = Upkeep(
            storage, leads=self._leads, board=board, distributor=parties.distributor, keeper=parties.keeper, log=log
        )
        self.chip = ChipLooks(parties.aggregator.evidence, clock=clock, monotonic=monotonic)
        self._threads = StepThreads()
        self._publish_again_at = monotonic() + PUBLISH_AGAIN_SECONDS
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Runs until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the threads after the steps that they are in. Idempotent."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        self._threads.stop(_STOP_SECONDS)

    def wake(self) -> None:
        """Tells the driver that there is something to do."""
        self._wake.set()

    def waits_for(self, task_sha256: bytes) -> Wait | None:
        """Why a task stands still, and until when; None where it does not, or is over. Raises StateError."""
        return self._waits.of(task_sha256) or self._leads.said(task_sha256)

    def _steps(self) -> list[tuple[TaskRecord, Callable[[TaskRecord], bool]]]:
        """The tasks whose next step may be tried now by this server, those that are to be ended first."""
        active, ending = self._storage.tasks(TaskState.ACTIVE), self._storage.tasks_to_abandon()
        led = self._leads.lead([LOG, *(task.sha256 for task in (*ending, *reversed(active)))])
        self._waits.keep(led)
        # What another server did meanwhile is not in the memory of this one.
        for memory in (self._published, self._arrivals, self._definitions):
            for sha256 in [sha256 for sha256 in list(memory) if sha256 not in led]:
                memory.pop(sha256, None)
        steps = [(task, self._step_of(task, self._abandon)) for task in ending]
        steps += [(task, self._step_of(task, self._advance)) for task in reversed(active)]
        return [(task, step) for task, step in steps if task.sha256 in led and self._waits.is_due(task.sha256)]

    def _step_of(self, task: TaskRecord, step: Callable[[TaskRecord], bool]) -> Callable[[TaskRecord], bool]:
        """``step``, or what a task without rounds has in its place."""
        if task.planned_rounds or self._local is None:
            return step
        return self._local.end if step == self._abandon else self._local.advance

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                # Neither waits for a witness or a distributor that does not answer.
                self._threads.run(_LOG, functools.partial(self._logging_errors, self.upkeep.keep_log_fresh))
                self._threads.run(_CHIP, functools.partial(self._logging_errors, self.chip.look))
                if self._monotonic() >= self._publish_again_at or self._lagging():
                    self._publish_again_at = self._monotonic() + PUBLISH_AGAIN_SECONDS
                    self._threads.run(_MODELS, functools.partial(self._logging_errors, self.upkeep.publish_again))
                for task, step in self._steps():
                    work = functools.partial(self._work, task, step)
                    self._threads.run(task.sha256, functools.partial(self._logging_errors, work))
                failures = 0
            except StateError as error:
                # A database that is away is for ``server/replica.py`` to report.
                if not failures and not isinstance(error, StoreUnreachable):
                    self._log.error("storage_failed", reason=str(error))
                failures += 1
            except Exception as error:  # whatever it is, tasks and check-ins go on
                self._log.crash("driver_failed", error)
            self._wake.wait(pause_after(failures + 1, first=POLL_SECONDS, longest=_STORAGE_SECONDS))

    def _work(self, task: TaskRecord, step: Callable[[TaskRecord], bool]) -> None:
        """Steps of one task, in a thread of its own, until it waits for something."""
        while self._attempt(task, step) and not self._stopping.is_set():
            current = self._storage.task(task.sha256)
            if current is None or current.state is not TaskState.ACTIVE:
                return
            task = current

    def _logging_errors(self, work: Callable[[], object]) -> None:
        try:
            work()
        except StoreUnreachable:
            pass
        except StateError as error:
            self._log.error("storage_failed", reason=str(error))
        except Exception as error:  # whatever it is, the next step comes
            self._log.crash("driver_failed", error)

    def _attempt(self, task: TaskRecord, step: Callable[[TaskRecord], bool]) -> bool:
        if (lease := self._leads.lease(task.sha256)) is None:
            return False
        try:
            with self._leads.leading(lease):
                return self._attempt_as_leader(task, step)
        except Deposed:
            return False  # whoever leads now goes on from what is stored

    def _attempt_as_leader(self, task: TaskRecord, step: Callable[[TaskRecord], bool]) -> bool:
        try:
            progressed = step(task)
        except Deposed:
            raise
        except (ReleaseRefused, ConfigurationError, PrivacyError, SignatureError) as error:
            return self._fail(task, error)
        except ServiceError as error:
            if error.code in _PERMANENT:
                return self._fail(task, error)
            return self._try_later(task, error, unforeseen=error.unforeseen)
        except (AttestationError, EnrolmentError, StateError, _StaysOpen) as error:
            # The operator can mend reference values, the issuer of tokens and disk space while the round waits.
            return self._try_later(task, error)
        except Exception as error:
            self._log.crash("step_failed", error)
            return self._try_later(task, None, unforeseen=True)
        if progressed:
            self._waits.set(task.sha256, None)
        return progressed

    def _advance(self, task: TaskRecord) -> bool:
        if (version := self._storage.newest_version(task.sha256)) is None:
            return self._first_version(task)
        current = self._storage.round(task.sha256, version.version)
        if current is not None and current.state is RoundState.RELEASED:
            return self._apply(task, version)
        if version.published is None or self._published.get(task.sha256) != version.version:
            return self._publish(task, version)
        if version.version >= task.planned_rounds:
            return self._finish(task)
        if current is None:
            return self._open(task, version)
        return self._collect(task, version, current)

    def _first_version(self, task: TaskRecord) -> bool:
        self._require_owned(task)
        if self._keeper is not None:
            self._keeper.log_task(task.signed)
        server = self._server(task)
        state = server.start()
        self._storage.add_first_version(task.sha256, self._new_version(task, state, server.broadcast(state)))
        return True

    @traced("publish")
    def _publish(self, task: TaskRecord, version: VersionRecord) -> bool:
        if (stored := self._storage.state_and_tables(task.sha256, version.version)) is None:
            raise StateError(f"version {version.version} of task {short(task.sha256)} has no tables; restore a backup")
        self._require_owned(task)
        self._distributor.publish(task.signed, version.signed, stored[1])
        if self._keeper is not None:
            self._keeper.log_task(task.signed)
            self._keeper.log_model(version.signed)
        self._storage.mark_published(task.sha256, version.version)
        self._published[task.sha256] = version.version
        self._board.refresh()
        self._log.event("version_published", task=short(task.sha256), version=version.version, bytes=len(stored[1]))
        return True

    def _open(self, task: TaskRecord, version: VersionRecord) -> bool:
        wait = PAUSED if task.paused else count_wait(self._storage, task, self._definition(task), version.version)
        if wait is not None:
            self._waits.set(task.sha256, wait)
            return False
        key = self._order_open(task, version)
        if self._storage.open_round(task.sha256, version.version, key):
            self._board.refresh()
            self._ages.opened(task.sha256, version.version)
            self._log.event("round_opened", task=short(task.sha256), round=version.version)
        return True

    @traced("open")
    def _order_open(self, task: TaskRecord, version: VersionRecord) -> common_pb2.SignedRoundKey:
        order, signature = self._order(task, version, domains.OPEN)
        token_key = None
        if self._tokens is not None:
            parsed = aggregator_pb2.RoundOrder.FromString(order)
            token_key = self._tokens.ordered(task.signed, parsed, population=task.population)
        try:
            return self._aggregator.open_round(task.signed, order, signature, token_key)
        except ServiceError as error:
            if error.code is grpc.StatusCode.FAILED_PRECONDITION and self._storage.charters(task.population):
                require_founded(self._aggregator, task.population)
            raise

    def _collect(self, task: TaskRecord, version: VersionRecord, current: RoundRecord) -> bool:
        if self._monotonic() - self._owned.get(task.population, float("-inf")) >= _OWNED_SECONDS:
            self._require_owned(task)
        try:
            progress = self._aggregator.progress(task.sha256, current.round)
        except ServiceError as error:
            # Time in which nobody could contribute says nothing about who would.
            self._arrivals.pop(task.sha256, None)
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            key = self._order_open(task, version)
            if self._storage.set_round_key(task.sha256, current.round, key):
                self._board.refresh()
            raise _StaysOpen(f"round {current.round} was opened again: {error}") from error
        if progress.contributions != current.contributions:
            self._storage.set_contributions(task.sha256, current.round, progress.contributions)
        wait = None if progress.released else self._round_wait(task, current, progress.contributions)
        if wait is not None:
            if self._waits.set(task.sha256, wait):
                self._log.event("round_waits", task=short(task.sha256), reason=wait.reason, until=wait.until)
            return False
        return self._close(task, version, current)

    def _round_wait(self, task: TaskRecord, current: RoundRecord, contributions: int) -> Wait | None:
        """What an open round waits for; None where it is to be closed (``server/rounds.py``)."""
        cohort, now = self._definition(task).cohort, self._monotonic()
        arrivals = self._arrivals.get(task.sha256)
        if arrivals is None or arrivals.round != current.round:
            arrivals = self._arrivals[task.sha256] = Arrivals(current.round, contributions, now)
        arrivals.record(contributions, now=now)
        what = f"round {current.round} of {task.planned_rounds}: "
        if contributions < cohort.minimum:
            ended = "" if self._tokens is None else self._tokens.ended(task.signed, current.round)
            short_of = f"{cohort.minimum} contributions, its minimum, however long that takes"
            return Wait(what + (f"its token key {ended}" if ended else self.chip.trouble or short_of))
        if mode_of(cohort).in_session:
            return None  # the clients of a session wait, and no further ones can join it
        seconds = cohort.round_seconds
        goal = goal_of(cohort, current.round)
        left = seconds - self._ages.age(task.sha256, current.round, opened=current.opened, most=seconds)
        if contributions >= goal or left <= 0:
            return None
        before = self._storage.round(task.sha256, current.round - 1)
        quiet_at = arrivals.quiet_at(
            before=None if before is None else before.contributions, round_seconds=cohort.round_seconds
        )
        if now >= quiet_at:
            return None
        return Wait(
            f"{what}{goal} contributions, its goal; it closes with fewer where no device comes any more",
            self._clock() + min(left, quiet_at - now),
        )

    @traced("close")
    def _close(self, task: TaskRecord, version: VersionRecord, current: RoundRecord) -> bool:
        try:
            signed = self._aggregator.close_round(*self._order(task, version, domains.CLOSE))
        except ServiceError as error:
            # With fewer contributions than the minimum the round stays open. With enough of them it is the budget, or
            # a round whose charge is lost: waiting would not help.
            if error.code is grpc.StatusCode.FAILED_PRECONDITION and self._is_below_minimum(task, current):
                raise _StaysOpen(str(error)) from error
            require_not_behind(self._aggregator, task.sha256, current.round)
            raise
        release = open_release(
            signed,
            task_sha256=task.sha256,
            round=current.round,
            model_sha256=model_sha256(version.signed),
            declared=self._algorithm(self._definition(task)).query(current.round).releases,
            signing_key=None if self._signing_key is None else self._signing_key(),
        )
        if self._values is not None:
            self._values.fetch(release, self._order(task, version, domains.CLOSE)[0])
        if self._keeper is not None:
            # Before it is stored: from then on the task may end, and nobody would come back to log the release.
            self._keeper.log_round(
                task.sha256, current.round, signed, population=task.population, aggregator=self._aggregator
            )
        self._ages.closed(task.sha256, current.round)
        if self._storage.release_round(task.sha256, current.round, signed, contributions=release.contributions):
            self._board.refresh()
            self._log.event(
                "round_released",
                task=short(task.sha256),
                round=current.round,
                contributions=release.contributions,
                epsilon_spent=release.epsilon_spent,
                epsilon_remaining=release.epsilon_remaining,
            )
        return True

    def _is_below_minimum(self, task: TaskRecord, current: RoundRecord) -> bool:
        contributions = self._aggregator.progress(task.sha256, current.round).contributions
        return contributions < self._definition(task).cohort.minimum

    @traced("apply")
    def _apply(self, task: TaskRecord, version: VersionRecord) -> bool:
        if (stored := self._storage.state_and_tables(task.sha256, version.version)) is None:
            return True  # applied in the meantime
        release = common_pb2.Release.FromString(self._storage.release(task.sha256, version.version).release)
        server = self._server(task)
        state = server.step(stored[0], (self._values.tensors if self._values else noisy_tensors)(release))
        new = self._new_version(task, state, server.broadcast(state))
        if self._storage.apply_round(task.sha256, version.version, new):
            self._log.event("round_applied", task=short(task.sha256), round=version.version)
        return True

    def _require_owned(self, task: TaskRecord) -> None:
        """Founds the task's population where nobody did. Raises PrivacyError where it is not this server's."""
        if self._populations is not None and self._populations.require_owned(task.population):
            self._board.refresh()
        self._owned[task.population] = self._monotonic()

    def _abandon(self, task: TaskRecord) -> bool:
        """Ends a task that was cancelled, or that failed, at the aggregator; a cancelled one's models go as well."""
        end_elsewhere(task, self._key, aggregator=self._aggregator, distributor=self._distributor, log=self._log)
        if self._storage.mark_abandoned(task.sha256):
            self._board.refresh()
            self._log.event("task_abandoned", task=short(task.sha256), name=task.name)
        return True

    def _definition(self, task: TaskRecord) -> common_pb2.TaskDefinition:
        if (definition := self._definitions.get(task.sha256)) is None:
            definition = self._definitions[task.sha256] = open_task(task.signed)
        return definition

    def _server(self, task: TaskRecord) -> Server:
        algorithm = self._algorithm(self._definition(task))
        matrix = algorithm.public_matrix_from(self._storage.item_features(task.sha256))
        return algorithm.server(item_features=matrix)

    def _finish(self, task: TaskRecord) -> bool:
        if self._storage.end_task(task.sha256, TaskState.FINISHED):
            self._board.refresh()
            self._log.event("task_finished", task=short(task.sha256), name=task.name)
        return True

    def _new_version(self, task: TaskRecord, state: bytes, broadcast: ModelVersion) -> NewVersion:
        return NewVersion(
            version=broadcast.version,
            state=state,
            tables=b"".join(table_bytes(table) for table in broadcast.tables),
            manifest=sign_manifest(manifest_for(broadcast, task.sha256), self._key),
        )

    def _order(self, task: TaskRecord, version: VersionRecord, domain: bytes) -> tuple[bytes, bytes]:
        order = aggregator_pb2.RoundOrder(
            task_sha256=task.sha256, round=version.version, model_sha256=model_sha256(version.signed)
        )
        return sign_order(order, self._key, domain)

    def _fail(self, task: TaskRecord, error: OdpError, *, why: str = "") -> bool:
        reason = " ".join(str(error).split()) + why
        if not self._storage.end_task(task.sha256, TaskState.FAILED, failure=reason):
            # It is over already, and what is left is to tell the others, however often they refuse.
            return self._try_later(task, error, limited=False)
        self._board.refresh()
        self._log.error("task_failed", task=short(task.sha256), name=task.name, reason=reason)
        return True

    def _try_later(
        self, task: TaskRecord, error: OdpError | None, *, unforeseen: bool = False, limited: bool = True
    ) -> bool:
        error = OdpError("internal error; see the server's log") if error is None else error
        least = error.low_seconds if isinstance(error, Busy) else 0.0
        failures = self._waits.failed(task.sha256, str(error), unforeseen=unforeseen, least=least)
        if hopeless := "" if not limited or isinstance(error, _StaysOpen) else given_up(failures):
            return self._fail(task, error, why=f"; given up, since it failed {hopeless}")
        self._log.warning(
            "task_waits", task=short(task.sha256), retry_seconds=failures.due - self._monotonic(),
            failures=failures.count, reason=str(error),
        )  # fmt: skip
        return False

"""The steps of a task of local trust: it is logged, opened, and finished when it has all of its reports."""

from __future__ import annotations

import time
from collections.abc import Callable

from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.signed.task import open_task
from odp.transport.logs import Log, short
from odp.v1 import common_pb2
from server.leading import Leads
from server.local.admission import Admission
from server.local.desk import Desk
from server.populations import Populations
from server.storage import Storage, TaskRecord, TaskState
from server.token_keys import TokenKeys
from server.transparency import LogKeeper

#: Between two looks at whose a population is.
OWNED_SECONDS = 30.0
#: Seconds for which one token of a device lasts, at least, where it reports more than once.
SHORTEST_PERIOD = 3600


def reporter_of(definition: common_pb2.TaskDefinition) -> LocalReporter | None:
    """The algorithm of a task of local trust; None of any other."""
    algorithm = algorithm_for(definition)
    return algorithm if isinstance(algorithm, LocalReporter) else None


def require_periods(populations: Populations, definition: common_pb2.TaskDefinition) -> None:
    """Raises ConfigurationError where devices would need tokens faster than the population's issuer gives them."""
    reporter = reporter_of(definition)
    if reporter is None or not populations.issuer_key(definition.population):
        return
    if reporter.local_charge.most > 1 and reporter.seconds_between < SHORTEST_PERIOD:
        raise ConfigurationError(
            f"Expected seconds_between={reporter.seconds_between} to be at least {SHORTEST_PERIOD}: devices of "
            f"population {definition.population!r} report with tokens, one for each such time"
        )


class LocalSteps:
    """What the driver does for tasks of local trust. A task has one step at a time.

    Args:
      changed: called when what devices are told changes.
    """

    def __init__(
        self,
        storage: Storage,
        desk: Desk,
        *,
        keeper: LogKeeper | None,
        populations: Populations | None,
        tokens: TokenKeys | None,
        changed: Callable[[], None],
        log: Log,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._desk, self._keeper, self._populations = storage, desk, keeper, populations
        self._tokens, self._changed, self._log = tokens, changed, log
        self._monotonic = monotonic
        self._owned: dict[str, float] = {}

    def advance(self, task: TaskRecord) -> bool:
        """One step of an active task; False where it waits for devices.

        Raises:
          ConfigurationError: devices would need more tokens than the population's issuer gives.
          EnrolmentError: the issuer gives no token key.
          PrivacyError: it is not this server's.
          ServiceError: the aggregator, which knows whose it is, does not answer.
          StateError: storage or log cannot be used.
        """
        self._require_owned(task.population)
        if not self._desk.is_open(task.sha256):
            if self._populations is not None:
                require_periods(self._populations, open_task(task.signed))
            if self._keeper is not None:
                self._keeper.log_task(task.signed)
            if (reporter := reporter_of(open_task(task.signed))) is None:
                raise ConfigurationError(f"task {task.name!r} has no rounds and takes no reports")
            self._desk.open(task.sha256, reporter, self._admission(task, reporter))
            self._changed()
            self._log.event("reports_open", task=short(task.sha256), name=task.name)
            return True
        if self._desk.is_full(task.sha256):
            self._desk.close(task.sha256)
            if self._storage.end_task(task.sha256, TaskState.FINISHED):
                self._log.event("task_finished", task=short(task.sha256), name=task.name)
            self._changed()
            return True
        self._renew(task)
        return False

    def end(self, task: TaskRecord) -> bool:
        """Ends a task that was cancelled or failed: no enclave holds anything of it."""
        self._desk.close(task.sha256)
        if self._storage.mark_abandoned(task.sha256):
            self._log.event("task_abandoned", task=short(task.sha256), name=task.name)
        self._changed()
        return True

    def follow(self, leads: Leads) -> None:
        """Opens here what another server opened, closes what is over, and takes in the reports of other servers.

        Raises as ``advance``, for nothing that is this server's own.
        """
        active = {task.sha256: task for task in self._storage.tasks(TaskState.ACTIVE) if not task.planned_rounds}
        over = self._desk.open_tasks() - active.keys()
        for sha256 in over:
            self._desk.close(sha256)
        opened = False
        for task in active.values():
            if self._desk.is_open(task.sha256):
                self._desk.reread(task.sha256)
                if leads.lease(task.sha256) is None:
                    self._renew(task)
            elif leads.lease(task.sha256) is None and (self._keeper is None or self._keeper.has_task(task.signed)):
                # Its leader has checked and logged it.
                reporter = reporter_of(open_task(task.signed))
                if reporter is not None:
                    self._desk.open(task.sha256, reporter, self._admission(task, reporter))
                    opened = True
        if over or opened:
            self._changed()

    def _admission(self, task: TaskRecord, reporter: LocalReporter) -> Admission | None:
        """Whose tokens the reports need; None where the population's charter names no issuer."""
        if self._tokens is None or self._populations is None:
            return None
        tokens, began = self._tokens, self._storage.history(task.sha256)[0].at
        return Admission.of(
            task.signed, tokens, began=began, period_seconds=reporter.seconds_between,
            population=task.population, monotonic=self._monotonic,
        )  # fmt: skip

    def _renew(self, task: TaskRecord) -> None:
        """Begins the next period of an open task where the one before is over."""
        admission = self._desk.admission(task.sha256)
        if admission is not None and admission.renew():
            self._changed()

    def _require_owned(self, population: str) -> None:
        """Founds a population where nobody did; looks again now and then, since owners can change elsewhere."""
        now = self._monotonic()
        if self._populations is None or now - self._owned.get(population, float("-inf")) < OWNED_SECONDS:
            return
        if self._populations.require_owned(population):
            self._changed()
        self._owned[population] = now

"""What a server does besides the rounds of tasks.

It ends tasks at the other parties, signs the log again, and publishes models again that a distributor may have lost.
At its start it reports figures of earlier releases to whoever measures the program.
"""

from __future__ import annotations

import contextlib

import grpc

from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import OdpError, ServiceError
from odp.transport import observing
from odp.transport.logs import Log, short
from odp.v1 import common_pb2, population_pb2
from server.board import Board
from server.clients import AggregatorClient, Distributor
from server.leading import LOG, Leads
from server.storage import Storage, TaskRecord, TaskState
from server.storage.leases import Deposed
from server.transparency import LogKeeper

#: The aggregator holds nothing of the task: of a population that is not this server's, for one.
_NOTHING_HELD = frozenset(
    {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}
)


class Upkeep:
    """For what this server leads, and of the rest what each server has to know."""

    def __init__(
        self, storage: Storage, *, leads: Leads, board: Board, distributor: Distributor, keeper: LogKeeper | None,
        log: Log,
    ) -> None:  # fmt: skip
        self._storage, self._leads, self._board, self._log = storage, leads, board, log
        self._distributor, self._keeper = distributor, keeper

    def keep_log_fresh(self) -> None:
        """Signs the newest checkpoint again, where that is due. Raises StateError."""
        if self._keeper is None:
            return
        # Whoever leads the log: each server proves the endorsements that it read itself.
        if self._keeper.reread_endorsements():
            self._board.refresh()
        if (lease := self._leads.lease(LOG)) is None:
            return
        with contextlib.suppress(Deposed), self._leads.leading(lease):
            if self._keeper.keep_fresh():
                self._board.refresh()

    def publish_again(self) -> None:
        """Publishes the models of active tasks again: a distributor that holds them says so at once."""
        for task in self._storage.tasks(TaskState.ACTIVE):
            if self._leads.lease(task.sha256) is None:
                continue
            version = self._storage.published_version(task.sha256)
            stored = None if version is None else self._storage.state_and_tables(task.sha256, version.version)
            if version is None or stored is None:
                continue
            try:
                self._distributor.publish(task.signed, version.signed, stored[1])
            except OdpError as error:
                self._log.warning("not_published_again", task=short(task.sha256), reason=str(error))
        # Which of several distributors hold what may have changed.
        self._board.refresh()


def end_elsewhere(
    task: TaskRecord, key: SigningKey, *, aggregator: AggregatorClient, distributor: Distributor, log: Log
) -> None:
    """Returns once the aggregator has ended a task, and of a cancelled one the distributor has dropped the models.

    Raises ServiceError: it is to be done again.
    """
    order = population_pb2.AbandonOrder(task_sha256=task.sha256).SerializeToString(deterministic=True)
    signature = population_pb2.CharterSignature(key=key.public, signature=key.sign(domains.ABANDON, order))
    try:
        aggregator.abandon(task.signed, order, signature)
    except ServiceError as error:
        if error.code not in _NOTHING_HELD:
            raise
        log.warning("task_not_abandoned", task=short(task.sha256), name=task.name, reason=str(error))
    if task.state is TaskState.CANCELLING:
        distributor.forget_task(order, signature.signature)


def tell_newest_releases(storage: Storage) -> None:
    """Tells the observer of the newest release of each active task. Raises StateError."""
    if not observing.observed():
        return
    for task in storage.tasks(TaskState.ACTIVE):
        released = [entry for entry in storage.rounds(task.sha256) if entry.release_bytes]
        if released:
            release = common_pb2.Release.FromString(storage.release(task.sha256, released[-1].round).release)
            observing.figures(
                {
                    "task": short(task.sha256),
                    "round": released[-1].round,
                    "contributions": release.contributions,
                    "epsilon_spent": release.epsilon_spent,
                    "epsilon_remaining": release.epsilon_remaining,
                }
            )

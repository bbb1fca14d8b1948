"""What a server does now and then: sign the log again, and publish models again that a distributor may have lost."""

from __future__ import annotations

import contextlib

from odp.errors import OdpError
from odp.transport.logs import Log, short
from server.board import Board
from server.clients import Distributor
from server.leading import LOG, Leads
from server.storage import Storage, TaskState
from server.storage.leases import Deposed
from server.transparency import LogKeeper


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
        lease = self._leads.lease(LOG)
        if lease is None:
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

"""What a server does because others share its database: it renews its leases, and takes in what they changed.

::

    every second            leases are renewed
    ten times a second      the log's copy is brought up to date, and what follows from it: charters and proofs
    twice a second          open rounds, models, and the rows of local trust are brought up to date

What is read from memory (check-ins, proofs, draws) is half a second old at most, and the log a tenth: a device that
asks two servers in turn would see an older tree as a log that shrank. A server that cannot reach the database says so
to health checks, so that clients go elsewhere, and goes on when the database is back.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from odp.errors import OdpError, ServiceError, StateError
from odp.transport.logs import Log
from odp.trust.log.entries import HEAD_BYTES, ReleaseEntry, decode, type_of
from odp.v1 import common_pb2
from server.board import Board
from server.fetched_values import FetchedValues
from server.leading import RENEW_SECONDS, Leads
from server.local.steps import LocalSteps
from server.populations import Populations
from server.shared_log import SharedLog

FOLLOW_SECONDS = 0.1
#: Of so many looks at the log, one is at everything.
EVERY = 5
#: A look that takes longer than this is none: the database does not answer.
DEAF_SECONDS = 5.0
_LONGEST_PAUSE = 4.0
_STOP_SECONDS = 10.0


def place_of(state: Path) -> str:
    """A name for a state folder on this machine, which no copy of it has: neither elsewhere nor on another machine."""
    status = state.stat()
    text = f"{socket.gethostname()}:{state.resolve()}:{status.st_dev}:{status.st_ino}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Follower:
    """Takes in what other servers changed; ``look`` does it once."""

    def __init__(
        self, *, files: SharedLog, populations: Populations, board: Board, values: FetchedValues, local: LocalSteps,
        leads: Leads, log: Log,
    ) -> None:  # fmt: skip
        self._files, self._populations, self._board, self._local = files, populations, board, local
        self._values, self._leads, self._log = values, leads, log
        # Entries of the log that were looked at for values of releases.
        self._looked = 0
        self._looks = 0

    def look(self) -> None:
        """Brings the log up to date, and everything else in its turn. Raises StateError."""
        if self._files.catch_up():
            self._populations.reread()
            self._board.refresh()
        self._looks += 1
        if self._looks % EVERY == 0:
            self._board.refresh_if_changed()
            self._local.follow(self._leads)
            self._fetch_values()

    def _fetch_values(self) -> None:
        for index in range(self._looked, self._files.size):
            if type_of(self._files.head(index, HEAD_BYTES)) is ReleaseEntry:
                entry = decode(self._files.entry(index))
                if isinstance(entry, ReleaseEntry):
                    try:
                        self._values.fetch_of(common_pb2.Release.FromString(entry.release))
                    except ServiceError as error:
                        self._log.warning("values_not_fetched", reason=str(error))
                        return
            self._looked = index + 1


class Replica:
    """The threads of a server that shares its database, from ``start`` to ``stop``.

    Args:
      renew: extends the leases.
      look: takes in what others changed.
      serving: is told whether the database answers.
      monotonic: seconds that only grow.
    """

    def __init__(
        self,
        *,
        renew: Callable[[], None],
        look: Callable[[], None],
        serving: Callable[[bool], None],
        log: Log,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._renew, self._look, self._serving, self._log, self._monotonic = renew, look, serving, log, monotonic
        self._looked = monotonic()
        self._is_serving = True
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        work = {"leases": self._keep_leases, "following": self._follow, "hearing": self._listen}
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads. Idempotent."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_SECONDS)

    def _keep_leases(self) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            try:
                self._renew()
            except StateError:
                pass  # the other thread says it: leases run out, and are taken again
            except Exception as error:
                self._log.crash("leases_not_renewed", error)

    def _follow(self) -> None:
        pause = FOLLOW_SECONDS
        while not self._stopping.wait(pause):
            try:
                self._look()
                self._looked, pause = self._monotonic(), FOLLOW_SECONDS
                self._tell(True, "")
            except OdpError as error:
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._tell(False, str(error))
            except Exception as error:  # whatever it is, the next look comes
                pause = _LONGEST_PAUSE
                self._log.crash("following_failed", error)

    def _listen(self) -> None:
        before = self._monotonic()
        while not self._stopping.wait(RENEW_SECONDS):
            # Where this process stood still itself, the other thread has its turn first.
            was_paused = self._monotonic() - before > DEAF_SECONDS
            before = self._monotonic()
            if not was_paused and before - self._looked > DEAF_SECONDS + _LONGEST_PAUSE:
                self._tell(False, "the database does not answer")

    def _tell(self, serving: bool, reason: str) -> None:
        with self._lock:
            if serving == self._is_serving or self._stopping.is_set():
                return
            self._is_serving = serving
            self._serving(serving)
        if serving:
            self._log.event("database_answers_again")
        else:
            self._log.error("database_lost", reason=reason)

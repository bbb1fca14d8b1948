"""The owners of each population, as the aggregator's enclave states them; this server founds new ones.

The enclave decides. What this server keeps is the chain of charters, for its log and for devices; a charter is in force
at the enclave before it is kept, and kept before it is logged. Each step can be repeated, so a server may die between
any two of them.
"""

from __future__ import annotations

import threading

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.signed.charter import Charter, approve, check_succession, found, missing_approvals, open_charter
from odp.transport.logs import Log
from odp.v1 import population_pb2
from server.clients import AggregatorClient
from server.storage import Storage
from server.transparency import LogKeeper

SignedCharter = population_pb2.SignedCharter


class Populations:
    """The charters of the populations of one server's tasks. Thread-safe.

    Args:
        storage: keeps them.
        aggregator: where they are in force.
        key: the server's, which founds populations and approves changes.
        log: where changes are noted.
        keeper: logs each charter before anything follows from it; None logs nothing.
        issuer_key: of the issuer of admission tokens of the populations that are founded here; empty for none.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        aggregator: AggregatorClient,
        key: SigningKey,
        log: Log,
        keeper: LogKeeper | None = None,
        issuer_key: bytes = b"",
    ) -> None:
        self._storage = storage
        self._aggregator = aggregator
        self._key = key
        self._log = log
        self._keeper = keeper
        self._issuer_key = issuer_key
        self._lock = threading.RLock()
        self._newest: dict[str, Charter] = {}

    def newest(self, population: str) -> SignedCharter | None:
        """The newest charter that this server knows to be in force; None if it knows none. Returns at once."""
        charter = self._newest_charter(population)
        return None if charter is None else charter.signed

    def issuer_key(self, population: str) -> bytes:
        """The issuer of tokens of a population, or the one that it will be founded with; empty without one."""
        charter = self._newest_charter(population)
        return self._issuer_key if charter is None else charter.issuer_key

    def refreshed(self, population: str) -> SignedCharter | None:
        """``newest`` after a query to the aggregator. Raises ServiceError if it does not answer."""
        with self._lock:
            charter = self._refreshed(population)
            return None if charter is None else charter.signed

    def require_owned(self, population: str) -> bool:
        """Returns once the population's charter is in force, stored and logged, and names this server's key as an
        owner.

        Founds the population where nobody did. True where a charter came that was not known before.

        Raises:
            PrivacyError: the population belongs to other keys.
            ServiceError: the aggregator refuses to have it founded by this key, or does not answer.
        """
        with self._lock:
            before = self._newest_charter(population)
            if (charter := self._refreshed(population)) is None:
                signed = approve(found(population, owners=[self._key.public], issuer_key=self._issuer_key), self._key)
                self._aggregator.set_charter(signed)
                charter = self._keep(signed)
                self._log.event("population_founded", population=population)
            if self._keeper is not None:
                for stored_charter in self._storage.charters(population):
                    self._keeper.log_charter(stored_charter)
            charter.require_owner(self._key.public, of="this server's tasks")
            return before is None or before.sha256 != charter.sha256

    def change(self, signed: SignedCharter) -> tuple[SignedCharter, int]:
        """Adds this server's approval to a charter, and puts it in force once it has all that it needs.

        Returns the charter and how many approvals are missing.

        Raises:
            ConfigurationError: it is malformed, or does not follow the charter in force.
            ServiceError: the aggregator refuses it, or does not answer.
        """
        charter = open_charter(signed)
        with self._lock:
            before = self._refreshed(charter.population)
            if before is not None and before.sha256 == charter.sha256:
                return before.signed, 0
            if (before is None) != (charter.sequence == 0) or (
                before is not None and charter.previous_sha256 != before.sha256
            ):
                raise ConfigurationError(
                    f"charter {charter.sequence} of population {charter.population!r} does not follow "
                    "the one in force; write a new charter"
                )
            if before is None or self._key.public in before.owners:
                signed = approve(signed, self._key)
            missing = 0 if before is None else missing_approvals(open_charter(signed), before)
            if missing:
                return signed, missing
            self._aggregator.set_charter(signed)
            self._keep(signed)
            if self._keeper is not None:
                self._keeper.log_charter(signed)
            self._log.event("charter_changed", population=charter.population, sequence=charter.sequence)
            return signed, 0

    def reread(self) -> None:
        """Forgets what this server has in memory: another one may have stored later charters."""
        with self._lock:
            self._newest.clear()

    def _newest_charter(self, population: str) -> Charter | None:
        if (charter := self._newest.get(population)) is None:
            if not (stored := self._storage.charters(population)):
                return None
            charter = self._newest[population] = open_charter(stored[-1])
        return charter

    def _refreshed(self, population: str) -> Charter | None:
        """The newest charter in force; all charters before it are stored."""
        current = self._newest_charter(population)
        while True:
            later = self._aggregator.charters(population, 0 if current is None else current.sequence + 1)
            if not later:
                return current
            for signed in later:
                charter = open_charter(signed)
                if current is not None:
                    check_succession(charter, current)
                current = self._keep(signed)

    def _keep(self, signed: SignedCharter) -> Charter:
        charter = open_charter(signed)
        self._storage.add_charter(charter.population, charter.sequence, signed)
        self._newest[charter.population] = charter
        return charter

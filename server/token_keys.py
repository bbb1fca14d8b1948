"""The token key of each round; the server gets it from the issuer before the round opens.

The charter of the population decides whether a round needs one, and whose. The issuer gives the same key for the same
round each time. The key is stored before the aggregator gets it, so that devices get the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError, EnrolmentError
from odp.signed.charter import open_charter
from odp.signed.task import sign_order, task_sha256
from odp.transport.logs import Log, short
from odp.transport.tls import utc
from odp.trust.enrolment.token_key import open_token_key
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2
from server.clients import IssuerClient
from server.populations import Populations
from server.storage import Storage


class TokenKeys:
    """The token keys of one server's rounds. Thread-safe.

    Args:
        storage: keeps them.
        populations: whose charters name issuers.
        key: the server's, which orders them.
        log: where new ones are noted.
        issuer: gives them; None where this server knows no issuer.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        populations: Populations,
        key: SigningKey,
        log: Log,
        issuer: IssuerClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._populations = populations
        self._key = key
        self._log = log
        self._issuer = issuer
        self.clock = clock

    def stored_key(self, task: common_pb2.SignedTask, round: int) -> enrolment_pb2.SignedTokenKey | None:
        """The key that a round was opened with; None if it has none. Returns at once."""
        return self._storage.token_key(task_sha256(task), round)

    def newest(self, task: common_pb2.SignedTask) -> int | None:
        """The last round of a task that has a key; None where none has."""
        return self._storage.newest_token_key(task_sha256(task))

    def ended(self, task: common_pb2.SignedTask, round: int) -> str:
        """When the key of an open round ended, as the end of a sentence; empty while it gives tokens."""
        stored = self.stored_key(task, round)
        ends = None if stored is None else enrolment_pb2.TokenKey.FromString(stored.token_key).not_after
        if ends is None or self.clock() <= ends:
            return ""
        return f"ended at {utc(ends)}: no further device gets a token of it; cancel the task, and submit it anew"

    def ordered(
        self,
        task: common_pb2.SignedTask,
        order: aggregator_pb2.RoundOrder,
        *,
        population: str,
        refuse_ended: bool = True,
    ) -> enrolment_pb2.SignedTokenKey | None:
        """The key to open a round with; None if the population's charter names no issuer.

        Raises:
            EnrolmentError: it names one that this server does not know, or another one, or that refuses: the operator
                of one of them has to mend that. Or, where ``refuse_ended``, the round's key has ended.
            ServiceError: the aggregator does not return the charter, or the issuer does not answer.
        """
        signed = self._populations.refreshed(population)
        issuer_key = b"" if signed is None else open_charter(signed).issuer_key
        if not issuer_key:
            return None
        stored = self.stored_key(task, order.round)
        if stored is not None and _is_of(stored, issuer_key, population, order):
            if (ended := self.ended(task, order.round)) and refuse_ended:
                raise EnrolmentError(f"the token key of round {order.round} {ended}")
            return stored
        if self._issuer is None:
            raise EnrolmentError(
                f"population {population!r} names an issuer of tokens, and this server knows none: start it with "
                "--issuer and --issuer-control"
            )
        issued = self._issuer.token_key(task, *sign_order(order, self._key, domains.TOKEN_ORDER))
        if not _is_of(issued, issuer_key, population, order):
            raise EnrolmentError(
                f"the issuer of tokens is not the one that population {population!r} names (issuer key "
                f"{issuer_key.hex()[:16]}..): check --issuer-control, or have the owners name this one"
            )
        self._storage.set_token_key(order.task_sha256, order.round, issued)
        self._log.event("token_key", task=short(order.task_sha256), round=order.round)
        return issued


def _is_of(
    signed: enrolment_pb2.SignedTokenKey, issuer_key: bytes, population: str, order: aggregator_pb2.RoundOrder
) -> bool:
    try:
        open_token_key(
            signed, issuer_key=issuer_key, population=population, task_sha256=order.task_sha256, round=order.round
        )
    except (SignatureError, ConfigurationError):
        return False
    return True

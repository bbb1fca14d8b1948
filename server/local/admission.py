"""Tokens of the devices that report to one task, where its population admits enrolled devices alone.

An issuer gives each device one token for each of its keys. So the time of a task is divided into periods, each with a
key of its own: a device reports once in a period, and whoever runs no device, not at all. A period is as long as a
device waits between two reports; it also ends where its key does.

Periods are counted one by one, on a clock that nobody can set, so that a time of day that is wrong for a moment skips
none. Only at the start of a program does the time of day say how much of the current period is over: all of it at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from odp.crypto import domains
from odp.errors import ContributionRefused, Refusal
from odp.signed.task import task_sha256
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2
from server.token_keys import TokenKeys

_MOST_KNOWN = 16
# For so long a key has to be over, by the time of day, before its period ends for it: a wrong clock is right again.
_ENDED_SECONDS = 3600.0


class Admission:
    """The current period of a task, and its key. Thread-safe; ``Admission.of`` makes one."""

    def __init__(
        self, task: common_pb2.SignedTask, task_sha256: bytes, tokens: TokenKeys, *, population: str, began: float,
        period_seconds: float, monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._task, self._sha256, self._tokens, self._population = task, task_sha256, tokens, population
        self._began, self._seconds, self._monotonic = began, period_seconds, monotonic
        self._lock = threading.Lock()
        self._keys: dict[int, TokenKey] = {}
        # On the monotonic clock: since when the current period runs, and since when its key is over (None: it is not).
        self._since = monotonic()
        self._ended: float | None = None
        #: The current period, and its key.
        self.period = -1
        self.token_key: enrolment_pb2.SignedTokenKey | None = None

    @classmethod
    def of(
        cls, task: common_pb2.SignedTask, tokens: TokenKeys, *, population: str, began: float, period_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Admission | None:  # fmt: skip
        """The admission of an open task, submitted at ``began`` (seconds since the epoch).

        None where the population's charter names no issuer.

        Raises:
          EnrolmentError, ServiceError: as ``TokenKeys.ordered``.
        """
        made = cls(
            task, task_sha256(task), tokens, population=population, began=began, period_seconds=period_seconds,
            monotonic=monotonic,
        )  # fmt: skip
        made.renew()
        return None if made.token_key is None else made

    def renew(self) -> bool:
        """Begins the next period where the current one is over, here or at another server; whether it did.

        Raises as ``of``.
        """
        newest, now = self._tokens.newest(self._task), self._monotonic()
        period = max(self.period, 0 if newest is None else newest)
        since = now if period > self.period else self._since
        if self.period < 0 and newest is not None:
            since -= min(max(self._tokens.clock() - (self._began + period * self._seconds), 0.0), self._seconds)
        is_over = self._seconds and now - since >= self._seconds
        if newest is not None and (is_over or self._is_ended(period, now)):
            period, since = period + 1, now
        if period == self.period:
            return False
        # The model of an order says what is trained on: nothing here, so that it names the task.
        order = aggregator_pb2.RoundOrder(task_sha256=self._sha256, round=period, model_sha256=self._sha256)
        self.token_key = self._tokens.ordered(self._task, order, population=self._population, refuse_ended=False)
        self.period, self._since, self._ended = period, since, None
        return True

    def _is_ended(self, period: int, now: float) -> bool:
        if not self._tokens.ended(self._task, period):
            self._ended = None
            return False
        self._ended = now if self._ended is None else self._ended
        return now - self._ended >= _ENDED_SECONDS

    def require(self, report_id: bytes, token: bytes, period: int) -> None:
        """Returns if ``token`` admits the report: one of this period, or of one before. Raises ContributionRefused."""
        key = self._key(period) if len(token) == TOKEN_BYTES else None
        if key is None or not key.admits(domains.contribution_token(report_id), token):
            raise ContributionRefused(Refusal.NO_TOKEN)

    def _key(self, period: int) -> TokenKey | None:
        with self._lock:
            key = self._keys.get(period)
        if key is None and 0 <= period <= self.period:
            if (signed := self._tokens.stored_key(self._task, period)) is None:
                return None
            # It was checked when it came.
            key = opened(signed)
            with self._lock:
                if len(self._keys) >= _MOST_KNOWN:
                    self._keys.pop(next(iter(self._keys)))
                self._keys[period] = key
        return key


def opened(signed: enrolment_pb2.SignedTokenKey) -> TokenKey:
    """A stored token key, whose signature was checked before it was stored."""
    stated = enrolment_pb2.TokenKey.FromString(signed.token_key)
    return TokenKey(stated.population, stated.task_sha256, stated.round, stated.modulus, stated.not_after)

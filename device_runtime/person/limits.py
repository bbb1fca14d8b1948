"""The limits of a person for their device, checked against the task definition before any download.

The definition's terms are what the aggregator's enclave enforces (the device checks the enclave's evidence), so a task
within the limits cannot spend more than they allow. What several tasks reveal together is computed from the list of
their events (``ledger.py``), the round that is asked for included.

Reports that are private by themselves have a guarantee of their own beside that of releases: pure epsilon, added up,
whoever reads them, without trust in an enclave. So what counts is what left the device. A report that an enclave
refused counts, too: the enclave has seen it.

A task of DP-FTRL charges for few rounds of each device, far enough apart. The aggregator's enclave refuses a device
that comes too early (rule P27). The device counts for itself, so that neither a wrong enclave nor a lost record of it
makes its data cost more than the charge states. A contribution without an answer may have been used: it counts.

Source: privacy rules P33 (the person's limit comes before the download) and P34 (minimum cohort).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from device_runtime.person.ledger import Answered, Charged, TaskTerms, recent, since, spent, with_answers
from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.events import StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.protocol.terms import STEPS

_NUMBERS = (
    "max_epsilon", "max_delta", "max_total_epsilon", "max_total_epsilon_30_days", "max_developer_epsilon",
    "max_developer_epsilon_30_days", "max_total_delta", "max_answers_epsilon_30_days", "max_local_epsilon",
    "max_computing_seconds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The person's limits; a value of zero declines every task.

    Attributes:
      max_epsilon, max_delta: the largest guarantee parameters of one task, over the task's whole life.
      max_total_epsilon, max_total_epsilon_30_days: the largest epsilon at ``max_delta`` of everything that the device
        ever contributed, and of what it contributed in the last 30 days.
      max_developer_epsilon, max_developer_epsilon_30_days: the same, of the tasks of any one developer.
      max_answers_epsilon_30_days: the largest epsilon of what one service tells apps in 30 days (``ledger.py``). What
        apps are told counts in the two totals, too.
      max_local_epsilon: the largest epsilon of all reports together that are private by themselves, whoever reads them.
        A contribution without such a guarantee is bounded by the other limits alone.
      max_total_delta: the largest delta of everything together; only tasks with random cohorts add to ``max_delta``.
      max_computing_seconds: the longest time that a contribution may take, which the signed task fixes.
      min_cohort: the smallest number of contributions from which a task may release anything; a task of local trust
        releases nothing, and has none.
      populations: populations whose tasks are allowed; empty allows those that the device checks in for.
      tables: local tables that may be trained on; empty allows all.

    Raises:
      ConfigurationError: a value is negative or not finite, or a name is malformed.
    """

    max_epsilon: float = 10.0
    max_delta: float = 1e-5
    max_total_epsilon: float = 20.0
    max_total_epsilon_30_days: float = 20.0
    max_developer_epsilon: float = 20.0
    max_developer_epsilon_30_days: float = 20.0
    max_answers_epsilon_30_days: float = 1.0
    max_local_epsilon: float = 50.0
    max_total_delta: float = 1e-4
    max_computing_seconds: float = STEPS[-1]
    min_cohort: int = 100
    populations: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            _validate.finite(**{name: value})
            if value < 0:
                raise ConfigurationError(f"Expected {name}={value!r} to be >= 0")
        _validate.integer(low=0, high=2**31, min_cohort=self.min_cohort)
        for population in self.populations:
            _validate.identifier(population=population)
        for table in self.tables:
            _validate.identifier(table=table)

    @property
    def delta(self) -> float:
        """The delta of the totals: ``max_delta``, or the smallest meaningful value if that is 0."""
        return min(max(self.max_delta, 1e-12), 0.5)

    def check(
        self,
        terms: TaskTerms,
        *,
        round: int,
        past: Sequence[Charged] = (),
        answered: Sequence[Answered] = (),
        now: float = 0.0,
    ) -> None:
        """Returns if the person allows the task's ``round``.

        Args:
          terms: of the verified task.
          round: what the device is asked to contribute to.
          past: what it contributed before, to this task and others; not to this very round.
          answered: the earlier answers to apps.
          now: seconds since the epoch.

        Raises:
          PrivacyError: names the limit, its value and the asked value.
        """
        name, asks = terms.name, f"task {terms.name!r}"
        if self.populations and terms.population not in self.populations:
            raise _not_allowed(name, "population", terms.population, self.populations)
        for table in terms.tables:
            if self.tables and table not in self.tables:
                raise _not_allowed(name, "table", table, self.tables)
        _at_most(asks, "epsilon", terms.epsilon, "max_epsilon", self.max_epsilon)
        _at_most(asks, "delta", terms.delta, "max_delta", self.max_delta)
        longest = self.max_computing_seconds
        _at_most(asks, "the time of a contribution", terms.computing_seconds, "max_computing_seconds", longest)
        # Nobody is hidden among others where reports go to the server alone: ``max_local_epsilon`` bounds these.
        if not terms.local_trust and not terms.minimum_cohort >= self.min_cohort:
            raise PrivacyError(
                f"task {name!r} declined: its cohort minimum={terms.minimum_cohort} is below "
                f"min_cohort={self.min_cohort}; change the device's limits to take part"
            )
        everything = [*past, Charged(terms, round, now)]
        of_developer = [contribution for contribution in everything if contribution.terms.developer == terms.developer]
        for what, charged, limit in (
            ("epsilon of its developer", of_developer, "max_developer_epsilon"),
            ("epsilon of its developer in 30 days", since(of_developer, now=now), "max_developer_epsilon_30_days"),
        ):
            _at_most(asks, what, spent(charged, delta=self.delta).epsilon, limit, getattr(self, limit))
        self.check_totals(asks, everything, answered, now=now)
        _at_most(
            asks, "total delta", spent(everything, delta=self.delta).delta, "max_total_delta", self.max_total_delta
        )

    def check_totals(self, asks: str, charged: Sequence[Charged], answered: Sequence[Answered], *, now: float) -> None:
        """Returns if contributions and answers together are within the totals. ``asks`` names the request.

        Raises:
          PrivacyError: names the limit, its value and the asked value.
        """
        for what, contributions, answers, limit in (
            ("total epsilon", charged, answered, "max_total_epsilon"),
            ("epsilon of 30 days", since(charged, now=now), recent(answered, now=now), "max_total_epsilon_30_days"),
        ):
            value = with_answers(spent(contributions, delta=self.delta), answers).epsilon
            _at_most(asks, what, value, limit, getattr(self, limit))


def limits_from_json(values: dict[str, Any]) -> Limits:
    """Limits from JSON of ``dataclasses.asdict``. Raises as Limits, TypeError or KeyError."""
    return Limits(**{**values, **{name: tuple(values[name]) for name in ("populations", "tables")}})


def _at_most(asks: str, what: str, requested: float, limit: str, allowed: float) -> None:
    # Written so that a value which is not a number is declined.
    if not requested <= allowed:
        raise PrivacyError(
            f"{asks} declined: {what}={requested:g} is above {limit}={allowed:g}; change the device's "
            "limits to take part"
        )


def _not_allowed(task: str, what: str, requested: str, allowed: Sequence[str]) -> PrivacyError:
    return PrivacyError(
        f"task {task!r} declined: {what}={requested!r} is not among the allowed {', '.join(allowed)}; "
        "change the device's limits to take part"
    )


def local_epsilon(uploads: Iterable[Charged]) -> float:
    """Epsilon of all reports together, of all tasks; other contributions have none of their own."""
    return math.fsum(upload.terms.local.epsilon for upload in uploads if upload.terms.local is not None)


def require_report_allowed(terms: TaskTerms, uploads: Sequence[Charged], limits: Limits) -> None:
    """Returns if the device may send one more report of the task; a task without such reports is always allowed.

    Args:
      terms: of the verified task.
      uploads: what left the device before, refused or not, of all tasks; without the round in question.
      limits: of the person.

    Raises:
      PrivacyError: the device sent as many reports of the task as its signed definition allows, or the person's limit
        does not allow another one.
    """
    if terms.local is None:
        return
    sent = sum(upload.terms.task_sha256 == terms.task_sha256 for upload in uploads)
    if sent >= terms.local.most:
        raise PrivacyError(
            f"task {terms.name!r} declined: the device sent {sent} reports of it, and a device sends at most "
            f"{terms.local.most}, for epsilon={terms.local.lifetime:g} over its life"
        )
    total = local_epsilon(uploads) + terms.local.epsilon
    # Written so that a value which is not a number is declined.
    if not total <= limits.max_local_epsilon:
        raise PrivacyError(
            f"task {terms.name!r} declined: local epsilon={total:g} of all reports is above "
            f"max_local_epsilon={limits.max_local_epsilon:g}; change the device's limits to take part"
        )


def require_due(terms: TaskTerms, *, round: int, past: Sequence[Charged]) -> None:
    """Returns if the device may be in ``round`` of the task, given what it contributed before.

    Args:
      terms: of the verified task; one without a stream is always due.
      round: what the device is asked to contribute to.
      past: what it contributed before, to this task and others; not to this very round.

    Raises:
      PrivacyError: it was in as many rounds of the stream as it may be, or in one too close.
    """
    rounds = [contribution.round for contribution in past if contribution.terms.task_sha256 == terms.task_sha256]
    for event in terms.rounds[round]:
        stream = event.stream if isinstance(event, CoveredRelease) else event
        if not isinstance(stream, StreamRelease):
            continue
        declined = f"task {terms.name!r} declined: round {round} is not due"
        if len(rounds) >= stream.most:
            raise PrivacyError(f"{declined}, since the device was in {len(rounds)} rounds, of at most {stream.most}")
        near = [earlier for earlier in rounds if abs(round - earlier) < stream.separation]
        if near:
            raise PrivacyError(
                f"{declined}, since the device was in round {near[-1]}, and comes back after {stream.separation} rounds"
            )

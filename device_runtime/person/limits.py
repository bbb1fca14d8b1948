"""The limits of a person for their device, checked against the task definition before any download.

The definition's terms are what the aggregator's enclave enforces (the device checks the enclave's evidence), so a task
within the limits cannot spend more than they allow. What several tasks reveal together is computed from the list of
their events (``ledger.py``), the round that is asked for included.

Source: privacy rules P33 (the person's limit comes before the download) and P34 (minimum cohort).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from device_runtime.person.answers import Answered, recent, with_answers
from device_runtime.person.ledger import Charged, TaskTerms, since, spent
from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
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
      max_answers_epsilon_30_days: the largest epsilon of what one service tells apps in 30 days (``answers.py``). What
        apps are told counts in the two totals, too.
      max_local_epsilon: the largest epsilon of all reports together that are private by themselves, whoever reads them
        (``local_reports.py``). A contribution without such a guarantee is bounded by the other limits alone.
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

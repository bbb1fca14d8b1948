"""What a person allows their device to take part in, checked on the task definition before anything is downloaded.

The definition's terms are what the aggregator's enclave enforces (the device checks the enclave's evidence), so a task
within the limits cannot spend more than they allow. Several tasks compose: their epsilons are added (basic composition,
an upper bound of what they reveal together).

Source: privacy rules P33 (the person's limit comes before the download) and P34 (minimum cohort).
"""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.v1 import common_pb2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The person's limits; a value of zero declines every task.

    Attributes:
      max_epsilon, max_delta: the largest guarantee parameters of one task, over the task's whole life.
      max_total_epsilon: the largest sum of the epsilons of all tasks that the device ever contributed to.
      min_cohort: the smallest number of contributions from which a task may release anything.
      populations: populations whose tasks are allowed; empty allows those that the device checks in for.

    Raises:
      ConfigurationError: a value is negative or not finite, or a population's name is malformed.
    """

    max_epsilon: float = 10.0
    max_delta: float = 1e-5
    max_total_epsilon: float = 20.0
    min_cohort: int = 100
    populations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_epsilon", "max_delta", "max_total_epsilon"):
            value = getattr(self, name)
            _validate.finite(**{name: value})
            if value < 0:
                raise ConfigurationError(f"Expected {name}={value!r} to be >= 0")
        _validate.integer(low=0, high=2**31, min_cohort=self.min_cohort)
        for population in self.populations:
            _validate.identifier(population=population)

    def check(self, definition: common_pb2.TaskDefinition, *, spent_elsewhere: float = 0.0) -> None:
        """Returns if the person allows the task.

        Args:
          definition: the verified task.
          spent_elsewhere: sum of the epsilons of the *other* tasks that the device contributed to.

        Raises:
          PrivacyError: names the limit, its value and the asked value.
        """
        privacy, name = definition.privacy, definition.name
        if self.populations and definition.population not in self.populations:
            raise PrivacyError(
                f"task {name!r} declined: population={definition.population!r} is not among the allowed "
                f"{', '.join(self.populations)}; change the device's limits to take part"
            )
        # Written so that a value which is not a number is declined.
        if not privacy.epsilon <= self.max_epsilon:
            raise _declined(name, "epsilon", privacy.epsilon, "max_epsilon", self.max_epsilon)
        if not privacy.delta <= self.max_delta:
            raise _declined(name, "delta", privacy.delta, "max_delta", self.max_delta)
        total = spent_elsewhere + privacy.epsilon
        if not total <= self.max_total_epsilon:
            raise _declined(name, "total epsilon", total, "max_total_epsilon", self.max_total_epsilon)
        if not definition.cohort.minimum >= self.min_cohort:
            raise PrivacyError(
                f"task {name!r} declined: its cohort minimum={definition.cohort.minimum} is below "
                f"min_cohort={self.min_cohort}; change the device's limits to take part"
            )


def _declined(task: str, what: str, asked: float, limit: str, allowed: float) -> PrivacyError:
    return PrivacyError(
        f"task {task!r} declined: {what}={asked:g} is above {limit}={allowed:g}; "
        "change the device's limits to take part"
    )

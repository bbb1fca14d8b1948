"""Whether devices take part in all trainings of a schedule, by the limits that their persons set.

A device declines a training that would exceed a limit, and says so to its person alone. So a schedule beyond the limits
would lose the devices that were most faithful, training by training. Such a schedule is refused before it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import PrivacyError
from odp.privacy import accounting
from odp.trainings.schedule import Schedule, days

_DAYS = 30


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """Limits of a person, as of devices (docs/device.md); the defaults are those of devices.

    Attributes:
      max_epsilon, max_delta: of one training.
      max_total_epsilon: of all trainings together, at ``max_delta``.
      max_total_epsilon_30_days: of what a device contributes in any 30 days, at ``max_delta``.

    Raises:
      ConfigurationError: a value is not above 0.
    """

    max_epsilon: float = 10.0
    max_delta: float = 1e-5
    max_total_epsilon: float = 20.0
    max_total_epsilon_30_days: float = 20.0

    def __post_init__(self) -> None:
        _validate.positive(
            max_epsilon=self.max_epsilon, max_delta=self.max_delta, max_total_epsilon=self.max_total_epsilon,
            max_total_epsilon_30_days=self.max_total_epsilon_30_days,
        )  # fmt: skip

    def check(self, schedule: Schedule, *, coordinates: int = 0) -> None:
        """Returns if a device that is in every training declines none of them.

        A device may send the rounds of a training until the next one begins, so 30 days count one training more than
        begin in them.

        Args:
          schedule: of the trainings.
          coordinates: numbers that one training noises, as of ``Schedule.budgets``.

        Raises:
          PrivacyError: names the first training that would be declined and the limit.
        """
        if schedule.delta > self.max_delta:
            raise PrivacyError(
                f"Expected delta={schedule.delta:g} of the schedule to be at most the devices' max_delta="
                f"{self.max_delta:g}: they decline every training"
            )
        epsilons = [budget.epsilon for budget in schedule.budgets(coordinates=coordinates)]
        mus = {
            epsilon: accounting.mu_for(epsilon=epsilon, delta=schedule.delta, coordinates=coordinates)
            for epsilon in set(epsilons)
        }
        squares = np.array([mus[epsilon] ** 2 for epsilon in epsilons])
        so_far = np.concatenate(([0.0], np.cumsum(squares)))
        count, in_30_days = len(squares), -(-_DAYS // days(every=schedule.every)) + 1
        self._refuse(schedule, np.array(epsilons) > self.max_epsilon, "max_epsilon", "its own ε")
        for name, what, most in (
            ("max_total_epsilon_30_days", "ε of 30 days", min(in_30_days, count)),
            ("max_total_epsilon", "ε of all trainings so far", count),
        ):
            sums = so_far[1:] - so_far[np.maximum(np.arange(1, count + 1) - most, 0)]
            limit = accounting.mu_for(epsilon=getattr(self, name), delta=self.max_delta, coordinates=coordinates * most)
            self._refuse(schedule, sums > limit**2 * (1.0 + 1e-9), name, what)

    def check_beside(self, spent: float, epsilon: float, *, delta: float) -> None:
        """Returns if devices that have spent ``spent`` take part in a task of ``epsilon``, both at ``delta``.

        Raises:
          ConfigurationError: ``epsilon`` is not above 0.
          PrivacyError: names the limit by which they would decline it.
        """
        _validate.positive(epsilon=epsilon)
        if epsilon > self.max_epsilon:
            raise PrivacyError(
                f"devices would decline a task of ε = {epsilon:g}: it is above their max_epsilon={self.max_epsilon:g}"
            )
        squares = [
            accounting.mu_for(epsilon=spent_epsilon, delta=delta) ** 2
            for spent_epsilon in (spent, epsilon)
            if spent_epsilon
        ]
        limit = accounting.mu_for(epsilon=self.max_total_epsilon, delta=self.max_delta)
        if sum(squares) > limit**2 * (1.0 + 1e-9):
            raise PrivacyError(
                f"devices would decline a task of ε = {epsilon:g} after ε = {spent:.4g}: together they are above their"
                f" max_total_epsilon={self.max_total_epsilon:g}"
            )

    def _refuse(self, schedule: Schedule, declined: npt.NDArray[np.bool_], name: str, what: str) -> None:
        if declined.any():
            raise PrivacyError(
                f"devices would decline training {declined.argmax()} of {schedule.trainings}: {what} is above their "
                f"{name}={getattr(self, name):g}; lower lifetime_epsilon, or declare the limits of your devices"
            )

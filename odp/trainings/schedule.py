"""Trainings of one population in a row, for years, under one lifetime budget.

Every training is a task of its own, with its own (ε, δ). Their releases compose as Gaussian releases do: squares of mu
add up. So a schedule divides the mu^2 of the lifetime budget among its trainings:

=============  ===================================================================================
uniform        each training gets the same share
front-loaded   the first one gets a tenth of the whole, and the others share the rest equally
=============  ===================================================================================

Both are fixed before the first training and read nothing. The ledger of the population adds up what was charged, which
is the guarantee: a schedule is how its budget lasts as long as it should.

Noise that is correlated over trainings (DP-FTRL) has no rule here: where everybody takes part in every training,
independent noise tells at least as much (``benchmarks/continual.py``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.protocol.terms import UserLevelDP

UNIFORM, FRONT_LOADED = "uniform", "front-loaded"
RULES = (UNIFORM, FRONT_LOADED)

_FIRST = 0.1
_DAYS = {"d": 1, "w": 7, "y": 365}
_MOST_DAYS = 100 * 365
_MOST_TRAININGS = 5200


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a population trains, and what each training may spend. See the module.

    Attributes:
      every: time between two trainings, in whole days, weeks or years of 365 days: "7d", "1w".
      horizon: how long the budget has to last, in the same units: "2y".
      lifetime_epsilon: of all trainings together, per user; above 0, at most 100.
      delta: of the lifetime, and of each training; below 1 / users.
      rule: "uniform" or "front-loaded".
      least_epsilon: a schedule that leaves a training less than this is refused, since noise would drown it.

    Raises:
      ConfigurationError: a value is out of range, or ``every`` is longer than ``horizon``.
      PrivacyError: the lifetime budget is too small for so many trainings; the message says how many it pays for.
    """

    every: str
    horizon: str
    lifetime_epsilon: float
    delta: float
    rule: str = UNIFORM
    least_epsilon: float = 0.25

    def __post_init__(self) -> None:
        """Checks that every training can be paid."""
        _validate.positive(lifetime_epsilon=self.lifetime_epsilon, least_epsilon=self.least_epsilon)
        _validate.within(low=0.0, high=100.0, lifetime_epsilon=self.lifetime_epsilon)
        _validate.positive(delta=self.delta)
        _validate.within(low=0.0, high=1e-2, delta=self.delta)
        _validate.one_of(RULES, rule=self.rule)
        if days(horizon=self.horizon) < days(every=self.every):
            raise ConfigurationError(f"Expected every={self.every!r} to be at most horizon={self.horizon!r}")
        _validate.integer(low=1, high=_MOST_TRAININGS, trainings=self.trainings)
        self.budgets()

    @property
    def trainings(self) -> int:
        """How many fit into the horizon: one at its beginning, and one after every interval that is not its end."""
        return -(-days(horizon=self.horizon) // days(every=self.every))

    def budgets(self, *, coordinates: int = 0) -> tuple[UserLevelDP, ...]:
        """The budget of each training, in order.

        Args:
          coordinates: numbers that one training noises: sampling that many draws costs a little of δ, and ε is
            what remains. 0 is the limit of few numbers.

        Raises:
          PrivacyError: the lifetime budget does not pay for them.
        """
        total = accounting.mu_for(
            epsilon=self.lifetime_epsilon, delta=self.delta, coordinates=coordinates * self.trainings
        )
        by_share: dict[float, UserLevelDP] = {}
        for share in set(self._shares()):
            # A task asks for the noise of the largest mu within its ε: what is given here is given again.
            epsilon = accounting.epsilon_of_mu(math.sqrt(share) * total, delta=self.delta, coordinates=coordinates)
            if epsilon < self.least_epsilon:
                raise self._unpaid(epsilon, total)
            by_share[share] = UserLevelDP(epsilon=epsilon, delta=self.delta)
        return tuple(by_share[share] for share in self._shares())

    def _shares(self) -> tuple[float, ...]:
        """Of mu^2, 1 together."""
        count = self.trainings
        if self.rule == UNIFORM or count * _FIRST <= 1.0:
            return (1.0 / count,) * count
        return (_FIRST, *((1.0 - _FIRST) / (count - 1),) * (count - 1))

    def _unpaid(self, epsilon: float, total: float) -> PrivacyError:
        least = accounting.mu_for(epsilon=self.least_epsilon, delta=self.delta)
        paid = int((total / least) ** 2 * (1.0 if self.rule == UNIFORM else 1.0 - _FIRST))
        way = "raise lifetime_epsilon, or lower least_epsilon"
        if paid:
            apart = -(-days(horizon=self.horizon) // paid)
            way = f'it pays for {paid}: take every="{apart}d" or a nearer horizon, {way}'
        return PrivacyError(
            f"lifetime_epsilon={self.lifetime_epsilon:g} over {self.trainings} trainings leaves {epsilon:.3g} to each, "
            f"below least_epsilon={self.least_epsilon:g}; {way}"
        )


def days(**named: str) -> int:
    """The whole days of one text such as "7d", "2w" or "1y", given by its name. Raises ConfigurationError."""
    ((name, text),) = named.items()
    matched = re.fullmatch(r"([1-9][0-9]{0,5})([dwy])", text) if isinstance(text, str) else None
    if matched is None or (count := int(matched[1]) * _DAYS[matched[2]]) > _MOST_DAYS:
        raise ConfigurationError(
            f'Expected {name}={text!r} to be a time of whole days, weeks or years, such as "7d", "2w" or "1y", '
            "of at most 100 years"
        )
    return count

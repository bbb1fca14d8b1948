"""Noisy answers to an app: the one thing that a device tells it, out of a budget that its person sets.

Each is a line of the person's ledger (``best_value.py`` draws them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from device_runtime.person.ledger import MONTH_SECONDS, Spent
from odp.privacy.adjacency import Adjacency

MECHANISM = "randomized_response"
#: Of a locally private answer: any two states of the person's data are neighbours, no data at all included.
ADJACENCY = Adjacency.ANY_TWO_INPUTS


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A line of the ledger: whose service told which app one of ``choices``, at what epsilon, when (seconds)."""

    service: str
    app: str
    choices: int
    epsilon: float
    time: float


def with_answers(spent: Spent, answered: Iterable[Answered]) -> Spent:
    """Contributions and answers together: epsilons of pure guarantees are added (basic composition)."""
    return Spent(spent.epsilon + total(answered), spent.delta)


def total(answered: Iterable[Answered]) -> float:
    """Epsilon of all of them together."""
    return sum((one.epsilon for one in answered), 0.0)


def recent(answered: Iterable[Answered], *, now: float) -> list[Answered]:
    """Those of the last 30 days; one whose time lies ahead counts."""
    return [one for one in answered if one.time > now - MONTH_SECONDS]

"""Noisy answers to apps, out of a budget that the person sets; apps learn nothing else from a device.

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
    """A line of the ledger: the service, the app, the number of choices, epsilon, and the time (seconds)."""

    service: str
    app: str
    choices: int
    epsilon: float
    time: float


def with_answers(spent: Spent, answered: Iterable[Answered]) -> Spent:
    """Contributions and answers together: epsilons of pure guarantees are added (basic composition)."""
    return Spent(spent.epsilon + total(answered), spent.delta)


def total(answered: Iterable[Answered]) -> float:
    """Epsilon of all answers together."""
    return sum((answer.epsilon for answer in answered), 0.0)


def recent(answered: Iterable[Answered], *, now: float) -> list[Answered]:
    """Answers of the last 30 days; an answer with a time in the future counts."""
    return [answer for answer in answered if answer.time > now - MONTH_SECONDS]

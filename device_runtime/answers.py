"""Noisy answers to an app: the one thing that a device tells it, out of a budget that its person sets.

An app may ask which of k choices the device's service finds best. What it gets went through randomized response over
all k (``odp/privacy/mechanisms/randomized_response.py``), so that the answer is (epsilon, 0)-locally private by itself.
The charge is in the store before the answer is drawn: a device that dies in between has paid for an answer that nobody
got, and never the other way round. The same question again is another answer, and costs again.

Source: privacy rule P33.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runtime.ledger import MONTH_SECONDS, Spent
from odp import _validate
from odp.errors import NotNow, PrivacyError
from odp.privacy.adjacency import Adjacency
from odp.privacy.mechanisms.randomized_response import RandomizedResponse

if TYPE_CHECKING:
    from device_runtime.gate import Gate
    from device_runtime.store import Store

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


def best_value(
    store: Store,
    gate: Gate,
    truth: int,
    *,
    service: str,
    app: str,
    choices: int,
    epsilon: float,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> int:
    """Tells ``app`` a noisy version of ``truth``, one of 0 .. choices - 1, and charges the person for it first.

    Args:
      store: of the device; the charge is in its ledger.
      gate: the limits of a person who set none, and the clock.
      truth: what the device's service found best.
      service: whose code computed it.
      app: who is told.
      choices: how many answers there are, from 2 on.
      epsilon: the most that the answer may cost; what is charged is the true epsilon, at most that.

    Raises:
      ConfigurationError: a value is out of range.
      NotNow: the device is paused or opted out of everything.
      PrivacyError: the answer is beyond the person's limits; nothing was charged or told.
    """
    _validate.identifier(service=service, app=app)
    mechanism = RandomizedResponse(choices=choices, asked=epsilon)
    mechanism.check(truth)
    line = Answered(service=service, app=app, choices=choices, epsilon=mechanism.epsilon, time=gate.clock())
    with store.transaction():
        person = store.person()
        if person.opted_out is not None or person.paused is not None:
            raise NotNow("paused or opted out of everything; apps are told nothing", "paused")
        past = store.answers()
        limits = person.limits or gate.limits
        own = total(one for one in recent(past, now=line.time) if one.service == service)
        if not own + line.epsilon <= limits.max_answers_epsilon_30_days:
            raise PrivacyError(
                f"answer to {app!r} declined: service {service!r} would have told epsilon={own + line.epsilon:g} in 30 "
                f"days, above max_answers_epsilon_30_days={limits.max_answers_epsilon_30_days:g}; "
                "change the device's limits to allow it"
            )
        limits.check_totals(f"answer to {app!r}", store.charged(), [*past, line], now=line.time)
        store.add_answer(line)
    return mechanism.answer(truth, random_bits=random_bits)

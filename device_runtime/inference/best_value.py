"""The best of k choices for a service, released to an app by randomized response within the person's budget.

The answer went through randomized response over all k (``odp/privacy/mechanisms/randomized_response.py``), so that it
is (epsilon, 0)-locally private by itself. The charge is in the store before the answer is drawn: a device that dies in
between has paid for an answer that nobody got, and never the other way round. The same question again is another
answer, and costs again.

Source: privacy rule P33.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from device_runtime.person.ledger import Answered, recent, total
from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from odp import _validate
from odp.errors import NotNow, PrivacyError
from odp.privacy.mechanisms.randomized_response import RandomizedResponse


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
    """Returns to ``app`` a noisy version of ``truth``, one of 0 .. choices - 1; charges the person's ledger first.

    Args:
      store: of the device; the charge is in its ledger.
      gate: the limits of a person who set none, and the clock.
      truth: what the device's service found best.
      service: whose code computed it.
      app: the receiver of the answer.
      choices: how many answers there are, from 2 on.
      epsilon: the most that the answer may cost; what is charged is the true epsilon, at most that.

    Raises:
      ConfigurationError: a value is out of range.
      NotNow: the device is paused or opted out of everything.
      PrivacyError: the answer is beyond the person's limits; nothing was charged or returned.
    """
    _validate.identifier(service=service, app=app)
    mechanism = RandomizedResponse(choices=choices, asked=epsilon)
    mechanism.check(truth)
    line = Answered(service=service, app=app, choices=choices, epsilon=mechanism.epsilon, time=gate.clock())
    with store.transaction():
        person = store.person()
        if person.opted_out is not None or person.paused is not None:
            raise NotNow("paused or opted out of everything; apps get no answers", "paused")
        past = store.answers()
        limits = person.limits or gate.limits
        spent = total(answer for answer in recent(past, now=line.time) if answer.service == service)
        if not spent + line.epsilon <= limits.max_answers_epsilon_30_days:
            raise PrivacyError(
                f"answer to {app!r} declined: the answers of service {service!r} would reach "
                f"epsilon={spent + line.epsilon:g} in 30 days, "
                f"above max_answers_epsilon_30_days={limits.max_answers_epsilon_30_days:g}; "
                ""
                "change the device's limits to allow it"
            )
        limits.check_totals(f"answer to {app!r}", store.charged(), [*past, line], now=line.time)
        store.add_answer(line)
    return mechanism.answer(truth, random_bits=random_bits)

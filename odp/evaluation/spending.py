"""What a budget is spent on: every release of a run with its share of mu^2, in which Gaussian releases add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from odp.privacy.accounting import epsilon
from odp.privacy.events import DistributedRelease, Event, GaussianRelease, SampledRound


@dataclass(frozen=True)
class Spend:
    """One release.

    Attributes:
      round: from 0.
      name: of the release; of a sampled round, the names of all its releases, which are one event.
      mu: sensitivity over noise; 0 of reports that devices randomised. Of a sampled round, that of all its releases
        together, before amplification by sampling.
      share: of the sum of mu^2 of all releases, from 0 to 1; the shares add up to 1, or are all 0.
      epsilon_so_far: of all releases up to this one, at the run's delta.
    """

    round: int
    name: str
    mu: float
    share: float
    epsilon_so_far: float


def spending(charges: Sequence[Sequence[Event]], *, delta: float) -> tuple[Spend, ...]:
    """One entry per release of ``charges`` (one sequence per round), in order.

    Raises:
      ConfigurationError: ``delta`` is not strictly between 0 and 1.
      PrivacyError: too many numbers got noise: the sampler alone uses up ``delta``.
    """
    flat = [(number, event) for number, events in enumerate(charges) for event in events]
    mus = [_mu(event) for _, event in flat]
    total = math.fsum(mu**2 for mu in mus)
    return tuple(
        Spend(
            round=number,
            name=event.name,
            mu=mus[place],
            share=mus[place] ** 2 / total if total else 0.0,
            epsilon_so_far=epsilon([before for _, before in flat[: place + 1]], delta=delta),
        )
        for place, (number, event) in enumerate(flat)
    )


def _mu(event: Event) -> float:
    if isinstance(event, SampledRound):
        return event.joint_mu
    return event.mu if isinstance(event, (GaussianRelease, DistributedRelease)) else 0.0

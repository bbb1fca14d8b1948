"""What the noise of a task leaves of its signal, before any device is asked: release by release, from public numbers.

The yardstick of a release is one item's mean. A table of sums per item gets contributions of at most
``population * max_items_per_user / items`` raters for an average item, each of at most its clip, so the noise on the
item's mean, over the clip, is ``noise_std / (clip * raters)``. Users who rate fewer items than the bound leave less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odp import _validate
from odp.algorithms.capabilities import Recommender
from odp.algorithms.declared import ShuffledCounts
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges, sampling_of
from odp.errors import ConfigurationError
from odp.privacy import accounting
from odp.privacy.events import Event

if TYPE_CHECKING:
    from odp.algorithms.choices import DeclaredTask

CLEAR = 0.25
"""An item's mean that is known to a quarter of the clip is worth learning from; at 1 it is noise."""


def plan_of_task(task: DeclaredTask, *, population: int | None = None) -> dict[str, Any]:
    """Epsilon of the plan, noise and signal of each release, and the population at which an average item is clear.

    ``population`` is the number of devices; the default is the cohort's goal.

    Raises:
        ConfigurationError: the task asks for statistics or for no noise, or ``population`` is out of range.
        PrivacyError: delta is no guarantee at this population.
    """
    if not isinstance(algorithm_for(task.definition()), Recommender):
        raise ConfigurationError(
            f"Expected a task whose model scores items: the noise of task {task.name!r} is in `odp task show`"
        )
    if task.privacy.epsilon == math.inf:
        raise ConfigurationError("Expected a finite epsilon: a task without noise has no privacy to plan")
    definition = task.definition()
    users = definition.cohort.goal if population is None else population
    _validate.integer(low=1, high=10**9, population=users)
    accounting.check_delta(definition.privacy.delta, users)
    sampling, algorithm = sampling_of(definition, 0), algorithm_for(definition)
    probability = 1.0 if sampling is None else sampling.probability
    items, places = definition.model.items, definition.privacy.max_items_per_user
    rows: list[dict[str, Any]] = []
    events: list[Event] = []
    for number, releases in enumerate(algorithm.planned_releases()):
        events += round_charges(algorithm.query(number), sampling)
        for release in releases:
            if isinstance(release, ShuffledCounts):
                continue
            per_item = release.shape[0] == items
            raters = probability * users * (places / items if per_item else 1.0)
            clip = release.sensitivity / (math.sqrt(places) if per_item else 1.0)
            error = release.noise_std / (clip * raters)
            rows.append(
                {
                    "round": number,
                    "name": release.name,
                    "numbers": release.coordinates,
                    "sensitivity": release.sensitivity,
                    "noise_std": release.noise_std,
                    "contributions_per_mean": raters,
                    "error": error,
                    "clear_from_population": math.ceil(users * error / CLEAR),
                }
            )
    weakest = max(rows, key=lambda row: row["error"])
    return {
        "task": task.name,
        "epsilon": accounting.epsilon(events, delta=definition.privacy.delta),
        "budget": definition.privacy.epsilon,
        "delta": definition.privacy.delta,
        "population": users,
        "delta_times_population": definition.privacy.delta * users,
        "probability": probability,
        "rounds": len(algorithm.planned_releases()),
        "releases": rows,
        "weakest": weakest["name"],
        "clear_from_population": weakest["clear_from_population"],
        "possible": weakest["error"] <= 1.0,
    }


def render_task_plan(plan: Mapping[str, Any]) -> str:
    """The plan as text."""
    lines = [
        f"task {plan['task']}: epsilon {plan['epsilon']:.4f} of {plan['budget']:g} at delta {plan['delta']:g} in"
        f" {plan['rounds']} rounds; {plan['population']:,} devices, delta times devices"
        f" {plan['delta_times_population']:.3g}",
        "",
        f"{'round':>5}  {'release':<12}{'noise std':>12}{'raters':>12}{'noise / clip':>14}{'clear from':>16}",
        *(
            f"{row['round']:>5}  {row['name']:<12}{row['noise_std']:>12.5g}{row['contributions_per_mean']:>12.5g}"
            f"{row['error']:>14.3g}{row['clear_from_population']:>16,}"
            for row in plan["releases"]
        ),
        "",
        "raters: contributions to an average item's mean, at most. noise / clip: on that mean. clear from: devices at"
        f" which it is {CLEAR:g}.",
    ]
    if plan["probability"] < 1.0:
        lines.append(f"each contribution counts with probability {plan['probability']:g}: raters are those that count")
    if not plan["possible"]:
        lines.append(
            f"an average item of {plan['weakest']!r} drowns in noise: popular items still learn, others get what all"
            f" have in common. It takes {plan['clear_from_population']:,} devices, fewer items, or a larger epsilon"
        )
    return "\n".join(lines) + "\n"

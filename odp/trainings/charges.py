"""What a training of a schedule may spend, and what it will be charged."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import planned_charges
from odp.errors import BudgetExceeded
from odp.privacy import accounting
from odp.privacy.events import Event, GaussianRelease
from odp.tasks.task import Task
from odp.trainings.schedule import Schedule
from odp.v1 import common_pb2

_ROUNDING = 1e-9  # of floats, in what is left
# Of a share: who was left less by something else is told by ``payable``, rather than trained on a rest.
_LEAST_PART = 0.9


def with_share(schedule: Schedule, number: int, task: Task, *, spent: Counter[Event] | None = None) -> Task:
    """``task`` with the budget of training ``number``, after what the trainings before it ``spent``.

    Raises PrivacyError as ``Schedule.budgets``.
    """
    share = replace(task.privacy, epsilon=schedule.budgets()[number].epsilon, delta=schedule.delta)
    task = replace(task, privacy=share)
    # Its draws, and those of all other trainings, cost a little of δ together.
    coordinates = accounting.noised_coordinates(charges_of_task(task.definition()))
    training_epsilon = schedule.budgets(coordinates=coordinates)[number].epsilon
    left = _left(schedule, spent, coordinates=coordinates) if spent else training_epsilon
    if _LEAST_PART * training_epsilon <= left < training_epsilon:
        training_epsilon = left
    return replace(task, privacy=replace(share, epsilon=training_epsilon))


def _left(schedule: Schedule, spent: Counter[Event], *, coordinates: int) -> float:
    """The ε that the lifetime budget leaves to one training; infinity where sampled rounds are in it.

    A share counts all trainings as large as its own. Where a catalogue grows, those before were smaller and took a
    little more than that: at the least δ, so much that the last training would not be paid. A sampled training is
    charged far less than its share, which is computed as if every contribution counted.
    """
    if not all(isinstance(event, GaussianRelease) for event in spent):
        return math.inf
    before = tuple(spent.elements())
    noised = accounting.noised_coordinates(before) + coordinates
    total = accounting.mu_for(epsilon=schedule.lifetime_epsilon, delta=schedule.delta, coordinates=noised)
    left = total**2 - accounting.mu(before) ** 2
    if left <= 0.0:
        return 0.0
    mu = (1.0 - _ROUNDING) * math.sqrt(left)
    return accounting.epsilon_of_mu(mu, delta=schedule.delta, coordinates=coordinates)


def charges_of_task(definition: common_pb2.TaskDefinition) -> list[Event]:
    """What all planned rounds cost."""
    return [event for events in planned_charges(algorithm_for(definition)) for event in events]


def payable(
    schedule: Schedule, number: int, definition: common_pb2.TaskDefinition, spent: Counter[Event]
) -> list[Event]:
    """What training ``number`` will be charged, after what was ``spent``.

    Raises:
      BudgetExceeded: the lifetime budget does not hold it.
    """
    charges = charges_of_task(definition)
    total = accounting.epsilon(spent + Counter(charges), delta=schedule.delta)
    if total > schedule.lifetime_epsilon:
        raise BudgetExceeded(
            f"training {number} would bring ε to {total:.6g}, beyond lifetime_epsilon={schedule.lifetime_epsilon:g}; "
            "it did not begin"
        )
    return charges

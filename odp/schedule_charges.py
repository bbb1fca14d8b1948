"""What a training of a schedule may spend, and what it will be charged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import planned_charges
from odp.errors import BudgetExceeded
from odp.privacy import accounting
from odp.privacy.events import Event
from odp.schedule import Schedule
from odp.task import Task
from odp.v1 import common_pb2


def with_share(schedule: Schedule, number: int, task: Task) -> Task:
    """``task`` with the budget of training ``number``. Raises PrivacyError as ``Schedule.budgets``."""
    share = replace(task.privacy, epsilon=schedule.budgets()[number].epsilon, delta=schedule.delta)
    task = replace(task, privacy=share)
    # Its draws, and those of all other trainings, cost a little of δ together.
    coordinates = accounting.noised_coordinates(charges_of_task(task.definition()))
    own = schedule.budgets(coordinates=coordinates)[number]
    return replace(task, privacy=replace(share, epsilon=own.epsilon))


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

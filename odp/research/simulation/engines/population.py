"""What makes the sums of users, for a task."""

from __future__ import annotations

from typing import Any

from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Population, ProgramPopulation
from odp.models.litert.keras_model import KerasModel
from odp.tasks.task import Task


def population_of(task: Task) -> Population[Any]:
    """What a simulation of ``task`` makes the sums of users with; a network is trained by the engine that it names.

    Raises:
      ConfigurationError: the task is invalid.
    """
    population = algorithm_for(task.definition()).population()
    engine = task.model.own_engine() if isinstance(task.model, KerasModel) else None
    if engine is None or not isinstance(population, ProgramPopulation):
        return population
    return population.run_by(engine)

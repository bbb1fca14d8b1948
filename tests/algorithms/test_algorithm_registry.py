"""From a task definition to its algorithm."""

from __future__ import annotations

import pytest

from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.v1 import common_pb2


def test_a_task_without_known_training_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="training=None of task 'empty'"):
        algorithm_for(common_pb2.TaskDefinition(name="empty"))


def test_an_invalid_definition_is_refused_by_each_part() -> None:
    definition = common_pb2.TaskDefinition(name="bad")
    definition.dpam.steps = 1
    algorithm = algorithm_for(definition)
    for part in (algorithm.server, algorithm.client, algorithm.population, algorithm.planned_releases):
        with pytest.raises(ConfigurationError, match="items=0"):
            part()
    with pytest.raises(ConfigurationError, match="items=0"):
        algorithm.query(0)

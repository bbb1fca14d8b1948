"""How `odp report` names the figures of a federated training."""

from __future__ import annotations

from odp.algorithms.experiment import Quality
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.task import Task

QUALITY = Quality(
    title="Accuracy",
    entries="examples",
    final="test_accuracy",
    label="accuracy",
    rounds=(("test_accuracy", "test accuracy"), ("test_loss", "test loss")),
    buckets=(),
    baselines={},
)


class TaskExperiment:
    """Refuses ratings: they have no features.

    Raises:
      ConfigurationError: always.
    """

    def __init__(self, task: Task, data: str, ratings: Ratings, *, seed: int, held_out: int | None) -> None:
        raise ConfigurationError(f"Expected labelled examples for task {task.name!r}; the data set {data!r} is ratings")

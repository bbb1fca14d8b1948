"""How good a rating model is on data that the researcher owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.experiment import Metrics
from odp.datasets.ratings import Ratings, Split
from odp.evaluation.baselines import rmse
from odp.v1 import common_pb2
from odp.wire.model import ModelVersion


class TaskEvaluation:
    """``odp.algorithms.experiment.TrainingEvaluation``: root mean square errors of predicted ratings."""

    round_metrics: ClassVar[tuple[str, ...]] = ("validation_rmse", "test_rmse")

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._population = DpamPopulation(definition)

    def after_round(self, model: ModelVersion, split: Split, history: Ratings) -> dict[str, float]:
        """RMSE on the validation and the test part; NaN of an empty one."""
        predict = self._population.predict
        return {
            "validation_rmse": rmse(predict(model, split.train, split.validation), split.validation),
            "test_rmse": rmse(predict(model, history, split.test), split.test),
        }

    def after_training(
        self, model: ModelVersion, split: Split, history: Ratings, *, last: Mapping[str, float]
    ) -> Metrics:
        """Those after the last round."""
        return last

"""How good a rating model is on data that the researcher owns."""

from __future__ import annotations

from odp.algorithms.dpam.population import DpamPopulation
from odp.datasets.ratings import Ratings, Split
from odp.simulation.baselines import rmse
from odp.simulation.ranking import Ranking
from odp.v1 import common_pb2
from odp.wire.model import ModelVersion


class TaskEvaluation:
    """``odp.simulation.engine.Evaluation``: root mean square errors of predicted ratings."""

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._population = DpamPopulation(definition)

    def figures(self, model: ModelVersion, split: Split, history: Ratings) -> dict[str, float]:
        """RMSE on the validation and the test part; NaN of an empty one."""
        predict = self._population.predict
        return {
            "validation_rmse": rmse(predict(model, split.train, split.validation), split.validation),
            "test_rmse": rmse(predict(model, history, split.test), split.test),
        }

    def ranking(self, model: ModelVersion, history: Ratings, targets: Ratings) -> Ranking | None:
        """None: ratings are predicted."""
        return None

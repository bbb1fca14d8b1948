"""How good a rating model is on data that the researcher owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.experiment import Metrics
from odp.datasets.ratings import Ratings, Split
from odp.evaluation.baselines import rmse
from odp.evaluation.reliability import Reliability, reliability
from odp.models.left_out import LeftOut
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2


class TaskEvaluation:
    """``odp.algorithms.experiment.TrainingEvaluation``: root mean square errors of predicted ratings, and coverage."""

    round_metrics: ClassVar[tuple[str, ...]] = ("validation_rmse", "test_rmse")

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._definition, self._population = definition, DpamPopulation(definition)

    def left_out(self, split: Split) -> dict[str, LeftOut]:
        """None: all ratings of a split take part."""
        return {}

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
        """Those after the last round, and ``test_intervals``: what the ranges of test ratings cover."""
        return {**last, "test_intervals": covered(self._definition, self._population, model, history, split.test)}


def covered(
    definition: common_pb2.TaskDefinition,
    population: DpamPopulation,
    model: ModelVersion,
    history: Ratings,
    targets: Ratings,
) -> Reliability:
    """What the ranges of a model cover on ``targets``, each user solved on ``history``.

    Raises:
      DataError: sizes do not fit the task.
    """
    terms = Terms.of(definition)
    return reliability(
        history,
        targets,
        predict=lambda observed, wanted: population.predict(model, observed, wanted),
        half_widths=lambda observed, wanted, levels: population.half_widths(model, observed, wanted, levels=levels),
        least=terms.low,
        most=terms.high,
    )

"""How good a trained model is on public labelled examples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.experiment import Metrics
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.v1 import common_pb2
from odp.wire.model import ModelVersion

_EXAMPLES = 2**12  # of a block: bounds memory


class TaskEvaluation:
    """Mean loss, and for classes the share that is named right, on examples whoever they are from."""

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)

    @property
    def round_metrics(self) -> tuple[str, ...]:
        """Mean loss, accuracy, and the means of the model's own metrics."""
        return ("test_loss", "test_accuracy", *(f"test_{name}" for name in self._terms.model.metrics))

    def after_round(self, model: ModelVersion, split: ExamplesSplit, history: UsersExamples) -> dict[str, float]:
        """The metrics of ``round_metrics`` on all usable test examples; NaN where there are none.

        Accuracy is NaN where targets are numbers.
        """
        trained, vector = self._terms.model, self._terms.parameters(model.dense[PARAMETERS])
        usable = UsableTable.of(trained, self._terms.examples, split.test).usable(split.test)
        right, count = 0, len(usable.rows)
        sums = dict.fromkeys(("loss", *trained.metrics), 0.0)
        for start in range(0, count, _EXAMPLES):
            rows = usable.rows[start : start + _EXAMPLES]
            features = usable.features[rows].astype(np.float32) * np.float32(usable.scale)
            targets = usable.targets[rows]
            for name, values in trained.measures(vector, features, targets).items():
                if name in sums:
                    sums[name] += float(values.sum())
            if trained.classes_range is not None:
                right += int((trained.classes(vector, features) == targets).sum())
        accuracy = right / count if count and trained.classes_range is not None else float("nan")
        means = {f"test_{name}": total / count if count else float("nan") for name, total in sums.items()}
        return {"test_accuracy": accuracy, **means}

    def after_training(
        self, model: ModelVersion, split: ExamplesSplit, history: UsersExamples, *, last: Mapping[str, float]
    ) -> Metrics:
        """Those after the last round."""
        return last

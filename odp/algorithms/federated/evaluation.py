"""How good a trained model is on public labelled examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from odp.algorithms.experiment import Metrics
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.crypto.keyed_hash import splitmix64
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.models.trained import PartlyLocalModel
from odp.numerics.arrays import Float32Array
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

        Accuracy is NaN where targets are numbers. With layers that stay on devices, each test user finds its own on the
        smaller half of its examples, and the other half is measured.
        """
        trained, vector = self._terms.model, self._terms.parameters(model.dense[PARAMETERS])
        usable = UsableTable.of(trained, self._terms.examples, split.test).usable(split.test)
        right, count = 0, 0
        sums = dict.fromkeys(("loss", *trained.metrics), 0.0)
        for own, features, targets in self._parts(vector, usable):
            count += len(targets)
            for name, values in trained.measures(own, features, targets).items():
                if name in sums:
                    sums[name] += float(values.sum())
            if trained.classes_range is not None:
                right += int((trained.classes(own, features) == targets).sum())
        accuracy = right / count if count and trained.classes_range is not None else float("nan")
        means = {f"test_{name}": total / count if count else float("nan") for name, total in sums.items()}
        return {"test_accuracy": accuracy, **means}

    def _parts(
        self, vector: Float32Array, usable: UsersExamples
    ) -> Iterator[tuple[Float32Array, Float32Array, Float32Array]]:
        """(parameters, features, targets) that are measured together."""
        trained, local = self._terms.model, self._terms.local
        if local.reconstruction is not None and isinstance(trained, PartlyLocalModel):
            halves = dataclasses.replace(local, reconstruction=dataclasses.replace(local.reconstruction, split=True))
            for user in range(usable.n_users):
                features, targets = usable.of(user)
                seed = int(splitmix64(np.array([user], dtype=np.uint64))[0])
                _, others = halves.parts(len(targets), seed=seed, round=0)
                if len(others):
                    own = trained.reconstructed(vector, features, targets, halves, seed=seed, round=0)
                    yield own, features[others], targets[others]
            return
        for start in range(0, len(usable.rows), _EXAMPLES):
            rows = usable.rows[start : start + _EXAMPLES]
            yield vector, usable.features[rows].astype(np.float32) * np.float32(usable.scale), usable.targets[rows]

    def after_training(
        self, model: ModelVersion, split: ExamplesSplit, history: UsersExamples, *, last: Mapping[str, float]
    ) -> Metrics:
        """Those after the last round."""
        return last

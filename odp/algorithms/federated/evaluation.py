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
from odp.models.left_out import TEST, TRAIN, LeftOut
from odp.models.local_training import LocalTraining
from odp.models.trained import PartlyLocalModel
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

_EXAMPLES = 2**12  # of a block: bounds memory


class TaskEvaluation:
    """Mean loss, and for classes the share that is named right, on examples whoever they are from."""

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)
        self._tests: UsableTable | None = None

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
        usable = self._table(split.test).usable(split.test)
        right, count = 0, 0
        sums = dict.fromkeys(("loss", *trained.metrics), 0.0)
        for parameters, features, targets in self._parts(vector, usable):
            count += len(targets)
            for name, values in trained.measures(parameters, features, targets).items():
                if name in sums:
                    sums[name] += float(values.sum())
            if trained.classes_range is not None:
                right += int((trained.classes(parameters, features) == targets).sum())
        accuracy = right / count if count and trained.classes_range is not None else float("nan")
        means = {f"test_{name}": total / count if count else float("nan") for name, total in sums.items()}
        return {"test_accuracy": accuracy, **means}

    def left_out(self, split: ExamplesSplit) -> dict[str, LeftOut]:
        """What is not trained and not tested on, and why.

        Raises:
          DataError: a label is none that the model takes, or no training example can be used, or there are test
            examples of which none can be used.
        """
        terms = self._terms
        table = UsableTable.of(terms.model, terms.examples, split.train)
        trained = table.left_out(split.train, what="training examples", most_rows=terms.local.most_rows)
        if not len(split.test.rows):
            return {TRAIN: trained, TEST: LeftOut(0)}
        tests = self._table(split.test)
        tested = tests.left_out(split.test, what="test examples")
        if terms.local.reconstruction is not None:
            measured = sum(len(others) for _, _, others in self._halves(tests.usable(split.test)))
            tested = tested.without(tested.used - measured, "on which test users find their own layers")
        return {TRAIN: trained, TEST: tested}

    def _table(self, users: UsersExamples) -> UsableTable:
        """The test examples as the model reads them, once for all rounds."""
        if self._tests is None or not self._tests.is_of(users):
            self._tests = UsableTable.of(self._terms.model, self._terms.examples, users)
        return self._tests

    def _parts(
        self, vector: Float32Array, usable: UsersExamples
    ) -> Iterator[tuple[Float32Array, Float32Array, Float32Array]]:
        """(parameters, features, targets) that are measured together."""
        trained, local = self._terms.model, self._split()
        if local.reconstruction is not None and isinstance(trained, PartlyLocalModel):
            for user, seed, others in self._halves(usable):
                if len(others):
                    features, targets = usable.of(user)
                    parameters = trained.reconstructed(vector, features, targets, local, seed=seed, round=0)
                    yield parameters, features[others], targets[others]
            return
        for start in range(0, len(usable.rows), _EXAMPLES):
            rows = usable.rows[start : start + _EXAMPLES]
            yield vector, usable.features[rows].astype(np.float32) * np.float32(usable.scale), usable.targets[rows]

    def _split(self) -> LocalTraining:
        """The training whose reconstruction, if it has one, takes one half of a user's examples."""
        local = self._terms.local
        if local.reconstruction is None:
            return local
        return dataclasses.replace(local, reconstruction=dataclasses.replace(local.reconstruction, split=True))

    def _halves(self, usable: UsersExamples) -> Iterator[tuple[int, int, Int64Array]]:
        """(user, seed, the examples that are measured) of each test user, whose other examples find its own layers."""
        local = self._split()
        for user, count in enumerate(np.diff(usable.offsets).tolist()):
            seed = int(splitmix64(np.array([user], dtype=np.uint64))[0])
            yield user, seed, local.parts(count, seed=seed, round=0)[1]

    def after_training(
        self, model: ModelVersion, split: ExamplesSplit, history: UsersExamples, *, last: Mapping[str, float]
    ) -> Metrics:
        """Those after the last round."""
        return last

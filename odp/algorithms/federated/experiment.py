"""What `odp simulate` trains a federated training on, and how it and `odp report` show the figures.

How good a trained model is on public labelled examples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import Diagnostics, FinishedRun, Metrics, NamedData, Quality
from odp.algorithms.federated.diagnostics import interval
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.algorithms.registry import algorithm_for
from odp.crypto.keyed_hash import splitmix64
from odp.datasets.example_files import examples_of_name
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.table_files import is_table_file
from odp.errors import ConfigurationError
from odp.models.example_tables import examples_for, split_for
from odp.models.examples import Examples
from odp.models.left_out import TEST, TRAIN, LeftOut, left_out_in_words
from odp.models.local_training import LocalTraining
from odp.models.trained import PartlyLocalModel
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from rich.console import Console

_FINAL = "test_examples"

QUALITY = Quality(
    title="Accuracy",
    entries="examples",
    final=_FINAL,
    label="",
    rounds=(("test_accuracy", "test accuracy"), ("test_loss", "test loss")),
    buckets=(),
    baselines={},
)


class TaskExperiment:
    """``odp.algorithms.experiment.Experiment`` of one task on labelled examples.

    Raises:
      ConfigurationError: ``held_out`` is given, or an argument of ``synthetic`` is out of range.
      DataError: ``data`` holds no labelled examples of the task's shape.
    """

    def __init__(self, task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> None:
        if held_out is not None:
            raise ConfigurationError("--held-out is for implicit feedback: examples have their own tests")
        definition = task.definition()
        terms = Terms.of(definition)
        self.local_charge = algorithm_for(definition).local_charge
        self.columns: tuple[str, ...] = ("test accuracy", "test loss")
        if terms.spread:
            self.columns += ("update scale", "variance between users")
        range_ = terms.model.classes_range
        classes = None if range_ is None else int(range_[1]) + 1
        self._notes: tuple[str, ...] = ()
        if isinstance(task.data, Examples) and is_table_file(Path(data.name)):
            columns = examples_for(task.data, data.name, data.options, timed=data.cut is not None)
            self._notes = columns.notes
            self.split = self.tested = split_for(task.data, columns, seed=seed, cut=data.cut)
            if data.cut is not None and self.split.only_tested is not None:
                self._notes += (*data.cut.notes(columns, self.split.only_tested),)
        elif data.cut is not None:
            raise ConfigurationError(
                f"--split is for tables: {data.name!r} is none, and its examples have no times; write them into a "
                "table with a column of times (.csv, .tsv, .parquet, .jsonl)"
            )
        elif data.options:
            raise ConfigurationError(
                f"Expected a table for {', '.join(f'--{name}' for name in data.options)}: {data.name!r} is none, and "
                "its arrays have names of their own"
            )
        else:
            self.split = self.tested = examples_of_name(data.name, terms.examples, classes=classes, seed=seed)
        self.population = self.split.train

    def notes(self, *, noise: bool) -> list[str]:
        """How a table was read and cut, and what a report costs a device by itself, where the task has such reports."""
        return [*self._notes, *([] if self.local_charge is None else [self.local_charge.in_words])]

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        """Accuracy, where labels are classes, and loss; with diagnostics, those with their noise."""
        shown = [_figure(metrics["test_accuracy"]), _figure(metrics["test_loss"])]
        if "update_scale" in metrics:
            shown += [interval(metrics[name], metrics[f"{name}_std"]) for name in ("update_scale", "client_variance")]
        return shown

    def headline(self, metrics: Mapping[str, float]) -> str:
        """The accuracy, or the loss where labels are numbers."""
        accuracy = metrics["test_accuracy"]
        if math.isnan(accuracy):
            return f"test loss {metrics['test_loss']:.4f}"
        return f"test accuracy {accuracy:.4f}"

    def final_metrics(self, run: FinishedRun) -> Metrics:
        """Those of the last round, and together under ``test_examples``."""
        figures = {name: run.metrics[f"test_{name}"] for name in ("accuracy", "loss")}
        return {**run.metrics, _FINAL: {name: value for name, value in figures.items() if not math.isnan(value)}}

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """Prints the final figures; there are no baselines."""
        figures = ", ".join(f"{name} {value:.4f}" for name, value in metrics[_FINAL].items())
        about = left_out_in_words(run.left_out) or f"on {len(self.split.test.rows):,} examples"
        out.print(f"test {figures} {about}")
        return {}

    def diagnose(self, run: FinishedRun) -> Diagnostics | None:
        """None."""
        return None


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


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

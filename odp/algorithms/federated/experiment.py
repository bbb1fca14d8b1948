"""What `odp simulate` trains a federated training on, and how it and `odp report` show the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import Diagnostics, FinishedRun, Metrics, NamedData, Quality
from odp.algorithms.federated.diagnostics import interval
from odp.algorithms.federated.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.datasets.example_files import examples_of_name
from odp.datasets.table_files import is_table_file
from odp.errors import ConfigurationError
from odp.models.example_tables import examples_for, split_for
from odp.models.examples import Examples
from odp.models.left_out import left_out_in_words

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

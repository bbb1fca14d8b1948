"""How a simulation measures and shows a trained model: each algorithm in its own figures.

The package of a training has a module ``experiment`` for it: the class ``TaskEvaluation``, which the simulator calls
after every round; the class ``TaskExperiment`` for `odp simulate`; and ``QUALITY`` for `odp report`. Everything here
is computed without noise on data that a researcher owns: no private release.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from odp.algorithms.registry import TABLE, part_of, training_of
from odp.datasets.ratings import Ratings, Split
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from rich.console import Console

    from odp.algorithms.choices import TrainingTask
    from odp.datasets.splitting import TimeCut
    from odp.protocol.catalogues.catalogue import Catalogue

Metrics = Mapping[str, Any]
"""An algorithm's own metrics by name: a float each, NaN where there is nothing to test on, or a ``Ranking``."""


class NamedData:
    """A data set by name or path, whose ratings are loaded when somebody asks for them.

    Attributes:
      name: as ``odp.datasets.load`` takes it.
      options: further arguments of it, such as the columns of a table.
      cut: the moment at which ratings are split, in place of a split at random; or None.
      catalogue: whose numbers the items get; None leaves them as the data set has them.
    """

    def __init__(
        self, name: str, *, cut: TimeCut | None = None, catalogue: Catalogue | None = None, **options: Any
    ) -> None:
        self.name, self.options, self.cut, self._named = name, options, cut, True
        self.catalogue = catalogue

    @classmethod
    def of(cls, ratings: Ratings) -> NamedData:
        """Ratings that are loaded already."""
        named = cls(ratings.name)
        named._named = False
        named.__dict__["ratings"] = ratings
        return named

    @functools.cached_property
    def ratings(self) -> Ratings:
        """Raises DataError, ConfigurationError: as ``odp.datasets.load``."""
        from odp.datasets import load

        return self._numbered(load(self.name, **self.options))

    def numbered_by(self, catalogue: Catalogue | None) -> NamedData:
        """The same data by the item numbers of a catalogue. Raises DataError as ``odp.datasets.numbered_by``."""
        if catalogue is None or self.catalogue is catalogue:
            return self
        named = NamedData(self.name, cut=self.cut, catalogue=catalogue, **self.options)
        named._named = self._named
        named.__dict__["ratings"] = named._numbered(self.ratings)
        return named

    def _numbered(self, ratings: Ratings) -> Ratings:
        from odp.datasets.catalogue import numbered_users

        return numbered_users(ratings, self.catalogue)

    def cut_notes(self, split: Split) -> list[str]:
        """What has to be said of a split in time, a line each; nothing of another."""
        from odp.datasets.splitting import only_tested

        return [] if self.cut is None else self.cut.notes(self.ratings, only_tested(split))

    def split(self, seed: int) -> Split:
        """As ``odp.datasets.load_split``: the published one, or a random one of ``ratings``; or that of ``cut``."""
        from odp.datasets.catalogue import numbered_users
        from odp.datasets.registry import published_split
        from odp.datasets.splitting import random_split

        if self.cut is not None:
            return self.cut.split(self.ratings, seed=seed)
        published = None if self.options or not self._named else published_split(self.name)
        if published is None:
            return random_split(self.ratings, seed=seed)
        return numbered_users(published, self.catalogue)


class TrainingEvaluation(Protocol):
    """How good a model is. The class ``TaskEvaluation`` is made of a definition."""

    @property
    def round_metrics(self) -> tuple[str, ...]:
        """Names of what ``after_round`` gives."""

    def left_out(self, split: Any) -> Mapping[str, LeftOut]:
        """By the part of ``split``, what of it no figure is about, and why; empty where all ratings take part.

        Raises:
          DataError: nothing of a part can be used.
        """

    def after_round(self, model: ModelVersion, split: Any, history: Any) -> dict[str, float]:
        """The metrics of ``round_metrics``; ``history`` is all but the tests.

        ``split`` is a ``Split`` of ratings, or an ``ExamplesSplit``.
        """

    def after_training(self, model: ModelVersion, split: Any, history: Any, *, last: Mapping[str, float]) -> Metrics:
        """The metrics of the final model, of which ``last`` are those after the last round."""


class FinishedRun(Protocol):
    """What an experiment reads of a finished simulation."""

    @property
    def model(self) -> ModelVersion:
        """The final one."""

    @property
    def metrics(self) -> Metrics:
        """As of ``TrainingEvaluation.after_training``."""

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """As of ``TrainingEvaluation.left_out``."""

    @property
    def history(self) -> Ratings:
        """All but the tests."""

    @property
    def item_counts(self) -> Float64Array:
        """Noisy, float64 [m]."""

    @property
    def epsilon(self) -> float:
        """What was spent; infinite without noise."""


class Diagnostics(Protocol):
    """Where a model is good and where it is not, in its algorithm's own figures."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""


class Experiment(Protocol):
    """One task on one data set: what it is trained and tested on, and how a terminal shows its metrics.

    ``TaskExperiment(task, data, seed=, held_out=)`` takes ``NamedData``. With ``held_out``, that many users take no
    part in training and are tested; an algorithm that cannot test them raises ConfigurationError.

    Attributes:
      split: what the simulation takes, a ``Split`` of ratings or an ``ExamplesSplit``.
      population: its users.
      tested: the split whose test part the final metrics are of.
    """

    split: Any
    population: Any
    tested: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of the metrics in the table of rounds."""

    def notes(self, *, noise: bool) -> list[str]:
        """Lines for people, before the run."""

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        """The metrics after a round, one per column."""

    def headline(self, metrics: Mapping[str, float]) -> str:
        """The metric after a round that a progress bar shows, in a few words."""

    def final_metrics(self, run: FinishedRun) -> Metrics:
        """The metrics on the test part of ``tested``."""

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """Prints the ``final_metrics``, with ``baselines`` beside them; returns what `--json` adds, as plain values."""

    def diagnose(self, run: FinishedRun) -> Diagnostics | None:
        """Where the final model is good and where it is not, where the algorithm tells."""


@dataclass(frozen=True)
class Quality:
    """How a report names and draws the metrics of an algorithm.

    Attributes:
      title: of the section on rounds.
      entries: what is held out.
      final: the metric of the final model, by its key in the record of a run.
      label: of that metric, if it is one number; a ranking names its own.
      rounds: (key of a round, label), drawn over the rounds.
      buckets: (key of a bucket, label); the first is drawn.
      baselines: label by key of a baseline.
      ceilings: keys of baselines that see all data in one place, so that no private method need reach them.
      tasks: by key of a baseline, what runs it on devices: the rank of a matrix factorization, and a training; None of
        what a device computes alone.
      not_run: private methods that `odp compare` runs and a single run leaves out, as they take long.
      alone: (key of a bucket, label) of what a user has without a platform; None where buckets have none.
      rival: (key of a bucket, label) of the baseline that groups gain or lose against; None where buckets have none.
    """

    title: str
    entries: str
    final: str
    label: str
    rounds: tuple[tuple[str, str], ...]
    buckets: tuple[tuple[str, str], ...]
    baselines: Mapping[str, str]
    ceilings: tuple[str, ...] = ()
    tasks: Mapping[str, str | None] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()
    alone: tuple[str, str] | None = None
    rival: tuple[str, str] | None = None


def evaluation_of(definition: common_pb2.TaskDefinition) -> TrainingEvaluation:
    """The evaluation of a model that a task trains."""
    evaluation: TrainingEvaluation = part_of(str(training_of(definition)), "experiment").TaskEvaluation(definition)
    return evaluation


def experiment_of(task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> Experiment:
    """The experiment of a task on a data set. Raises ConfigurationError, DataError."""
    module = part_of(str(training_of(task.definition())), "experiment")
    experiment: Experiment = module.TaskExperiment(task, data, seed=seed, held_out=held_out)
    return experiment


def qualities() -> list[Quality]:
    """How each training's metrics are reported, in the order of the table."""
    return [part_of(name, "experiment").QUALITY for name, entry in TABLE.items() if entry.training]

"""`odp simulate` and `odp report` on ratings: RMSE round by round, beside baselines on the same split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import FinishedRun, Metrics, NamedData, Quality
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from odp.algorithms.dpam.diagnostics import Diagnostics
    from odp.evaluation.reliability import Reliability

QUALITY = Quality(
    title="Error",
    entries="ratings",
    final="test_rmse",
    label="RMSE",
    rounds=(("test_rmse", "test RMSE"), ("validation_rmse", "validation RMSE")),
    buckets=(("rmse", "test RMSE"),),
    baselines={
        "global_mean": "global mean",
        "user_mean": "user mean, on the device",
        "dp_item_mean": "DP item mean, same ε and δ",
        "dp_item_user_bias": "DP item mean + user bias, same ε and δ",
        "als_ceiling": "ALS, all data in one place, not private",
    },
    ceilings=("als_ceiling",),
    alone=("user_mean_rmse", "user mean, on the device"),
    rival=("baseline_rmse", "DP item mean + user bias"),
)


class TaskExperiment:
    """``odp.algorithms.experiment.Experiment`` on a split of ratings."""

    columns: ClassVar[tuple[str, ...]] = ("validation RMSE", "test RMSE")

    def __init__(self, task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> None:
        if held_out is not None:
            raise ConfigurationError("--held-out is for implicit feedback: ratings of known users are predicted")
        self._task, self._seed = task, seed
        self.population = data.ratings
        self.split = self.tested = data.split(seed)
        self._notes = data.cut_notes(self.split)

    def notes(self, *, noise: bool) -> list[str]:
        """What a cut in time leaves to the tests, and whether noise will drown the signal."""
        from odp.algorithms.dpam.signal import weak_signal

        if not noise or self.population.n_items != self._task.factorization.items:
            return self._notes
        weak = weak_signal(self._task, self.split.train)
        return self._notes if weak is None else [*self._notes, str(weak)]

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [f"{metrics[name]:.4f}" for name in ("validation_rmse", "test_rmse")]

    def headline(self, metrics: Mapping[str, float]) -> str:
        return f"test RMSE {metrics['test_rmse']:.4f}"

    def final_metrics(self, run: FinishedRun) -> Metrics:
        return run.metrics

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """The test error beside the baselines, and what the ranges of predictions cover."""
        from odp.evaluation.baselines import baselines as compute
        from odp.evaluation.comparison import comparison_table

        intervals = metrics["test_intervals"]
        if intervals.ratings:
            out.print(intervals_line(intervals))
        if not baselines:
            return {}
        with out.status("baselines"):
            baseline_errors = compute(self._task, self.split, seed=self._seed)
        out.print(comparison_table(baseline_errors, metrics["test_rmse"], run.epsilon, self._task.privacy.delta))
        return {"baselines": asdict(baseline_errors)}

    def diagnose(self, run: FinishedRun) -> Diagnostics:
        """Errors by popularity and activity, and shares of clipped data."""
        from odp.algorithms.dpam.diagnostics import diagnose

        return diagnose(self._task, self.split, run.model, seed=self._seed, intervals=run.metrics["test_intervals"])


def intervals_line(reliability: Reliability) -> str:
    """What the ranges at the level that is shown cover, and how wide they are."""
    shown = reliability.shown
    return (
        f"ranges at {100 * shown.level:g} %: {100 * shown.covered:.1f} % of {reliability.ratings:,} test ratings of "
        f"{reliability.users:,} users lie within; mean width {shown.width:.3f}"
    )

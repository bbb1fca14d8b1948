"""`odp simulate` and `odp report` on implicit feedback: Recall@20 and NDCG@20 beside DP popularity and iALS.

The split is the one that the data set is published with, or random 80/10/10; with ``held_out``, that many random users
take no part in training and are tested on a fifth of their items (strong generalisation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import FinishedRun, Metrics, NamedData, Quality
from odp.algorithms.implicit.evaluation import noisy_counts, ranking_baselines, strong_generalisation, training_split
from odp.datasets.ratings import Split
from odp.evaluation.ranking import Ranking, strong_split

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from odp.algorithms.implicit.diagnostics import RankingDiagnostics

QUALITY = Quality(
    title="Recall and NDCG",
    entries="items",
    final="test_ranking",
    label="",
    rounds=(("validation_recall", "validation Recall@20"), ("validation_ndcg", "validation NDCG@20")),
    buckets=(("recall", "test Recall@20"), ("ndcg", "test NDCG@20")),
    baselines={
        "dp_popularity": "DP popularity, same ε and δ",
        "ials_ceiling": "iALS, all data in one place, not private",
    },
    ceilings=("ials_ceiling",),
    rival=("baseline_recall", "DP popularity"),
)


class TaskExperiment:
    """``odp.algorithms.experiment.Experiment`` on the items that users have not shown."""

    columns: ClassVar[tuple[str, ...]] = ("validation Recall@20", "NDCG@20")

    def __init__(self, task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> None:
        self._task, self._seed, self._held_out = task, seed, held_out
        self._strong = None if held_out is None else strong_split(data.ratings, held_out=held_out, seed=seed)
        if self._strong is None:
            self.split = self.tested = data.split(seed)
        else:
            self.split = training_split(self._strong)
            self.tested = Split(self.split.train, self.split.validation, self._strong.targets)
        self.population = self.split.train
        self._notes = data.cut_notes(self.split)

    def notes(self, *, noise: bool) -> list[str]:
        """What a cut in time leaves to the tests, or who is tested, where it is not those who took part."""
        if self._strong is None:
            return self._notes
        return [f"tested on {self._held_out:,} users who took no part; Recall@k divides by min(k, held-out items)"]

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [f"{metrics[name]:.4f}" for name in ("validation_recall", "validation_ndcg")]

    def headline(self, metrics: Mapping[str, float]) -> str:
        return f"validation Recall@20 {metrics['validation_recall']:.4f}"

    def final_metrics(self, run: FinishedRun) -> Metrics:
        """Those of the run, or of the users who took no part."""
        if self._strong is None:
            return run.metrics
        return {"test_ranking": strong_generalisation(self._task, self._strong, run.model)}

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """The ranking, and but for users who took no part, the baselines; nothing without held-out items."""
        ranking: Ranking | None = metrics.get("test_ranking")
        if ranking is None:
            return {}
        summary: dict[str, Any] = {}
        budget = f"ε = {run.epsilon:.4g}, δ = {self._task.privacy.delta:g}"
        if self._strong is not None:
            rows = [("this model (DPAM), unseen users", ranking, budget)]
            summary["strong_ranking"] = ranking.to_json()
        else:
            rows = [("this model (DPAM)", ranking, budget)]
            if baselines:
                with out.status("baselines"):
                    rankings = ranking_baselines(self._task, self.split, seed=self._seed)
                rows.insert(0, ("DP popularity", rankings.dp_popularity, "same ε and δ"))
                rows.append(("iALS, all data in one place", rankings.ials_ceiling, "ceiling, not private"))
                summary["baselines"] = rankings.to_json()
        out.print(_table(rows))
        return summary

    def diagnose(self, run: FinishedRun) -> RankingDiagnostics:
        from odp.algorithms.implicit.diagnostics import diagnose_ranking

        history = run.history if self._strong is None else self._strong.history
        popular = noisy_counts(self._task, self.split.train, seed=self._seed)
        return diagnose_ranking(
            self._task, run.model, history, self.tested.test, item_counts=run.item_counts, baseline_counts=popular
        )


def _table(rows: list[tuple[str, Ranking, str]]) -> Table:
    from rich.table import Table

    cutoffs = list(rows[0][1].recall)
    heads = [f"{name}@{cutoff}" for name in ("Recall", "NDCG") for cutoff in cutoffs]
    table = Table("method", *heads, "privacy", title=f"higher is better; {rows[0][1].users:,} users, whole catalogue")
    for method, ranking, privacy in rows:
        values = [*ranking.recall.values(), *ranking.ndcg.values()]
        table.add_row(method, *(f"{value:.4f}" for value in values), privacy)
    return table

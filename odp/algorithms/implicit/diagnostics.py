"""Where a model of implicit feedback ranks well and where it does not, on the researcher's own evaluation data.

Buckets of items come from the noisy counts, so the same buckets could be published. What is found in them, and the
buckets of users, read held-out items without noise: diagnostics of a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odp.algorithms.choices import TrainingTask
from odp.algorithms.implicit.population import ImplicitPopulation, item_rows
from odp.datasets.ratings import Ratings
from odp.evaluation.exposure import MOST_USERS, Exposure, exposure
from odp.evaluation.fifths import fifths
from odp.evaluation.ranking import evaluate, factor_scores, found_targets, item_scores
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion

_CUTOFF = 20


@dataclass(frozen=True)
class RankingBucket:
    """Items (or users) with a count from ``low`` to ``high``.

    Attributes:
      members: how many there are.
      targets: held-out items among them (or of them).
      recall: of items, the share of these targets that their users were offered among the first 20 places; of users,
        mean Recall@20. None without targets.
      ndcg: of users, mean NDCG@20; None for items, which have none of their own.
      baseline_recall: as ``recall``, by DP popularity at the same budget.
    """

    low: float
    high: float
    members: int
    targets: int
    recall: float | None
    ndcg: float | None
    baseline_recall: float | None


@dataclass(frozen=True)
class RankingDiagnostics:
    """Recall by popularity of the item (noisy counts) and by activity of the user (history size), and what lists of
    recommendations show.
    """

    popularity: tuple[RankingBucket, ...]
    activity: tuple[RankingBucket, ...]
    exposure: Exposure

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def diagnose_ranking(
    task: TrainingTask,
    model: ModelVersion,
    history: Ratings,
    targets: Ratings,
    *,
    item_counts: Float64Array,
    baseline_counts: Float64Array,
) -> RankingDiagnostics:
    """Diagnostics of a model of implicit feedback.

    Args:
      task, model: what was trained.
      history: what is known of each user; its row follows from it, and it is masked.
      targets: held-out items of the same users.
      item_counts: noisy counts float64 [m].
      baseline_counts: those that DP popularity ranks by, float64 [m].

    Raises:
      DataError: sizes do not fit the task.
    """
    scores = factor_scores(ImplicitPopulation(task.definition()).user_rows(model, history), item_rows(model))
    popular = item_scores(baseline_counts)
    cutoff = min(_CUTOFF, targets.n_items)
    model_hits = found_targets(scores, history, targets, cutoff=cutoff)
    found_by_baseline = found_targets(popular, history, targets, cutoff=cutoff)

    def by_item() -> Iterator[RankingBucket]:
        for fifth in fifths(item_counts):
            here = fifth[targets.items]
            shares = (float(hits[here].mean()) if here.any() else None for hits in (model_hits, found_by_baseline))
            recall, other = shares
            yield _bucket(item_counts[fifth], int(here.sum()), recall, None, other)

    def by_user() -> Iterator[RankingBucket]:
        sizes = history.counts().astype(np.float64)
        for fifth in fifths(sizes):
            users = np.flatnonzero(fifth)
            wanted = targets.select_users(users)
            if not wanted.n_ratings:
                yield _bucket(sizes[fifth], 0, None, None, None)
                continue
            users_history = history.select_users(users)
            part = evaluate(
                lambda block, users=users: scores(users[block]),  # type: ignore[misc]
                users_history,
                wanted,
                cutoffs=(cutoff,),
            )
            other = evaluate(popular, users_history, wanted, cutoffs=(cutoff,)).recall[cutoff]
            yield _bucket(sizes[fifth], wanted.n_ratings, part.recall[cutoff], part.ndcg[cutoff], other)

    some = np.unique(np.linspace(0, history.n_users - 1, min(MOST_USERS, history.n_users)).astype(np.int64))
    return RankingDiagnostics(
        popularity=tuple(by_item()),
        activity=tuple(by_user()),
        exposure=exposure(
            lambda block: scores(some[block]),
            popular,
            history.select_users(some),
            targets.select_users(some),
            popularity=item_counts,
            baseline_name="dp_popularity",
            cutoff=cutoff,
        ),
    )


def _bucket(
    sizes: Float64Array, targets: int, recall: float | None, ndcg: float | None, other: float | None
) -> RankingBucket:
    return RankingBucket(float(sizes.min()), float(sizes.max()), len(sizes), targets, recall, ndcg, other)

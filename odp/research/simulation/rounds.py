"""One round of a simulation: its figures, as a run shows them and as a checkpoint keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odp.models.left_out import LeftOut, columns_of_run

#: Every round of a saved run has these keys, in this order: null where its algorithm has no such metric.
_COLUMNS = (
    "round", "contributions", "epsilon", "validation_rmse", "test_rmse", "seconds", "validation_recall",
    "validation_ndcg",
)  # fmt: skip


@dataclass(frozen=True)
class RoundResult:
    """One simulated round.

    Attributes:
      epsilon: Spent by the task so far.
      metrics: Of the model that the round produced, as its algorithm names them: ``odp.DPAM`` has ``validation_rmse``
        and ``test_rmse``; ``odp.ImplicitDPAM`` has ``validation_recall`` and ``validation_ndcg``, at 20 and over at
        most 4,096 users. NaN where there is nothing to test on.
      left_out: As of ``RunResult``.
    """

    round: int
    contributions: int
    epsilon: float
    metrics: Mapping[str, float]
    seconds: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, NaN and infinities among them; of examples also how many were left out, and why."""
        row = {"round": self.round, "contributions": self.contributions, "epsilon": self.epsilon}
        row |= {"seconds": self.seconds, **self.metrics, **columns_of_run(self.left_out)}
        return dict.fromkeys(_COLUMNS, math.nan) | row


def saved_round(result: RoundResult) -> dict[str, Any]:
    """JSON has no infinity and no NaN."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in result.to_json().items()
    }


def restored_round(record: dict[str, Any], metrics: tuple[str, ...], left_out: Mapping[str, LeftOut]) -> RoundResult:
    return RoundResult(
        round=record["round"],
        contributions=record["contributions"],
        epsilon=float(record["epsilon"]),
        metrics={name: float(record[name]) for name in metrics},
        seconds=record["seconds"],
        left_out=left_out,
    )

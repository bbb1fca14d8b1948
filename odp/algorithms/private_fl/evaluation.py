"""How good a model is that private federated learning trained."""

from __future__ import annotations

from odp.algorithms.federated import evaluation


class TaskEvaluation(evaluation.TaskEvaluation):
    """As of every federated training."""

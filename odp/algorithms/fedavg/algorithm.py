"""DP-FedAvg as the platform sees it."""

from __future__ import annotations

from odp.algorithms.federated.algorithm import FederatedAlgorithm


class TaskAlgorithm(FederatedAlgorithm):
    """``odp.algorithms.seam.Algorithm`` of tasks that train by DP-FedAvg."""

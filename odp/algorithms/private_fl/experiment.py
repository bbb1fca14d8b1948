"""How `odp report` names the figures of private federated learning, and what `odp simulate` runs it on."""

from __future__ import annotations

from odp.algorithms.federated import experiment

QUALITY = experiment.QUALITY


class TaskExperiment(experiment.TaskExperiment):
    """As of every federated training."""

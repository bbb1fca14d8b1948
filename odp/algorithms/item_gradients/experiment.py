"""Measured and shown as DPAM, whose model it is."""

from odp.algorithms.dpam.experiment import (
    QUALITY as QUALITY,
    TaskEvaluation as TaskEvaluation,
    TaskExperiment as TaskExperiment,
)

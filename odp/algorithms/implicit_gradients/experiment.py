"""Measured and shown as DPAM on implicit feedback."""

from odp.algorithms.implicit.experiment import (
    QUALITY as QUALITY,
    TaskEvaluation as TaskEvaluation,
    TaskExperiment as TaskExperiment,
)

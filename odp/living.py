"""Models that are trained again and again under one budget, and what a device spends on them."""

from __future__ import annotations

from odp.research.simulation.retraining import Retraining, retrain
from odp.trainings.device_limits import DeviceLimits
from odp.trainings.living_model import LivingModel
from odp.trainings.schedule import Schedule

__all__ = [
    "DeviceLimits",
    "LivingModel",
    "Retraining",
    "Schedule",
    "retrain",
]

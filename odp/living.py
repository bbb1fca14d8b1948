"""Models that are trained again and again under one budget, and what a device spends on them."""

from __future__ import annotations

from odp.living_model import LivingModel
from odp.schedule import Schedule
from odp.schedule_limits import DeviceLimits
from odp.simulation.retraining import Retraining, retrain

__all__ = [
    "DeviceLimits",
    "LivingModel",
    "Retraining",
    "Schedule",
    "retrain",
]

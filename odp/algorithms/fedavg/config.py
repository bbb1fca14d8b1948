"""What a developer chooses for DP-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from odp import _validate
from odp.algorithms.federated.config import EpochTraining


@_validate.strict_keywords
@dataclass(frozen=True)
class DPFedAvg(EpochTraining):
    """Federated averaging: devices train for some epochs, and send the clipped difference of the parameters.

    Attributes:
      rate: step size on the devices.
      epochs: passes of a device over its examples in a round.
      batch: examples per step.
      most_examples: that a device takes in an epoch, drawn of its newest four times as many.
      proximal: weight of FedProx; 0 for none.
      reconstruction: how devices find their local layers (``odp.Reconstruction``); None without any.

    Raises:
      ConfigurationError: a number is out of range.

    Source: McMahan et al. 2018, "Learning differentially private recurrent language models", with fixed denominators.
    """

    field: ClassVar[str] = "fedavg"

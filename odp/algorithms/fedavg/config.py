"""What a developer chooses for DP-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from odp import _validate
from odp.algorithms.federated.config import FederatedTraining
from odp.models.local_training import LocalTraining, Reconstruction


@_validate.strict_keywords
@dataclass(frozen=True)
class DPFedAvg(FederatedTraining):
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

    rate: float = 0.1
    epochs: int = 1
    batch: int = 10
    most_examples: int = 1000
    proximal: float = 0.0
    reconstruction: Reconstruction | None = None

    def local(self) -> LocalTraining:
        """The work of a device."""
        return LocalTraining(
            rate=self.rate, epochs=self.epochs, batch=self.batch, most_examples=self.most_examples,
            proximal=self.proximal, reconstruction=self.reconstruction,
        )  # fmt: skip

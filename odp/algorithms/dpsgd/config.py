"""What a developer chooses for DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from odp import _validate
from odp.algorithms.federated.config import FederatedTraining
from odp.models.local_training import MOST_BATCH, LocalTraining


@_validate.strict_keywords
@dataclass(frozen=True)
class DPSGD(FederatedTraining):
    """Stochastic gradient descent over users: a device sends the clipped mean gradient of its examples, downhill.

    It is federated averaging with one step on one batch. ``server_rate`` is the step size.

    Attributes:
      most_examples: that a device's gradient is the mean over; where it has more, each round draws that many anew, of
        its newest four times as many.

    Raises:
      ConfigurationError: a number is out of range.

    Source: Abadi et al. 2016, "Deep learning with differential privacy", with users in place of examples; McMahan et
    al. 2018, "FedSGD".
    """

    field: ClassVar[str] = "dpsgd"

    most_examples: int = 1000

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_BATCH, most_examples=self.most_examples)
        super().__post_init__()

    def local(self) -> LocalTraining:
        """One step of size 1 on one batch: the difference is the gradient."""
        return LocalTraining(rate=1.0, epochs=1, batch=self.most_examples, most_examples=self.most_examples)

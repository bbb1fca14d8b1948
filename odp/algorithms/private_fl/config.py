"""What a developer chooses for private federated learning."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.federated.config import EpochTraining
from odp.errors import ConfigurationError
from odp.models.trained import model_of

if TYPE_CHECKING:
    from odp.v1 import common_pb2


@_validate.strict_keywords
@dataclass(frozen=True)
class PrivateFL(EpochTraining):
    """Federated averaging with two layers of privacy: one that needs no trust, and one for what is released.

    A device trains as with ``odp.DPFedAvg``. It then sends a random direction times a random length in place of its
    update: its report is (``direction_epsilon`` + ``magnitude_epsilon``)-locally private by itself. The enclave refuses
    reports longer than ``clip``, and adds the noise of the task's privacy to their sum. So the local guarantee holds
    whoever reads the reports, and the central one is that of ``odp.DPFedAvg``.

    Attributes:
      rate, epochs, batch, most_examples, proximal, reconstruction: as of ``odp.DPFedAvg``.
      direction_epsilon: of the direction of an update. The error of a report is about its number of parameters over
        this: small models learn.
      magnitude_epsilon: of the norm of an update, at most 32.
      largest_norm: longer updates are cut to this norm, in units of the parameters.
      clip: L2 bound of a report; longer ones are shortened, which biases large updates. Infinite is the least that
        shortens none.
      participations: rounds that one device takes part in, at most. Each costs both epsilons again.

    Raises:
      ConfigurationError: a number is out of range; an adaptive clip norm or diagnostics, whose numbers would leave the
        device without randomizers of their own.

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection Against Reconstruction and Its Applications in
    Private Federated Learning", section 3.1.
    """

    field: ClassVar[str] = "private_fl"

    direction_epsilon: float = 16.0
    magnitude_epsilon: float = 8.0
    largest_norm: float = 0.5
    clip: float = math.inf
    participations: int = 1

    def __post_init__(self) -> None:
        clip, bounded = self.clip, self.clip < math.inf
        if not bounded:
            # The shared checks are of a bound that is known; this one follows from the model.
            object.__setattr__(self, "clip", 1.0)
        super().__post_init__()
        object.__setattr__(self, "clip", clip)
        if not clip > 0.0:
            raise ConfigurationError(f"Expected clip={clip!r} to be > 0")
        if self.clip_quantile is not None or self.diagnostics:
            raise ConfigurationError(
                "Expected no clip_quantile and no diagnostics with PrivateFL: a device sends nothing about its update "
                "but its randomized report; odp.DPFedAvg has both"
            )
        if self.cohort_schedule is not None:
            raise ConfigurationError(
                f"Expected no cohort_schedule={self.cohort_schedule!r} with PrivateFL: its rounds are "
                "alike; odp.DPFedAvg has it"
            )
        _validate.positive(
            direction_epsilon=self.direction_epsilon, magnitude_epsilon=self.magnitude_epsilon,
            largest_norm=self.largest_norm,
        )  # fmt: skip
        _validate.integer(low=1, high=self.rounds, participations=self.participations)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """As ``FederatedTraining.write``, with the numbers of the randomizers."""
        from odp.algorithms.private_fl.report import Reports, room_for_rounding

        if definition.cohort.HasField("enclave_poisson"):
            raise ConfigurationError(
                "Expected no sampling with odp.PrivateFL: a device pays for its report, drawn or not"
            )
        reports = Reports.chosen(
            size=model_of(definition).size, direction_epsilon=self.direction_epsilon,
            magnitude_epsilon=self.magnitude_epsilon, largest_norm=self.largest_norm, most=self.participations,
        )  # fmt: skip
        definition.private_fl.report.CopyFrom(reports.to_proto())
        bounded = dataclasses.replace(self, clip=min(self.clip, room_for_rounding(reports.longest)))
        super(PrivateFL, bounded).write(definition)

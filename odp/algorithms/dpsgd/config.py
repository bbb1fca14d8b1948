"""What a developer chooses for DP-SGD."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.choices import TrainingData
from odp.algorithms.dpam.config import RatingsData
from odp.algorithms.federated.config import FederatedTraining
from odp.algorithms.implicit.config import ImplicitData
from odp.algorithms.registry import part_of
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.local_training import MOST_BATCH, LocalTraining
from odp.models.matrix_factorization import MatrixFactorization
from odp.models.trained import trained_models

if TYPE_CHECKING:
    from odp.v1 import common_pb2

# What there is to choose where the model is a matrix factorization, and on implicit data besides.
_OF_ITEMS = frozenset({"rounds", "clip", "server_rate"})
_OF_IMPLICIT = "unobserved_weight"


@_validate.strict_keywords
@dataclass(frozen=True)
class DPSGD(FederatedTraining):
    """Stochastic gradient descent over users: a device sends the clipped mean gradient of its examples, downhill.

    It is federated averaging with one step on one batch. ``server_rate`` is the step size.

    With an ``odp.MatrixFactorization`` and ``odp.RatingsData``, devices solve their own bias and row, and send the
    clipped gradient of the item table (docs/dpam.md, "DP-SGD on the item table"). The first of the ``rounds`` releases
    how much attention every item has, by which the steps of all others are divided; ``clip`` is in standard deviations
    of a rating; step t = 0, 1, .. goes ``server_rate / (server_rate + t)`` of the way, and the rate is 1 or more.
    ``odp.ImplicitData`` also have an ``unobserved_weight``. Nothing else is chosen.

    Attributes:
      most_examples: that a device's gradient is the mean over; where it has more, each round draws that many anew, of
        its newest four times as many.
      unobserved_weight: of implicit data alone: weight of every pair of a user and an item, against 1 more for those
        that happened.

    Raises:
      ConfigurationError: a number is out of range.

    Source: Abadi et al. 2016, "Deep learning with differential privacy", with users in place of examples; McMahan et
    al. 2018, "FedSGD"; local rows: Singhal et al. 2021 (arXiv 2102.03448).
    """

    field: ClassVar[str] = "dpsgd"
    models: ClassVar[tuple[type, ...]] = (*trained_models(), MatrixFactorization)
    data: ClassVar[tuple[type[TrainingData], ...]] = (Examples, RatingsData, ImplicitData)

    most_examples: int = 1000
    unobserved_weight: float = 0.02

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_BATCH, most_examples=self.most_examples)
        super().__post_init__()

    def local(self) -> LocalTraining:
        """One step of size 1 on one batch: the difference is the gradient."""
        return LocalTraining(rate=1.0, epochs=1, batch=self.most_examples, most_examples=self.most_examples)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """As of every training. Raises ConfigurationError where model and data do not go together, or as that."""
        of_items = definition.HasField("model")
        if of_items == (definition.WhichOneof("local_data") == "examples"):
            raise ConfigurationError(
                "Expected odp.DPSGD of an odp.MatrixFactorization to go with odp.RatingsData or odp.ImplicitData, and "
                "of other models with odp.Examples"
            )
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        used = fields.keys() - {_OF_IMPLICIT}
        if of_items:
            used = {*_OF_ITEMS, *([_OF_IMPLICIT] if definition.WhichOneof("local_data") == "implicit" else [])}
        if definition.implicit.confidence:
            raise ConfigurationError(
                f"Expected no confidence={definition.implicit.confidence!r} with odp.DPSGD, whose items count once: "
                "odp.ImplicitDPAM has it"
            )
        for name in fields.keys() - used:
            if (chosen := getattr(self, name)) != fields[name]:
                raise ConfigurationError(f"Expected no {name}={chosen!r} with such a model and data: nothing uses it")
        if not of_items:
            super().write(definition)
            return
        _validate.integer(low=2, high=self.rounds, rounds=self.rounds)
        _validate.within(low=1.0, high=1e6, server_rate=self.server_rate)
        part_of("item_gradients", "config").write(
            definition,
            steps=self.rounds - 1,
            rate=self.server_rate,
            clip=self.clip,
            unobserved_weight=self.unobserved_weight,
        )

"""Two encoders whose vectors meet in a score, as federated training sees them: a network whose last input is an item.

Devices draw items that the person has not, where the task asks for them (``odp.models.rated_items``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.models.features import Category, Tensor
from odp.models.litert.program import Program
from odp.models.litert.trained import TrainedNetwork
from odp.models.litert.trainer import ProgramTrainer
from odp.models.local_training import LocalTraining
from odp.models.rated_items import with_negatives
from odp.numerics.arrays import Float32Array
from odp.v1 import federated_pb2

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.models.examples import ExamplesTerms

MOST_ITEMS, MOST_NEGATIVES = 2**24, 64


class TrainedTowers(TrainedNetwork):
    """``odp.models.trained.TrainedModel`` of one program whose last input is the number of an item.

    Args:
      program: what devices run.
      start_sha256: of the first parameters.
      items: how many there are.
      negatives: examples of the class 0 that a device draws for each of its own of the class 1.
      operations: as of ``TrainedNetwork``.
      trainer: runs the program where this is a device.

    Raises:
      ConfigurationError: a number is out of range, the program's last input is no number, or there are negatives and
        its target is not one of two classes.
    """

    def __init__(
        self,
        program: Program,
        start_sha256: bytes,
        *,
        items: int,
        negatives: int = 0,
        operations: int = 0,
        trainer: ProgramTrainer | None = None,
    ) -> None:
        super().__init__(program, start_sha256, operations=operations, trainer=trainer)
        _validate.integer(low=2, high=MOST_ITEMS, items=items)
        _validate.integer(low=0, high=MOST_NEGATIVES, negatives=negatives)
        if len(program.features) < 2 or program.features[-1].size != 1:
            raise ConfigurationError("Expected towers with inputs of the user and one number, an item, as the last")
        if negatives and program.classes != 2:
            raise ConfigurationError(f"Expected negatives={negatives} with a loss of two classes")
        self.items, self.negatives = items, negatives

    @classmethod
    def of(cls, message: federated_pb2.NetworkModel | federated_pb2.TwoTowerModel) -> Self:
        """The model of a definition.

        Raises:
          ConfigurationError: it is malformed or too large, or a hash is not that of the program.
        """
        if not isinstance(message, federated_pb2.TwoTowerModel):
            raise ConfigurationError("Expected an odp.v1.TwoTowerModel")
        network = TrainedNetwork.of(message.network)
        if network.program.has_local:
            raise ConfigurationError("Expected towers without local layers; an odp.KerasModel has them")
        return cls(
            network.program, message.network.start_sha256, items=message.items, negatives=message.negatives,
            operations=message.network.operations,
        )  # fmt: skip

    def reading(self, examples: ExamplesTerms) -> Self:
        """As ``TrainedNetwork.reading``. Raises ConfigurationError also where the last feature is no item."""
        super().reading(examples)
        name, item = list(examples.features.items())[-1]
        match item:
            case Tensor():
                fits = item.size == 1 and 0 <= item.low < item.high <= self.items - 1 and item.scale == 1.0
            case Category():
                fits = item.count <= self.items
            case _:
                fits = False
        if not fits:
            raise ConfigurationError(
                f"Expected the last feature, {name!r}, to be the item: odp.Tensor((1,), 0, {self.items - 1}) or "
                f"odp.Category({self.items})"
            )
        return self

    def on_device(self, trainer: ProgramTrainer | None, training: LocalTraining) -> TrainedTowers:
        network = super().on_device(trainer, training)
        return TrainedTowers(
            network.program, self._start_sha256, items=self.items, negatives=self.negatives,
            operations=self._operations, trainer=trainer,
        )  # fmt: skip

    @property
    def examples_per_row(self) -> int:
        """As of ``TrainedNetwork``, the negatives included."""
        return 1 + self.negatives

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """As ``TrainedNetwork.usable``, of examples whose item is one of the model's, bool [n]."""
        item = features[:, -1].astype(np.float64)
        with np.errstate(invalid="ignore"):
            in_catalogue = (item >= 0) & (item < self.items) & (item == np.floor(item))
        return np.asarray(super().usable(features, targets) & in_catalogue, dtype=np.bool_)

    def difference(
        self,
        start: Float32Array,
        features: Float32Array,
        targets: Float32Array,
        training: LocalTraining,
        *,
        seed: int,
        round: int,
    ) -> Float32Array:
        """As ``TrainedNetwork.difference``, with the negatives that the seed draws."""
        features, targets = self._with_negatives(features, targets, seed=seed, round=round)
        return super().difference(start, features, targets, training, seed=seed, round=round)

    def differences(
        self,
        start: Float32Array,
        examples: UsersExamples,
        training: LocalTraining,
        *,
        seeds: npt.NDArray[np.uint64],
        round: int,
        users: slice,
        out: Float32Array,
    ) -> Float32Array:
        """``difference`` of consecutive users, computed in this process: for a program of one's own."""
        if self.negatives:
            owned = [
                self._with_negatives(*examples.of(users.start + place), seed=seed, round=round)
                for place, seed in enumerate(seeds.tolist())
            ]
            offsets = np.concatenate(([0], np.cumsum([len(targets) for _, targets in owned], dtype=np.int64)))
            features, targets = (np.concatenate(parts) for parts in zip(*owned, strict=True))
            from odp.datasets.examples import UsersExamples

            examples = UsersExamples(features, targets, np.arange(offsets[-1]), offsets)
            users = slice(0, len(seeds))
        return super().differences(start, examples, training, seeds=seeds, round=round, users=users, out=out)

    @property
    def ranked_items(self) -> int:
        """All of them, where a score says whether a person chooses the item; a rating ranks none."""
        return self.items if self.program.classes == 2 and self.program.prediction.size == 1 else 0

    def _with_negatives(
        self, features: Float32Array, targets: Float32Array, *, seed: int, round: int
    ) -> tuple[Float32Array, Float32Array]:
        if not self.negatives:
            return features, targets
        return with_negatives(
            features, targets, items=self.items, per_example=self.negatives, seed=seed, round=round
        )  # fmt: skip

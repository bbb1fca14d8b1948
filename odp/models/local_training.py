"""How a device trains a model on its own examples: epochs of stochastic gradient descent in batches, in a drawn order.

The order is a function of the user's seed, the round and the epoch alone: device and simulator draw the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from odp import _validate
from odp.crypto.keyed_hash import round_hashes
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array

if TYPE_CHECKING:
    from odp.v1 import federated_pb2

#: The draws of epoch e have the numbers from (e + 1) << EPOCH_SHIFT on: places of a vector, which the same seed and
#: round round up or down (``odp.algorithms.dense.grid``), are smaller.
EPOCH_SHIFT = 40

MOST_EPOCHS, MOST_BATCH, MOST_EXAMPLES = 1000, 2**16, 2**20
#: Stored rows that a device reads, the newest, for each of ``most_examples``: epochs draw from them.
ROWS_PER_EXAMPLE = 4
# Orders after those of the epochs: of the halves of a split, and of the epochs of a reconstruction.
_SPLIT, _RECONSTRUCTION = MOST_EPOCHS, MOST_EPOCHS + 1


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """How a device finds the parameters of local layers: it trains them anew in every round, and keeps nothing.

    A device begins with their public start, and moves them alone. Then they stay, while it trains the shared layers.

    Attributes:
      rate: step size.
      epochs: passes over the examples.
      split: whether local and shared layers train on different examples: a drawn half of them each, the smaller one for
        the local layers. Without, both train on all of them, and local layers fit better than they would on others.

    Raises:
      ConfigurationError: a number is out of range.

    Source: Singhal et al. 2021, "Federated reconstruction: partially local federated learning", algorithm 1.
    """

    rate: float
    epochs: int = 1
    split: bool = True

    def __post_init__(self) -> None:
        _validate.positive(rate=self.rate)
        _validate.integer(low=1, high=MOST_EPOCHS, epochs=self.epochs)


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The work of one device in one round.

    Attributes:
      rate: step size of gradient descent on a batch's mean loss.
      epochs: passes over the device's examples.
      batch: examples per step; the last batch of an epoch holds what is left.
      most_examples: of an epoch, at most; where a device has more, each epoch draws that many anew of its newest, of
        which a device reads ``ROWS_PER_EXAMPLE`` times as many.
      proximal: μ of FedProx: a batch's loss gains μ/2 |w - w0|², w0 what the device began with; 0 for none.
      shuffle: whether each epoch draws its order; without, it takes the first ``most_examples`` as they lie.
      reconstruction: of the local layers of a network; None without any.

    Raises:
      ConfigurationError: a number is out of range.

    Source: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", algorithm
    1; Li et al. 2020, "Federated optimization in heterogeneous networks", for μ.
    """

    rate: float
    epochs: int = 1
    batch: int = 10
    most_examples: int = 10_000
    proximal: float = 0.0
    shuffle: bool = True
    reconstruction: Reconstruction | None = None

    def __post_init__(self) -> None:
        _validate.positive(rate=self.rate)
        _validate.integer(low=1, high=MOST_EPOCHS, epochs=self.epochs)
        _validate.integer(low=1, high=MOST_BATCH, batch=self.batch)
        _validate.integer(low=1, high=MOST_EXAMPLES, most_examples=self.most_examples)
        _validate.within(low=0.0, high=1e6, proximal=self.proximal)
        if not isinstance(self.reconstruction, Reconstruction | None):
            raise ConfigurationError(f"Expected reconstruction={self.reconstruction!r} to be an odp.Reconstruction")

    @classmethod
    def of(cls, message: federated_pb2.LocalTrainingTerms) -> Self:
        """The work that a definition states. Raises ConfigurationError where a number is out of range."""
        local = message.reconstruction
        return cls(
            rate=message.rate, epochs=message.epochs, batch=message.batch, most_examples=message.most_examples,
            proximal=message.proximal,
            reconstruction=Reconstruction(rate=local.rate, epochs=local.epochs, split=local.split)
            if message.HasField("reconstruction")
            else None,
        )  # fmt: skip

    def to_proto(self) -> federated_pb2.LocalTrainingTerms:
        """Its numbers in a task definition, where every device shuffles."""
        from odp.v1 import federated_pb2

        return federated_pb2.LocalTrainingTerms(
            rate=self.rate, epochs=self.epochs, batch=self.batch, most_examples=self.most_examples,
            proximal=self.proximal,
            reconstruction=None
            if self.reconstruction is None
            else federated_pb2.ReconstructionTerms(
                rate=self.reconstruction.rate, epochs=self.reconstruction.epochs, split=self.reconstruction.split
            ),
        )  # fmt: skip

    @property
    def caps(self) -> dict[str, int]:
        """What bounds the work of a device, by name."""
        caps = {"epochs": self.epochs, "most_examples": self.most_examples}
        return caps if self.reconstruction is None else {**caps, "reconstruction.epochs": self.reconstruction.epochs}

    @property
    def most_rows(self) -> int:
        """Stored rows that a device reads at most, its newest: what epochs draw from."""
        return ROWS_PER_EXAMPLE * self.most_examples

    @property
    def most_read(self) -> int:
        """Examples that all epochs together read at most, each as often as an epoch has it."""
        epochs = self.epochs + (0 if self.reconstruction is None else self.reconstruction.epochs)
        return min(epochs * self.most_examples, MOST_EXAMPLES)

    def batches(self, examples: int, *, seed: int, round: int) -> Iterator[Int64Array]:
        """The examples of each step, int64 places below ``examples``; none where there are no examples.

        With a reconstruction, the steps of the shared parameters.
        """
        _, shared = self.parts(examples, seed=seed, round=round)
        yield from self._steps(shared, self.epochs, seed=seed, round=round, first=0)

    def local_batches(self, examples: int, *, seed: int, round: int) -> Iterator[Int64Array]:
        """The examples of each step of the reconstruction, as ``batches``; none without one."""
        if self.reconstruction is not None:
            local, _ = self.parts(examples, seed=seed, round=round)
            yield from self._steps(local, self.reconstruction.epochs, seed=seed, round=round, first=_RECONSTRUCTION)

    def parts(self, examples: int, *, seed: int, round: int) -> tuple[Int64Array, Int64Array]:
        """Of ``examples``, those that local parameters are trained on, and those for the shared ones: int64 each."""
        if self.reconstruction is None or not self.reconstruction.split:
            every = np.arange(examples, dtype=np.int64)
            return every, every
        order = self._order(examples, examples, seed=seed, round=round, epoch=_SPLIT)
        return order[: examples // 2], order[examples // 2 :]

    def _steps(self, rows: Int64Array, epochs: int, *, seed: int, round: int, first: int) -> Iterator[Int64Array]:
        for epoch in range(epochs):
            order = self._order(
                len(rows), min(len(rows), self.most_examples), seed=seed, round=round, epoch=first + epoch
            )
            for start in range(0, len(order), self.batch):
                yield rows[order[start : start + self.batch]]

    def _order(self, examples: int, taken: int, *, seed: int, round: int, epoch: int) -> Int64Array:
        if not self.shuffle:
            return np.arange(taken, dtype=np.int64)
        places = np.arange(taken, dtype=np.int64)
        numbers = places + ((epoch + 1) << EPOCH_SHIFT)
        draws = round_hashes(np.array([seed], dtype=np.uint64), round, numbers) >> np.uint64(32)
        # The high half of a hash times what is left, over 2^32: each place but for a bias below 2^-12.
        others = places + ((draws * (examples - places).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
        order = list(range(examples))
        for place, other in enumerate(others.tolist()):
            order[place], order[other] = order[other], order[place]
        return np.array(order[:taken], dtype=np.int64)

"""A generalised linear model as federated training sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError
from odp.models.computing_cost import DRAW_SECONDS, Product
from odp.models.features import Encoding
from odp.models.glm.shape import Glm
from odp.models.left_out import Tested
from odp.models.trained import TrainedModel
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.models.examples import ExamplesTerms
    from odp.models.local_training import LocalTraining
    from odp.v1 import federated_pb2

#: Encoded numbers that a device, or a block of a simulation, holds at once.
MOST_ENCODED = 2**24
# Costs, as of ``odp.models.computing_cost``: of a step; of a parameter in a pass over all, and in the product with an
# example; of a number of an encoded example; and of a class of an example that is tested.
_STEP_SECONDS, _PASS_SECONDS, _PRODUCT_SECONDS, _ENCODED_SECONDS, _CLASS_SECONDS = 4e-5, 1.5e-9, 5e-10, 1e-9, 2e-7
_PROXIMAL_PASSES = 3


class TrainedGlm(TrainedModel):
    """``odp.models.trained.TrainedModel`` of one shape.

    Where features are categories or text, an example has few numbers and the model reads many, nearly all zeros. So
    examples are encoded where they are used: a batch, a block of rows, or the users of a block.
    """

    def __init__(self, shape: Glm, encoding: Encoding | None = None) -> None:
        self.shape = shape
        self._encoding = encoding

    @classmethod
    def of(cls, message: federated_pb2.GlmModel) -> Self:
        """The model of a definition. Raises ConfigurationError for an unknown family or a number out of range."""
        return cls(Glm.of(message))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.shape.size

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of targets that are classes; None where they are numbers."""
        return self.shape.classes_range

    def reading(self, examples: ExamplesTerms) -> Self:
        """The model with the encoding of these features.

        Raises:
          ConfigurationError: it does not read as many numbers as they have.
        """
        encoding = examples.encoding
        width = examples.width if encoding is None else encoding.size
        if width != self.shape.features:
            how = "" if encoding is None else ", one for each category and each token of a vocabulary"
            raise ConfigurationError(
                f"Expected features={self.shape.features} of the model to be the {width} numbers of an example{how}"
            )
        return type(self)(self.shape, encoding)

    def design(self, features: Float32Array) -> Float32Array:
        """What the model reads of usable examples [n, width]: float32 [n, features]."""
        return features if self._encoding is None else self._encoding(features)

    def check_training(self, training: LocalTraining) -> None:
        """Raises ConfigurationError for a reconstruction, or where a batch would take much memory to encode."""
        if training.reconstruction is not None:
            raise ConfigurationError(
                "Expected reconstruction=None with an odp.Glm: an odp.KerasModel has layers that stay on the device"
            )
        if self._encoding is not None and training.batch * self.shape.features > MOST_ENCODED:
            raise ConfigurationError(
                f"Expected batch={training.batch} examples of {self.shape.features} numbers each to be at most "
                f"{MOST_ENCODED} numbers: take a smaller batch or vocabulary"
            )

    def training_cost(self, training: LocalTraining) -> tuple[Product, ...]:
        """Steps over batches: products of examples and parameters, and further passes over all parameters."""
        passes = 1 + _PROXIMAL_PASSES * (training.proximal > 0)
        step = _STEP_SECONDS + passes * _PASS_SECONDS * self.size
        example = DRAW_SECONDS + 2 * _PRODUCT_SECONDS * self.size + self._encoding_seconds + step / training.batch
        return Product(example, "epochs", "most_examples"), Product(step, "epochs")

    @property
    def start_seconds(self) -> float:
        """Copies of the parameters."""
        return 4 * _PASS_SECONDS * self.size

    def testing_seconds(self, *, ranked: bool) -> float:
        """Loss and probabilities."""
        return 2 * (_PRODUCT_SECONDS * self.size + self._encoding_seconds) + _CLASS_SECONDS * self.shape.outputs

    @property
    def _encoding_seconds(self) -> float:
        return 0.0 if self._encoding is None else _ENCODED_SECONDS * self.shape.features

    def public_matrix_from(self, data: bytes) -> None:
        """None. Raises ConfigurationError for ``data``."""
        if data:
            raise ConfigurationError("Expected no public matrix with a generalised linear model")

    def start(self, matrix: Float32Array | None = None) -> Float32Array:
        """Zeros: the loss is convex. Raises ConfigurationError for a ``matrix``."""
        if matrix is not None:
            raise ConfigurationError("Expected no public matrix with a generalised linear model")
        return np.zeros(self.size, dtype=np.float32)

    def takes(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of targets [n], those of the family, bool [n]."""
        return self.shape.takes(targets)

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of examples, those of finite features and a target of the family, bool [n]."""
        return self.shape.usable(features, targets)

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
        """``odp.models.glm.training.difference``."""
        from odp.models.glm.training import difference

        return difference(
            self.shape, start, features, targets, training, seed=seed, round=round, encoding=self._encoding
        )  # fmt: skip

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
        """``odp.models.glm.population.differences``."""
        from odp.models.glm.population import differences

        if self._encoding is None:
            return differences(self.shape, start, examples, training, seeds=seeds, round=round, users=users, out=out)
        for first, last in _blocks(examples.offsets, users, numbers=self.shape.features):
            block = slice(first - users.start, last - users.start)
            encoded = _encoded(examples, self._encoding, first, last)
            differences(
                self.shape, start, encoded, training, seeds=seeds[block], round=round, users=slice(0, last - first),
                out=out[block],
            )  # fmt: skip
        return out

    def losses(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> Float64Array:
        """The loss of each example, float64 [n]."""
        return np.concatenate(
            [self.shape.losses(vector, self.design(features[part]), targets[part]) for part in self._parts(features)]
        )

    def measures(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> dict[str, Float64Array]:
        """``loss`` of each example, float64 [n]."""
        return {"loss": self.losses(vector, features, targets)}

    def classes(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """The likeliest class of each example, float32 [n]."""
        predictors = self._predictors(vector, features)
        if predictors.shape[1] == 1:
            return np.asarray(predictors[:, 0] > 0, dtype=np.float32)
        return np.asarray(predictors.argmax(axis=1), dtype=np.float32)

    def tested(self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool) -> Tested:
        """Losses and probabilities; ``ranked`` is False."""
        losses = self.losses(vector, features, targets)
        if self.classes_range is None:
            return Tested(losses)
        means = self.means(vector, features)
        return Tested(losses, np.column_stack((1 - means[:, 0], means[:, 0])) if means.shape[1] == 1 else means)

    def means(self, vector: Float32Array, features: Float32Array) -> Float64Array:
        """The mean of each example's law, float64 [n, outputs]."""
        return self.shape.means(self._predictors(vector, features)).astype(np.float64)

    def _predictors(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        return np.concatenate(
            [self.shape.predictors(vector, self.design(features[part])) for part in self._parts(features)]
        )

    def _parts(self, features: Float32Array) -> list[slice]:
        """All rows of examples, cut where encoded ones would be too many; at least one part."""
        rows = len(features) if self._encoding is None else max(1, MOST_ENCODED // self.shape.features)
        return [slice(first, first + rows) for first in range(0, max(1, len(features)), max(1, rows))]


def _blocks(offsets: Int64Array, users: slice, *, numbers: int) -> list[tuple[int, int]]:
    """Consecutive users as (first, one after the last), of few encoded examples unless one user has many."""
    first, blocks = users.start, []
    while first < users.stop:
        most = offsets[first] + MOST_ENCODED // numbers
        last = min(max(int(np.searchsorted(offsets, most, side="right")) - 1, first + 1), users.stop)
        blocks.append((first, last))
        first = last
    return blocks


def _encoded(examples: UsersExamples, encoding: Encoding, first: int, last: int) -> UsersExamples:
    """The users from ``first`` to the one before ``last``, with a table of their own."""
    from odp.datasets.examples import UsersExamples

    ends = examples.offsets[first : last + 1]
    rows = examples.rows[ends[0] : ends[-1]]
    features = examples.features[rows].astype(np.float32)
    return UsersExamples(
        encoding(features), examples.targets[rows], np.arange(len(rows), dtype=np.int64), ends - ends[0]
    )

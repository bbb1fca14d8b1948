"""A generalised linear model as federated training sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError
from odp.models.glm.shape import Glm
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.models.examples import ExamplesTerms
    from odp.models.litert.trainer import ProgramTrainer
    from odp.models.local_training import LocalTraining
    from odp.v1 import federated_pb2


class TrainedGlm:
    """``odp.models.trained.TrainedModel`` of one shape."""

    def __init__(self, shape: Glm) -> None:
        self.shape = shape

    @classmethod
    def of(cls, given: federated_pb2.GlmModel) -> Self:
        """The model of a definition. Raises ConfigurationError for an unknown family or a number out of range."""
        return cls(Glm.of(given))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.shape.size

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of targets that are classes; None where they are numbers."""
        return self.shape.classes_range

    def check_examples(self, examples: ExamplesTerms) -> None:
        """Raises ConfigurationError unless examples have as many numbers as the model reads."""
        if examples.width != self.shape.features:
            raise ConfigurationError(
                f"Expected features={self.shape.features} of the model to be the {examples.width} numbers of an example"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def check_training(self, training: LocalTraining) -> None:
        """Raises ConfigurationError for a reconstruction: there are no layers that stay on a device."""
        if training.reconstruction is not None:
            raise ConfigurationError(
                "Expected reconstruction=None with an odp.Glm: an odp.KerasModel has layers that stay on the device"
            )

    def on_device(self, trainer: ProgramTrainer | None, training: LocalTraining) -> TrainedGlm:
        """This model: it has no program."""
        return self

    def public_matrix_from(self, data: bytes) -> None:
        """None. Raises ConfigurationError for ``data``."""
        if data:
            raise ConfigurationError("Expected no public matrix with a generalised linear model")

    def start(self, matrix: Float32Array | None = None) -> Float32Array:
        """Zeros: the loss is convex. Raises ConfigurationError for a ``matrix``."""
        if matrix is not None:
            raise ConfigurationError("Expected no public matrix with a generalised linear model")
        return np.zeros(self.size, dtype=np.float32)

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

        return difference(self.shape, start, features, targets, training, seed=seed, round=round)

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

        return differences(self.shape, start, examples, training, seeds=seeds, round=round, users=users, out=out)

    def losses(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> Float64Array:
        """The loss of each example, float64 [n]."""
        return self.shape.losses(vector, features, targets)

    def measures(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> dict[str, Float64Array]:
        """``loss`` of each example, float64 [n]."""
        return {"loss": self.losses(vector, features, targets)}

    def classes(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """The likeliest class of each example, float32 [n]."""
        predictors = self.shape.predictors(vector, features)
        if predictors.shape[1] == 1:
            return np.asarray(predictors[:, 0] > 0, dtype=np.float32)
        return np.asarray(predictors.argmax(axis=1), dtype=np.float32)

    def probabilities(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """The probability of each class, float32 [n, classes]."""
        means = self.shape.means(self.shape.predictors(vector, features))
        return np.column_stack((1 - means[:, 0], means[:, 0])) if means.shape[1] == 1 else means

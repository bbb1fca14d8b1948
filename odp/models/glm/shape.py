"""What a generalised linear model computes, and how its parameters lie in one vector.

==============  ===============  ==========================  ==================================
family          target           mean of a predictor z       loss of an example
==============  ===============  ==========================  ==================================
linear          real numbers     z                           (z - y)² / 2
logistic        0 or 1           1 / (1 + e^-z)              log(1 + e^z) - y z
multinomial     0 .. classes-1   e^z_c / Σ e^z               log Σ e^z - z_y
poisson         counts, >= 0     e^z, |z| limited to 20      e^z - y z
==============  ===============  ==========================  ==================================

In all four the gradient of the loss in z is mean minus target.

Source: McCullagh and Nelder 1989, "Generalized linear models", canonical links.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.v1 import common_pb2, federated_pb2

MOST_FEATURES, MOST_CLASSES = 2**20, 2**16
#: |z| of a Poisson model, at most: e^20 is 485 million.
POISSON_LIMIT = 20.0


class Family(enum.Enum):
    """The law of the target given the features."""

    LINEAR = "linear"
    LOGISTIC = "logistic"
    MULTINOMIAL = "multinomial"
    POISSON = "poisson"


@_validate.strict_keywords
@dataclass(frozen=True)
class Glm:
    """A generalised linear model of ``features`` numbers.

    Its parameters are one vector, float32 [size]: weights [outputs, features] row after row, then biases [outputs].

    Attributes:
      family: or its name.
      features: numbers per example.
      classes: of a multinomial model, at least 2; 1 for the other families.

    Raises:
      ConfigurationError: the family is unknown, or a number is out of range.
    """

    family: Family | str
    features: int
    classes: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            _validate.one_of([family.value for family in Family], family=self.family)
            object.__setattr__(self, "family", Family(self.family))
        _validate.integer(low=1, high=MOST_FEATURES, features=self.features)
        least, most = (2, MOST_CLASSES) if self.family is Family.MULTINOMIAL else (1, 1)
        _validate.integer(low=least, high=most, classes=self.classes)

    @classmethod
    def of(cls, message: federated_pb2.GlmModel) -> Self:
        """The model of a definition. Raises ConfigurationError for an unknown family or a number out of range."""
        number = message.family - 1
        families = list(Family)
        if not 0 <= number < len(families):
            raise ConfigurationError(f"Expected family={message.family!r} to be 1 to {len(families)}")
        return cls(families[number], message.features, message.classes)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        from odp.v1 import federated_pb2

        number = federated_pb2.GlmModel.Family.Value(f"FAMILY_{Family(self.family).name}")
        definition.glm.CopyFrom(
            federated_pb2.GlmModel(family=number, features=self.features, classes=self.classes)  # type: ignore[arg-type]
        )

    @property
    def public_matrix(self) -> None:
        """None: devices begin with zeros."""
        return None

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of targets that are classes; None where they are numbers."""
        if self.family in (Family.LOGISTIC, Family.MULTINOMIAL):
            return 0.0, max(self.classes, 2) - 1.0
        return None

    @property
    def outputs(self) -> int:
        """Predictors per example."""
        return self.classes

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.outputs * (self.features + 1)

    def split(self, vector: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Views of a parameter vector: weights [outputs, features], biases [outputs].

        Raises:
          ConfigurationError: the vector has another length.
        """
        if vector.shape != (self.size,):
            raise ConfigurationError(f"Expected a vector of {self.size} parameters (got {list(vector.shape)})")
        weights = vector[: self.outputs * self.features].reshape(self.outputs, self.features)
        return weights, vector[self.outputs * self.features :]

    def takes(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of targets [n], those of the family, bool [n]."""
        taken = np.isfinite(targets)
        if self.family is Family.LOGISTIC:
            taken &= (targets == 0) | (targets == 1)
        elif self.family is Family.MULTINOMIAL:
            taken &= (targets >= 0) & (targets < self.classes) & (targets == np.floor(targets))
        elif self.family is Family.POISSON:
            taken &= targets >= 0
        return taken

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of examples [n, features] with targets [n]: those of finite features and a target of the family, bool [n]."""
        taken = self.takes(targets)
        return taken & np.isfinite(features).all(axis=1) if features.dtype.kind == "f" else taken

    def predictors(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """z of each example, float32 [n, outputs]."""
        weights, biases = self.split(vector)
        return features @ weights.T + biases

    def means(self, predictors: Float32Array) -> Float32Array:
        """The mean of each predictor [n, outputs], and in the multinomial case of each row; the same type."""
        z = predictors
        match self.family:
            case Family.LOGISTIC:
                shrunk = np.exp(-np.abs(z))
                return np.asarray(np.where(z >= 0, 1, shrunk) / (1 + shrunk))
            case Family.MULTINOMIAL:
                raised = np.exp(z - z.max(axis=1, keepdims=True))
                return np.asarray(raised / raised.sum(axis=1, keepdims=True))
            case Family.POISSON:
                return np.asarray(np.exp(np.clip(z, -POISSON_LIMIT, POISSON_LIMIT)))
        return z

    def residuals(self, predictors: Float32Array, targets: Float32Array) -> Float32Array:
        """Mean minus target, float32 [n, outputs]; the gradient of each example's loss in its predictors."""
        residuals = self.means(predictors).copy()
        if self.family is Family.MULTINOMIAL:
            residuals[np.arange(len(targets)), targets.astype(np.int64)] -= 1
        else:
            residuals[:, 0] -= targets
        return residuals

    def losses(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> Float64Array:
        """The loss of each example, float64 [n]."""
        z = self.predictors(vector, features).astype(np.float64)
        match self.family:
            case Family.LOGISTIC:
                return np.asarray(np.logaddexp(0.0, z[:, 0]) - targets * z[:, 0])
            case Family.MULTINOMIAL:
                top = z.max(axis=1)
                total = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
                return np.asarray(total - z[np.arange(len(targets)), targets.astype(np.int64)])
            case Family.POISSON:
                limited = np.clip(z[:, 0], -POISSON_LIMIT, POISSON_LIMIT)
                return np.asarray(np.exp(limited) - targets * limited)
        return np.asarray(np.square(z[:, 0] - targets) / 2)

"""What a developer writes to evaluate trained models on the devices' own examples.

Example::

    task = odp.Evaluation(
        name="quality", model=odp.Glm("logistic", features=8), of=run.model,
        data=odp.Examples({"x": odp.Tensor((8,), low=-1, high=1)}, label="clicked"),
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6), cohort=odp.Cohort(minimum=100, goal=1000),
    )
    odp.simulate(task, people).results["auc"]

The evaluated parameters as the public matrix of a task: float32 little-endian [models, size], named by its hash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from odp import _validate
from odp.algorithms.choices import Question, check_catalogue
from odp.algorithms.dpam.config import RatingsData
from odp.algorithms.model_evaluation.terms import MOST_BINS, PARAMETERS, Layout
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.local_training import LocalTraining
from odp.models.rated_items import RatedItems
from odp.models.trained import TestedModel, tested_model_of, tested_models
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

#: Bytes that a server accepts.
LARGEST = 16 * 2**20


def sha256_of(parameters: Float32Array) -> bytes:
    """As a definition has it."""
    return hashlib.sha256(parameters.astype("<f4").tobytes()).digest()


def parameters_from(data: bytes, *, models: int, size: int, sha256: bytes) -> Float32Array:
    """The parameters of these bytes, read-only float32 [models, size].

    Raises:
      ConfigurationError: they are not those of the hash, or a number is not finite.
    """
    expected = 4 * models * size
    if len(data) != expected:
        raise ConfigurationError(f"Expected parameters of {expected} bytes to evaluate (got {len(data)})")
    if hashlib.sha256(data).digest() != sha256:
        raise ConfigurationError("Expected parameters of the SHA-256 that the task definition names")
    parameters = np.frombuffer(data, dtype="<f4").reshape(models, size)
    if not np.isfinite(parameters).all():
        raise ConfigurationError("Expected parameters that are finite")
    return parameters


_LOSS, _ACCURACY, _AUC, _CALIBRATION, _RECALL = "loss", "accuracy", "auc", "calibration", "recall@"


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class PersonalTraining:
    """How a device trains the model further on a part of its own examples. Its own model never leaves the device.

    Attributes:
      rate: step size.
      epochs: passes over its examples.
      batch: examples per step.
      held_out: share of a device's examples that both models are tested on, and that it does not train on.

    Raises:
      ConfigurationError: a number is out of range.
    """

    rate: float = 0.1
    epochs: int = 5
    batch: int = 10
    held_out: float = 0.5

    def __post_init__(self) -> None:
        self.local()
        _validate.within(low=0.01, high=0.99, held_out=self.held_out)

    def local(self) -> LocalTraining:
        """The work of a device."""
        return LocalTraining(rate=self.rate, epochs=self.epochs, batch=self.batch)


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Evaluation(Question):
    """How good a trained model is on the devices' own examples, in one charged round that leaves the model as it is.

    Every user weighs the same: a device sends means over its own examples.

    Attributes:
      model: what was trained.
      data: the examples; of an ``odp.RatedItems``, ratings. Devices should not have trained the model on them, or the
        metrics flatter it.
      of: the parameters: a vector, or the model of a finished run or task (``RunResult.model``, ``Connection.model``).
      against: other parameters of the same model. A random half of the users tests ``of``, the other half these.
      personal: devices also train ``of`` further, and both models are tested on held-out examples.
      metrics: of "loss", "accuracy", "recall@K" (the label is among the K likeliest classes), "auc" (of two classes)
        and "calibration"; None for all that the model has but "recall@K". Of an ``odp.TwoTower`` that predicts choices,
        "recall@K" is the share of chosen items that are among the first K of all items but the person's other ones;
        such metrics make an evaluation of their own.
      loss_low, loss_high: the range that the loss of an example is clamped to. For models of classes, the default is 0
        to twice the loss of guessing; for rated items, 0 to the squared error of half the range of ratings; others need
        a range.
      bins: of the histograms of predicted probabilities, which "auc" and "calibration" share.
      most_examples: of a device.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    section: ClassVar[str] = "evaluation"
    more_sections: ClassVar[tuple[str, ...]] = ("model", "data")
    arrays: ClassVar[tuple[str, ...]] = ("of", "against")

    model: Any
    data: Examples | RatingsData
    of: Any = field(repr=False, compare=False)
    against: Any = field(default=None, repr=False, compare=False)
    personal: PersonalTraining | None = None
    metrics: Sequence[str] | None = None
    loss_low: float = 0.0
    loss_high: float | None = None
    bins: int = 20
    most_examples: int = 1000
    parameters_sha256: bytes = field(init=False, repr=False, default=b"")

    def __post_init__(self) -> None:
        if not isinstance(self.model, tested_models()):
            names = " or ".join(f"odp.{kind.__name__}" for kind in tested_models())
            raise ConfigurationError(f"Expected model to be an {names}, got a {type(self.model).__name__}")
        wanted: type = RatingsData if isinstance(self.model, RatedItems) else Examples
        for name, kind in (("data", wanted), ("personal", PersonalTraining)):
            value = getattr(self, name)
            if not isinstance(value, kind) and (name != "personal" or value is not None):
                raise ConfigurationError(f"Expected {name} to be an odp.{kind.__name__}, got a {type(value).__name__}")
        if self.personal is not None and self.against is not None:
            raise ConfigurationError("Expected personal or against, not both: one of them is compared with the model")
        _validate.integer(bins=self.bins, low=2, high=MOST_BINS)
        if self.metrics is not None:
            if isinstance(self.metrics, str) or not isinstance(self.metrics, Iterable):
                raise ConfigurationError(f"Expected metrics={self.metrics!r} to be a list of names")
            object.__setattr__(self, "metrics", tuple(self.metrics))
        trained = self._trained()
        compared = (self.of,) if self.against is None else (self.of, self.against)
        rows = [
            _vector(self._own_vector(parameters), name, trained.size)
            for parameters, name in zip(compared, ("of", "against"), strict=False)
        ]
        matrix = np.stack(rows)
        if matrix.nbytes > LARGEST:
            raise ConfigurationError(
                f"Expected parameters of at most {LARGEST} bytes to evaluate (got {matrix.nbytes})"
            )
        matrix.flags.writeable = False
        for name, row in zip(("of", "against"), matrix, strict=False):
            object.__setattr__(self, name, row)
        object.__setattr__(self, "parameters_sha256", sha256_of(matrix))
        super().__post_init__()
        check_catalogue(self.model, self.data, population=self.population)

    @property
    def public_matrix(self) -> Float32Array:
        """The evaluated parameters, float32 [models, size]."""
        return np.stack([self.of] if self.against is None else [self.of, self.against])

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        from odp.algorithms.dense.grid import Grid
        from odp.algorithms.federated.config import write_label_range

        definition, privacy = self.unresolved(), self.privacy
        self.model.write(definition)
        self.data.write(definition)
        if isinstance(self.data, Examples):
            write_label_range(definition)
        names, trained = self._names(), self._trained()
        written = definition.model_evaluation
        written.models = 1 if self.against is None else 2
        written.parameters_sha256 = self.parameters_sha256
        if _LOSS in names:
            low, high = self._loss_range(trained)
            written.loss.low, written.loss.high = low, high
        tops = [1] * (_ACCURACY in names) + [_top(name) for name in names if name.startswith(_RECALL)]
        (written.ranked if trained.ranked_items and _ACCURACY not in names else written.top).extend(sorted(set(tops)))
        written.bins = self.bins if {_AUC, _CALIBRATION} & set(names) else 0
        written.most_examples = self.most_examples
        if self.personal is not None:
            written.personal.training.CopyFrom(self.personal.local().to_proto())
            written.personal.held_out = self.personal.held_out
        layout = Layout(
            written.models, 1 if self.personal is None else 2,
            written.HasField("loss") + len(written.top) + len(written.ranked), written.bins,
        )  # fmt: skip
        grid = Grid.within_budget(
            size=layout.size, epsilon=privacy.epsilon, delta=privacy.delta, cohort=definition.cohort
        )
        written.dense.CopyFrom(grid.to_proto())
        return definition

    def _own_vector(self, parameters: Any) -> Any:
        """Parameters, of a model of ratings as the vector that devices test."""
        if isinstance(self.model, RatedItems) and isinstance(parameters, ModelVersion):
            return self.model.parameters(parameters)
        return parameters

    def _trained(self) -> TestedModel:
        definition = common_pb2.TaskDefinition(name=self.name)
        self.model.write(definition)
        return tested_model_of(definition)

    def _names(self) -> tuple[str, ...]:
        trained = self._trained()
        classes = trained.classes_range
        if self.metrics is None:
            ranked = () if classes is None or classes[1] > 1 else (_AUC,)
            return (_LOSS,) if classes is None else (_LOSS, _ACCURACY, *ranked, _CALIBRATION)
        valid = (_LOSS,) if classes is None else (_LOSS, _ACCURACY, f"{_RECALL}K", _AUC, _CALIBRATION)
        recalls = [name for name in self.metrics if isinstance(name, str) and name.startswith(_RECALL)]
        if recalls and trained.ranked_items:
            for name in recalls:
                _validate.integer(low=1, high=trained.ranked_items - 1, recall=_top(name))
            if others := [name for name in self.metrics if name not in recalls]:
                raise ConfigurationError(
                    f"Expected metrics={others[0]!r} in an evaluation of its own: {recalls[0]!r} of an odp.TwoTower "
                    "counts the examples of class 1 alone"
                )
            return tuple(recalls)
        for name in self.metrics:
            if classes is not None and isinstance(name, str) and name.startswith(_RECALL):
                _validate.integer(low=1, high=int(classes[1]), recall=_top(name))
                continue
            if name not in valid:
                raise ConfigurationError(
                    f"Expected metrics={name!r} to be of {', '.join(valid)}{_validate.nearest(name, valid)}"
                )
        if _AUC in self.metrics and classes is not None and classes[1] > 1:
            raise ConfigurationError(
                f"Expected metrics={_AUC!r} of a model of two classes (got {classes[1] + 1:.0f}); take 'recall@K'"
            )
        return tuple(self.metrics)

    def _loss_range(self, trained: TestedModel) -> tuple[float, float]:
        if self.loss_high is not None:
            return self.loss_low, self.loss_high
        if isinstance(self.model, RatedItems):
            return self.loss_low, self.model.loss_high
        if trained.classes_range is None:
            raise ConfigurationError(
                f"Expected loss_high={self.loss_high!r} to be a number: the loss of a model of numbers has no bound"
            )
        return self.loss_low, 2.0 * math.log(trained.classes_range[1] + 1.0)


def _top(name: str) -> int:
    digits = name.removeprefix(_RECALL)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise ConfigurationError(f"Expected metrics={name!r} to be 'recall@' and a whole number")
    return int(digits)


def _vector(parameters: Any, name: str, size: int) -> Float32Array:
    """Parameters as float32 [size]. Raises ConfigurationError where they are of another model, or not finite."""
    table = parameters.dense.get(PARAMETERS[0]) if isinstance(parameters, ModelVersion) else parameters
    if table is None:
        raise ConfigurationError(f"Expected {name} to be a model of a federated training: it has no parameters")
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(table, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected {name} to be a vector of parameters or a trained model, got a {type(parameters).__name__}"
        ) from error
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector[:, 0]
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ConfigurationError(
            f"Expected {name} to be the {size} finite parameters of the model (got shape {list(np.shape(table))})"
        )
    return vector

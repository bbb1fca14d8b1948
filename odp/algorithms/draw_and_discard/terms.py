"""The numbers of one Draw and Discard task, read from its definition and checked: one source for every party.

Everything is counted in steps of a grid, whose width is a power of two:

- a model is int32 [weights]; weights are exact multiples of the step;
- one report moves a weight by at most ``movement`` = floor(rate * clip / step) steps either way, so that any two inputs
  of a person differ by at most 2 ``movement``;
- noise is discrete Laplace of ``noise_scale`` steps, so the report has for each weight the pure
  epsilon = 2 movement / noise_scale + 2 LAPLACE_CLOSENESS, and for the model the sum over its weights.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section III. There the
guarantee is for one feature; the ledger of a person is charged for the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.features import LocalFeatures
from odp.algorithms.local_seam import MOST_REPORTS
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, PrivacyError
from odp.models.class_names import check_count
from odp.models.glm.shape import POISSON_LIMIT, Family
from odp.numerics.arrays import BoolArray, Float64Array, Int32Array
from odp.privacy.mechanisms.random_source import LAPLACE_CLOSENESS, LARGEST_SCALE
from odp.v1 import common_pb2, draw_and_discard_pb2

MOST_INSTANCES, MOST_WEIGHTS, MOST_CLASSES = 1024, 2**20, 2**12
MOST_EXAMPLES, MOST_UPDATES = 2**16, 2**50
#: Between two reports of a device: ten years.
MOST_SECONDS = 10 * 366 * 86_400
#: The bound is this many scales of noise and of movement away from zero, at least.
_ROOM = 8
_FAMILIES = tuple(Family)


@dataclass(frozen=True)
class Spam:
    """When a report is refused; zero for no test. See ``odp.v1.SpamRule``."""

    most_deviations: float = 0.0
    most_spread: float = 0.0
    false_alarms: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _validate.within(low=0.0, high=1e9, **{name: value})
        _validate.within(low=0.0, high=0.5, false_alarms=self.false_alarms)


@dataclass(frozen=True, eq=False)
class Terms:
    """A ``odp.v1.DrawAndDiscard``, checked.

    ``noise_scale`` 0 is a model without privacy, for simulations; no definition has it.

    Raises:
      ConfigurationError: a number is out of range.
    """

    features: LocalFeatures
    family: Family
    classes: int
    instances: int
    rate: float
    clip: float
    step: float
    noise_scale: int
    bound: float
    spam: Spam
    start: Float64Array
    start_std: float
    seed: int = 1
    most_updates: int = MOST_UPDATES
    most_reports: int = 1
    most_examples: int = 1000
    seconds_between: int = 0

    def __post_init__(self) -> None:
        least, most = (2, MOST_CLASSES) if self.family is Family.MULTINOMIAL else (1, 1)
        _validate.integer(low=least, high=most, classes=self.classes)
        check_count(self.features.class_names, classes_range=self.classes_range)
        _validate.integer(low=1, high=MOST_WEIGHTS, weights=self.weights)
        _validate.integer(low=1, high=MOST_INSTANCES, instances=self.instances)
        _validate.positive(rate=self.rate, clip=self.clip, step=self.step, bound=self.bound)
        if math.frexp(self.step)[0] != 0.5 or not 2.0**-60 <= self.step <= 1.0:
            raise ConfigurationError(f"Expected step={self.step!r} to be a power of two from 2^-60 to 1")
        _validate.integer(low=0, high=LARGEST_SCALE, noise_scale=self.noise_scale)
        _validate.integer(low=1, high=2**30, movement=self.movement)
        if not self.movement + self.noise_scale <= self.largest < 2**31:
            raise ConfigurationError(
                f"Expected bound={self.bound!r} to be from {(self.movement + self.noise_scale) * self.step:g}, what "
                f"one report moves, to {self.step * (2**31 - 1):g}, what its 32 bits hold"
            )
        _validate.integer(low=0, high=2**63 - 1, seed=self.seed)
        _validate.within(low=0.0, high=self.bound, start_std=self.start_std)
        _validate.integer(low=1, high=MOST_UPDATES, most_updates=self.most_updates)
        _validate.integer(low=1, high=MOST_REPORTS, most_reports=self.most_reports)
        _validate.integer(low=1, high=MOST_EXAMPLES, most_examples=self.most_examples)
        _validate.integer(low=0, high=MOST_SECONDS, seconds_between=self.seconds_between)
        if self.start.shape != (self.weights,) or not (np.abs(self.start) <= self.bound).all():
            raise ConfigurationError(f"Expected start to be {self.weights} numbers within {self.bound:g} of zero")

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task is no Draw and Discard, or a field is missing or out of range.
          PrivacyError: its noise is smaller than it states.
        """
        if definition.WhichOneof("training") != "draw_and_discard":
            raise ConfigurationError(f"Expected the training of task {definition.name!r} to be draw_and_discard")
        if definition.HasField("model") or definition.WhichOneof("local_data") or definition.HasField("broadcast"):
            raise ConfigurationError(f"Expected task {definition.name!r} to have no model, data or broadcast elsewhere")
        terms = cls.of_message(definition.draw_and_discard)
        terms.require_noise()
        return terms

    @classmethod
    def of_message(cls, message: draw_and_discard_pb2.DrawAndDiscard) -> Self:
        """As ``of``, of the message alone, which may be without noise. Raises ConfigurationError, PrivacyError."""
        if not 1 <= message.family <= len(_FAMILIES):
            raise ConfigurationError(f"Expected family={message.family!r} to be 1 to {len(_FAMILIES)}")
        features = LocalFeatures.of(message.data)
        if len(message.start) % 8:
            raise ConfigurationError(f"Expected start to be float64 numbers (got {len(message.start)} bytes)")
        start = np.frombuffer(message.start, dtype="<f8").astype(np.float64)
        weights = message.classes * features.inputs
        terms = cls(
            features=features, family=_FAMILIES[message.family - 1], classes=message.classes,
            instances=message.instances,
            rate=message.rate, clip=message.clip, step=message.step, noise_scale=message.noise_scale,
            bound=message.bound,
            spam=Spam(message.spam.most_deviations, message.spam.most_spread, message.spam.false_alarms),
            start=start if len(start) else np.zeros(min(weights, MOST_WEIGHTS)), start_std=message.start_std,
            seed=message.seed, most_updates=message.most_updates, most_reports=message.most_reports,
            most_examples=message.most_examples, seconds_between=message.seconds_between,
        )  # fmt: skip
        if message.weights != terms.weights:
            raise ConfigurationError(
                f"Expected weights={message.weights} to be {terms.weights}, as its features have it"
            )
        stated = message.feature_epsilon, message.model_epsilon
        if stated != (terms.feature_epsilon, terms.model_epsilon) and terms.noise_scale:
            raise PrivacyError(
                f"Expected feature_epsilon and model_epsilon to be {terms.feature_epsilon!r} and "
                f"{terms.model_epsilon!r}, as the noise has it (got {stated[0]!r} and {stated[1]!r})"
            )
        return terms

    def to_proto(self) -> draw_and_discard_pb2.DrawAndDiscard:
        """The wire form."""
        private = self.noise_scale > 0
        return draw_and_discard_pb2.DrawAndDiscard(
            data=self.features.to_proto(),
            family=_FAMILIES.index(self.family) + 1,  # type: ignore[arg-type]
            classes=self.classes, weights=self.weights, instances=self.instances, rate=self.rate, clip=self.clip,
            step=self.step, noise_scale=self.noise_scale, bound=self.bound,
            feature_epsilon=self.feature_epsilon if private else 0.0,
            model_epsilon=self.model_epsilon if private else 0.0,
            spam=draw_and_discard_pb2.SpamRule(**vars(self.spam)),
            start=self.start.astype("<f8").tobytes() if self.start.any() else b"",
            start_std=self.start_std, seed=self.seed, most_updates=self.most_updates, most_reports=self.most_reports,
            most_examples=self.most_examples, seconds_between=self.seconds_between,
        )  # fmt: skip

    def require_noise(self) -> None:
        """Raises PrivacyError where reports have no noise: a device sends none of these."""
        if not self.noise_scale:
            raise PrivacyError("Expected noise_scale to be at least 1: a device sends no report without noise")

    @property
    def inputs(self) -> int:
        """Numbers of an encoded row."""
        return self.features.inputs

    @property
    def weights(self) -> int:
        """Numbers of a model."""
        return self.classes * self.inputs

    @property
    def movement(self) -> int:
        """Steps that the data of one report move a weight, either way, at most."""
        return math.floor(self.rate * self.clip / self.step)

    @property
    def largest(self) -> int:
        """Of a weight, in steps."""
        return math.floor(self.bound / self.step)

    @property
    def feature_epsilon(self) -> float:
        """Pure epsilon of one report for one weight; infinite without noise."""
        return 2 * self.movement / self.noise_scale + 2 * LAPLACE_CLOSENESS if self.noise_scale else math.inf

    @property
    def model_epsilon(self) -> float:
        """Pure epsilon of one report for the whole model: what a person's ledger is charged."""
        return self.weights * self.feature_epsilon

    @property
    def lifetime_epsilon(self) -> float:
        """Pure epsilon of all reports that a device may send."""
        return self.most_reports * self.model_epsilon

    @property
    def report_bytes(self) -> int:
        """Length of a model on the wire."""
        return 4 * self.weights

    def decode(self, content: bytes) -> Int32Array:
        """A model, int32 [weights] in steps.

        Raises:
          ConfigurationError: it has another length, or a weight beyond the bound.
        """
        if len(content) != self.report_bytes:
            raise ConfigurationError(f"Expected a model of {self.report_bytes} bytes (got {len(content)})")
        model = np.frombuffer(content, dtype="<i4").astype(np.int32)
        if len(model) and not -self.largest <= int(model.min()) <= int(model.max()) <= self.largest:
            raise ConfigurationError(f"Expected weights within {self.bound:g} of zero")
        return model

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of responses that are classes; None where they are numbers."""
        return (0.0, max(self.classes, 2) - 1.0) if self.family in (Family.LOGISTIC, Family.MULTINOMIAL) else None

    def encode(self, model: Int32Array) -> bytes:
        """The wire form of a model, which is within the bound."""
        return model.astype("<i4").tobytes()

    def rows(self, rows: LocalRows) -> tuple[Float64Array, Float64Array]:
        """(numbers float64 [n, inputs], responses float64 [n]) of those of a device's last rows that can be used."""
        newest = rows.last(self.most_examples)
        numbers, usable_features = self.features.encode(newest.features, len(newest.values))
        targets, usable = self.targets(newest.values)
        used = usable_features & usable
        return numbers[used], targets[used]

    def targets(self, labels: Float64Array) -> tuple[Float64Array, BoolArray]:
        """Responses as the model reads them, float64 [n], and which can be used: classes, or numbers of the range."""
        labels = np.asarray(labels, dtype=np.float64)
        if self.classes_range is not None:
            usable = (labels >= 0) & (labels <= self.classes_range[1]) & (labels == np.floor(labels))
            return np.where(usable, labels, 0.0), usable
        low, high = self.features.label_low, self.features.label_high
        usable = (labels >= low) & (labels <= high)
        return np.where(usable, (labels - low) / (high - low), 0.0), usable

    def means(self, predictors: Float64Array) -> Float64Array:
        """What the model expects, [n, classes], of predictors [n, classes]."""
        z = predictors
        match self.family:
            case Family.LOGISTIC:
                return np.asarray(0.5 + 0.5 * np.tanh(0.5 * z))
            case Family.MULTINOMIAL:
                raised = np.exp(z - z.max(axis=1, keepdims=True))
                return np.asarray(raised / raised.sum(axis=1, keepdims=True))
            case Family.POISSON:
                return np.asarray(np.exp(np.clip(z, -POISSON_LIMIT, POISSON_LIMIT)))
        return z

    def gradient(self, weights: Float64Array, numbers: Float64Array, targets: Float64Array) -> Float64Array:
        """Mean of (expected - response) x over rows, float64 [weights], each number clipped; zeros without rows."""
        if not len(targets):
            return np.zeros(self.weights)
        residuals = self.means(numbers @ weights.reshape(self.classes, self.inputs).T)
        if self.family is Family.MULTINOMIAL:
            residuals[np.arange(len(targets)), targets.astype(np.int64)] -= 1.0
        else:
            residuals[:, 0] -= targets
        mean = (residuals.T @ numbers).ravel() / len(targets)
        return np.clip(np.nan_to_num(mean), -self.clip, self.clip)


def resolved(
    features: LocalFeatures, family: Family, *, classes: int, instances: int, rate: float, clip: float, epsilon: float,
    per_model: bool, spam: Spam, start: Float64Array | None, seed: int, most_updates: int, most_reports: int,
    most_examples: int, seconds_between: int = 0, noisy: bool = True,
) -> Terms:  # fmt: skip
    """Every number that follows from what a developer wrote.

    ``epsilon`` is per feature, or of the whole model with ``per_model``. ``noisy`` False leaves the noise away, and
    starts as if epsilon per feature were 1, as the source does.

    Raises:
      ConfigurationError: a number is out of range.
    """
    _validate.positive(rate=rate, clip=clip)
    _validate.within(low=1e-6, high=1e6, rate_times_clip=rate * clip)
    weights = classes * features.inputs
    _validate.integer(low=1, high=MOST_WEIGHTS, weights=weights)
    if noisy:
        _validate.within(low=1e-6, high=1e6, epsilon=epsilon)
        feature = epsilon / weights if per_model else epsilon
    else:
        feature = 1.0
    laplace = 2.0 * clip * rate / feature
    # 512 to 1024 steps in the smaller of movement and noise, which is fine; and 32 bits hold weights of 64 in any case.
    step = min(1.0, max(2.0**-24, 2.0 ** (math.floor(math.log2(min(laplace, rate * clip))) - 9)))
    movement = math.floor(rate * clip / step)
    scale = math.ceil(2 * movement / (feature * (1.0 - 2.0**-40) - 2 * LAPLACE_CLOSENESS))
    deviation = math.sqrt(instances) * 2.0 * scale * step  # sqrt(k/2) sigma, sigma^2 = 2 scale^2 steps, and once more
    start_std = math.sqrt(instances / 2.0) * math.sqrt(2.0) * scale * step if instances > 1 else 0.0
    first = np.zeros(weights) if start is None else np.asarray(start, dtype=np.float64)
    least = _ROOM * (deviation + rate * clip) + (float(np.abs(first).max()) if len(first) else 0.0)
    bound = min(step * (2**31 - 1), max(64.0, least))
    return Terms(
        features=features, family=family, classes=classes, instances=instances, rate=rate, clip=clip, step=step,
        noise_scale=scale if noisy else 0, bound=bound, spam=spam, start=first, start_std=start_std, seed=seed,
        most_updates=most_updates, most_reports=most_reports, most_examples=most_examples,
        seconds_between=seconds_between,
    )  # fmt: skip

"""What a developer chooses for DPAM, and how it becomes the numbers of a task definition.

What a developer says of the ratings that a task reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from odp import _validate
from odp._validate import strict_keywords, within
from odp.algorithms.choices import TrainingData
from odp.algorithms.dpam.terms import DERIVED_FACTORS, ITEMS_ENCODINGS, MAX_KERNEL_VARIANCE, MAX_RANK
from odp.algorithms.factorization.terms import MAX_FEATURES, WEIGHTINGS, check_clips, check_ridges
from odp.errors import ConfigurationError, DataError
from odp.models.events import Events, table_of
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.wire.encoding import Encoding, number_of

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.privacy.events import Sampling
    from odp.v1 import common_pb2

_TABLE = "ratings"


@strict_keywords
@dataclass(frozen=True)
class RatingsData:
    """Explicit ratings of items in the device's local store.

    Attributes:
      table: Name of the local table of (item, value).
      low, high: Declared range; a device refuses a value outside of it, and clamps one that is made of events.
      events: Makes the ratings of events instead, as the task says: see ``odp.Events``; without a table.
    """

    kind: ClassVar[str] = "ratings"

    table: str = _TABLE
    low: float = 1.0
    high: float = 5.0
    events: Events | None = None

    def __post_init__(self) -> None:
        table_of(self.table, self.events, default=_TABLE)
        within(low=-1e6, high=1e6, data_low=self.low, data_high=self.high)
        if not self.low < self.high:
            raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a value is outside of the declared range."""
        if not (self.low <= ratings.values.min() and ratings.values.max() <= self.high):
            raise DataError(
                f"the data set {ratings.name!r} holds values outside the task's bounds "
                f"low={self.low}, high={self.high}; "
                "set the bounds that the data declares"
            )

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes the wire form into a definition."""
        data = definition.data
        data.table = table_of(self.table, self.events, default=_TABLE)
        data.low, data.high = self.low, self.high
        if self.events is not None:
            data.events.CopyFrom(self.events.to_proto(aggregate="count" if self.events.value is None else "last"))


_MANY_FEATURES = 8
_COUNTS_WITHOUT_STEPS = 0.15
_VECTOR_CLIP = 0.15  # of the declared range
_KERNEL_VARIANCE = 0.15
_MAX_RATIO = 2.0**40  # of the noise sampler; the finest grid is that of the Gram matrices

Step = Literal["gramian", "gradient"]
_STEPS: tuple[Step, ...] = ("gramian", "gradient")
# Of gradient steps; see docs/dpam.md.
_GRADIENT_STEPS = 16
_GRADIENT_CLIP = 1.0 / 9.0  # of the declared range
_CLIP_WITHOUT_NOISE = 20.0
_GRADIENT_KERNEL_VARIANCE = 0.05
_DEVICES_SHARE = 0.01  # of mu^2, for the number of devices with data
_GRAMIAN_ALONE = (
    "bias_target_clip", "factor_target_clip", "bias_vector_clip", "weighting", "weight_exponent", "bias_share",
    "mass_share", "item_ridge",
)  # fmt: skip
# Signal of an average item below which a round of biases is all that can be learned, and below which are few factors.
_LEAST_STRENGTH, _WEAK_STRENGTH = 0.1, 0.4
# The same below which features are better as factors than as prior means of learned ones.
_STRENGTH_OF_FEATURES = 1.0
# The same of all items together: below it, their prior covariance is mostly noise.
_WEAK_COVARIANCE = 18.0


@_validate.strict_keywords
@dataclass(frozen=True)
class DPAM:
    """Differentially private alternating minimization: item biases first, then factors.

    Attributes:
      step: "gramian" solves the items' rows from released Gram matrices and right-hand sides; "gradient" filters
        released gradients, under a prior that the releases teach, and learns biases and factors at once: nearly always
        the better one, see docs/dpam.md. Its rank is 3 or more, since two factors follow from biases and masses.
      steps: steps on the factors; None is 0 for a rank of 0, else 3, and 16 of "gradient". A rank of 1 or 2 can do with
        0 gramian steps: its item rows are then functions of the released biases and counts.
      row_clip: L2 bound of a user's row; None is ``min(sqrt(rank), 1.8)``: rows have covariance 1, and longer ones cost
        more noise than their clip costs accuracy; 30 where there is no noise.
      bias_target_clip: bound of |value - centre - user bias| in the round of biases, in units of the values; None is
        the declared range, since the bound of all of them together makes the noise.
      factor_target_clip: bound of |residual| in the factor rounds; None as for biases.
      bias_vector_clip: bound of all these targets of a user together, as a weighted root mean square; the sensitivity
        follows from it. None is .15 of the declared range (.6 for 1 .. 5), which most users exceed: so they count
        alike, whatever the size of their residuals. Where there is no noise, the bound of one target.
      factor_vector_clip: the same in the factor rounds; None as for biases. Of "gradient", the L2 bound of a user's
        gradient in units of the values; None is a 9th of the declared range.
      weighting: "adaptive" gives rarely rated items more weight (noisy count ** -weight_exponent), "uniform" none.
      weight_exponent: from 0 to 1.
      count_share, bias_share: parts of mu^2 for counts and for biases; factors get the rest. Without steps, biases
        get all that counts leave.
      mass_share: part of the biases' mu^2 for weight masses; the rest is for target sums.
      gram_share: part of each factor round's mu^2 for Gram matrices; the rest is for right-hand sides.
      centre: public constant subtracted from every value; None is the 5/8 point of the declared range (3.5 for 1 .. 5).
      user_ridge: ridge on a user's row, in units of the residual variance: about 1 by Bayes, as rows have covariance 1.
        Of "gradient", of predictions alone.
      user_bias_ridge: ridge on a user's bias, in ratings.
      kernel_variance: of the smooth part of a user's taste, in units of the residual variance, for predictions alone:
        devices fit it on their own data, so it costs no privacy. 0 is none; None is .15 for a rank above 2 (.05 of
        "gradient"), else 0.
      item_ridge: ridge of an item's row, in ratings; the solve adds to it what the noise level asks for.
      start_seed: seed of the public random start.
      slices_per_device: rows that every device fetches per round; None is min(items, max(items per user, 320)).
      items_encoding: how the item rows are published, "float32" or "float16": half the bytes, at a rounding far below
        the noise (docs/partial-broadcast.md, section 10).

    With "gradient", ``count_share`` is of the items' masses and ``gram_share`` of the moments of users' rows, a few
    numbers per step. What the other step alone reads is refused there.

    Raises:
      ConfigurationError: a number is out of range.
    """

    models: ClassVar[tuple[type, ...]] = (MatrixFactorization,)
    data: ClassVar[tuple[type[TrainingData], ...]] = (RatingsData,)

    step: Step = "gramian"
    steps: int | None = None
    row_clip: float | None = None
    bias_target_clip: float | None = None
    factor_target_clip: float | None = None
    bias_vector_clip: float | None = None
    factor_vector_clip: float | None = None
    weighting: str = "adaptive"
    weight_exponent: float = 0.25
    count_share: float = 0.05
    bias_share: float = 0.3
    mass_share: float = 0.25
    gram_share: float = 0.1
    centre: float | None = None
    user_ridge: float = 0.6
    user_bias_ridge: float = 5.0
    kernel_variance: float | None = None
    item_ridge: float = 1.0
    start_seed: int = 1
    slices_per_device: int | None = None
    items_encoding: Encoding = "float32"

    def __post_init__(self) -> None:
        if self.steps is not None:
            _validate.integer(steps=self.steps, low=0, high=64)
        clips = ("row_clip", "bias_target_clip", "factor_target_clip", "bias_vector_clip", "factor_vector_clip")
        for name in clips:
            if (clip := getattr(self, name)) is not None:
                check_clips(**{name: clip})
        check_ridges(user_ridge=self.user_ridge, user_bias_ridge=self.user_bias_ridge)
        if self.kernel_variance is not None:
            _validate.within(kernel_variance=self.kernel_variance, low=0.0, high=MAX_KERNEL_VARIANCE)
        _validate.one_of(tuple(WEIGHTINGS), weighting=self.weighting)
        _validate.one_of(ITEMS_ENCODINGS, items_encoding=self.items_encoding)
        _validate.within(weight_exponent=self.weight_exponent, low=0.0, high=1.0)
        _validate.within(item_ridge=self.item_ridge, low=0.0, high=1e9)
        for name in ("count_share", "bias_share", "mass_share", "gram_share"):
            _validate.within(**{name: getattr(self, name)}, low=1e-3, high=1.0 - 1e-3)
        if self.count_share + self.bias_share >= 1.0:
            share_sum = self.count_share + self.bias_share
            raise ConfigurationError(f"Expected count_share + bias_share={share_sum!r} to be < 1: factors get the rest")
        _validate.one_of(_STEPS, step=self.step)
        if self.step == "gradient":
            self._check_gradient()
        if self.centre is not None:
            _validate.finite(centre=self.centre)
        _validate.integer(start_seed=self.start_seed, low=0, high=2**64 - 1)
        if self.slices_per_device is not None:
            _validate.integer(slices_per_device=self.slices_per_device, low=1, high=2**31 - 1)

    def _check_gradient(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        written = [name for name in _GRAMIAN_ALONE if getattr(self, name) != defaults[name]]
        if written:
            raise ConfigurationError(
                f"Expected no {', '.join(written)} with step='gradient', which does not read it; leave it out, or take "
                "step='gramian'"
            )

    @classmethod
    def recommended(
        cls, *, epsilon: float, delta: float, n_users: int, n_items: int, n_features: int = 0
    ) -> tuple[int, DPAM]:
        """(rank, configuration) for a budget and a population, from public numbers alone.

        The step and the rank follow from the signal of an average item, ``n_users * mu / n_items``: two factors that
        follow from biases and counts alone below .1, and above it gradient steps, which learn 2 further factors below
        .4, 8 below 4, 12 below 40 and 16 above; 4 at most where ``n_users * mu / sqrt(n_items)`` is below 18.
        Without privacy (epsilon infinite), set ``max_items_per_user`` and ``slices_per_device`` to values that do not
        bind.

        With 8 or more public features per item, counts and biases are enough below a signal of 1: the features are
        factors beside the derived ones. Above it they are prior means of what gradients learn.

        Raises:
          ConfigurationError: a number is out of range.
        """
        _validate.integer(n_users=n_users, low=1, high=10**12)
        _validate.integer(n_items=n_items, low=1, high=2**31 - 1)
        _validate.integer(n_features=n_features, low=0, high=MAX_FEATURES)
        if epsilon == math.inf:
            return 16, cls(steps=14, weighting="uniform", user_ridge=1.0, item_ridge=4.0)
        from odp.privacy.accounting import mu_for

        strength = mu_for(epsilon=epsilon, delta=delta) * n_users / n_items
        least = _STRENGTH_OF_FEATURES if n_features >= _MANY_FEATURES else _LEAST_STRENGTH
        if strength < least:
            return min(DERIVED_FACTORS + n_features, MAX_RANK), cls(steps=0, count_share=_COUNTS_WITHOUT_STEPS)
        if strength < _WEAK_STRENGTH:
            learned, steps = 2, 8
        elif strength * math.sqrt(n_items) < _WEAK_COVARIANCE:  # noise would pass for strong tastes
            learned, steps = 4, 8
        elif strength < 4.0:
            learned, steps = 8, 12
        else:
            learned, steps = 12 if strength < 40.0 else 16, 16
        masses = 0.05 if steps < 16 else 0.1
        return DERIVED_FACTORS + learned, cls(
            step="gradient", steps=steps, count_share=masses, gram_share=0.05, user_ridge=0.8
        )

    def _kernel_variance(self, rank: int) -> float:
        """As resolved. Raises ConfigurationError."""
        if self.kernel_variance and not rank:
            raise ConfigurationError(f"Expected kernel_variance={self.kernel_variance!r} to be 0 for a rank of 0")
        if self.kernel_variance is not None:
            return self.kernel_variance
        if self.step == "gradient":
            return _GRADIENT_KERNEL_VARIANCE
        return _KERNEL_VARIANCE if rank > DERIVED_FACTORS else 0.0

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """``resolve`` into a definition that has its model, data, privacy and cohort. Raises as that."""
        from odp.algorithms.release import sampling_of
        from odp.protocol.aggregation import noise_sharers

        resolved = self.resolve(
            definition.model, definition.data, definition.privacy, sampling_of(definition, 0),
            sharers=noise_sharers(definition.cohort),
        )  # fmt: skip
        definition.dpam.CopyFrom(resolved)

    def resolve(
        self,
        model: common_pb2.MatrixFactorizationModel,
        data: common_pb2.RatingsData,
        privacy: common_pb2.PrivacyTerms,
        sampling: Sampling | None = None,
        *,
        sharers: int = 0,
    ) -> common_pb2.DpamTraining:
        """Every number of the task, with the noise that makes all planned releases together (epsilon, delta)-DP.

        ``sampling`` is the draw of every round, None for full participation; with ``sharers``, so many devices at least
        add the noise in shares.

        An infinite epsilon means no noise at all: for comparison in simulations; no enclave accepts it.

        Raises:
          ConfigurationError: a number is out of range, or the noise is beyond what the sampler covers.
          PrivacyError: too many numbers get noise: the sampler alone uses up delta.
        """
        from odp.v1 import common_pb2

        if self.step == "gradient":
            return self._gradient(model, data, privacy, sampling, sharers)
        rank, items, places = model.rank, model.items, privacy.max_items_per_user
        steps = (3 if self.steps is None else self.steps) if rank else 0
        untrained_rank = DERIVED_FACTORS + model.item_features_width
        if rank > untrained_rank and not steps:
            raise ConfigurationError(
                f"Expected steps={self.steps!r} to be 1 or more for rank={rank}; a rank of {untrained_rank} needs none"
            )
        slices = max(places, 320) if self.slices_per_device is None else self.slices_per_device
        silent = privacy.epsilon == math.inf
        clip = data.high - data.low
        row_clip = 30.0 if silent else min(math.sqrt(rank), 1.8)
        training = common_pb2.DpamTraining(
            steps=steps,
            row_clip=(row_clip if self.row_clip is None else self.row_clip) if steps else 0.0,
            bias_target_clip=clip if self.bias_target_clip is None else self.bias_target_clip,
            factor_target_clip=(clip if self.factor_target_clip is None else self.factor_target_clip) if steps else 0.0,
            weighting=WEIGHTINGS[self.weighting],
            weight_exponent=self.weight_exponent if self.weighting == "adaptive" else 0.0,
            centre=data.low + 0.625 * (data.high - data.low) if self.centre is None else self.centre,
            user_ridge=self.user_ridge if rank else 0.0,
            user_bias_ridge=self.user_bias_ridge,
            kernel_variance=self._kernel_variance(rank),
            item_ridge=self.item_ridge if rank else 0.0,
            start_seed=self.start_seed,
            slices_per_device=min(slices, items),
            items_encoding=number_of(self.items_encoding),
        )
        vector_clip = clip * (1.0 if silent else _VECTOR_CLIP)
        training.bias_vector_clip = self.bias_vector_clip or min(vector_clip, training.bias_target_clip)
        if steps:
            training.factor_vector_clip = self.factor_vector_clip or min(vector_clip, training.factor_target_clip)
        if silent:
            return training
        draws = items * (3 + steps * ((rank + 1) * (rank + 2) // 2 + rank + 1))
        biases = self.bias_share if steps else 1.0 - self.count_share
        factors = (1.0 - self.count_share - biases) / steps if steps else 0.0
        total = _total_mu((self.count_share, biases, *[factors] * steps), privacy, draws, sampling, sharers)

        def noise(share: float) -> float:
            """Std of a release of sensitivity sqrt(K), in units of its clips, whose mu^2 is ``share`` of the total."""
            return math.sqrt(places / share) / total

        training.count_noise_std = noise(self.count_share)
        training.bias_mass_noise = noise(biases * self.mass_share)
        training.bias_sum_noise = noise(biases * (1.0 - self.mass_share))
        if steps:
            training.gram_noise = noise(factors * self.gram_share)
            training.target_noise = noise(factors * (1.0 - self.gram_share))
        if max(training.gram_noise, training.target_noise) / math.sqrt(places) * 2.0**32 > _MAX_RATIO:
            raise ConfigurationError(
                f"epsilon={privacy.epsilon!r} asks for more noise than can be sampled: raise epsilon or choose steps=0"
            )
        return training

    def _gradient(
        self,
        model: common_pb2.MatrixFactorizationModel,
        data: common_pb2.RatingsData,
        privacy: common_pb2.PrivacyTerms,
        sampling: Sampling | None,
        sharers: int,
    ) -> common_pb2.DpamTraining:
        """``resolve`` of gradient steps."""
        from odp.v1 import common_pb2

        rank, items, places = model.rank, model.items, privacy.max_items_per_user
        if rank <= DERIVED_FACTORS:
            raise ConfigurationError(
                f"Expected rank={rank} to be {DERIVED_FACTORS + 1} or more with step='gradient': {DERIVED_FACTORS} "
                "factors follow from biases and masses; take step='gramian' for fewer"
            )
        if self.steps == 0:
            raise ConfigurationError("Expected steps=0 to be 1 or more with step='gradient'")
        steps = self.steps or _GRADIENT_STEPS
        silent = privacy.epsilon == math.inf
        slices = max(places, 320) if self.slices_per_device is None else self.slices_per_device
        training = common_pb2.DpamTraining(
            gradient_steps=True,
            steps=steps,
            row_clip=self.row_clip or 1.8,
            factor_vector_clip=self.factor_vector_clip
            or (_CLIP_WITHOUT_NOISE if silent else _GRADIENT_CLIP) * (data.high - data.low),
            weighting=WEIGHTINGS["adaptive"],
            centre=data.low + 0.625 * (data.high - data.low) if self.centre is None else self.centre,
            user_ridge=self.user_ridge,
            user_bias_ridge=self.user_bias_ridge,
            kernel_variance=self._kernel_variance(rank),
            start_seed=self.start_seed,
            slices_per_device=min(slices, items),
            items_encoding=number_of(self.items_encoding),
        )
        if silent:
            return training
        width = 1 + rank - DERIVED_FACTORS
        step = (1.0 - self.count_share - _DEVICES_SHARE) / steps
        coordinates = items + 1 + steps * (items * width + width * (width + 1) // 2 + 1 + DERIVED_FACTORS)
        shares = (self.count_share + _DEVICES_SHARE, *[step] * steps)
        total = _total_mu(shares, privacy, coordinates, sampling, sharers)
        training.count_noise_std = math.sqrt(places / self.count_share) / total
        training.bias_mass_noise = 1.0 / math.sqrt(_DEVICES_SHARE) / total
        training.target_noise = 1.0 / math.sqrt(step * (1.0 - self.gram_share)) / total
        training.gram_noise = 1.0 / math.sqrt(step * self.gram_share) / total
        return training


def _total_mu(
    shares: Sequence[float],
    privacy: common_pb2.PrivacyTerms,
    coordinates: int,
    sampling: Sampling | None,
    sharers: int,
) -> float:
    """Sensitivity over noise of all rounds together, whose squares are divided by ``shares``.

    Raises:
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    from odp.crypto.secure_aggregation.parameters import graph_delta
    from odp.privacy.accounting import mu_for_shares
    from odp.privacy.calibration import total_mu_for

    budget = {"epsilon": privacy.epsilon, "delta": privacy.delta}
    if sharers:
        return mu_for_shares(**budget, coordinates=coordinates, graph_delta=graph_delta() * len(shares))
    return total_mu_for(shares, **budget, coordinates=coordinates, sampling=sampling)

"""What a developer chooses for DPAM on implicit feedback, and how it becomes the numbers of a task definition.

What a developer says of the items that a task on implicit feedback reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp._validate import strict_keywords
from odp.algorithms.choices import TrainingData
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS
from odp.algorithms.factorization.terms import WEIGHTINGS, check_clips
from odp.algorithms.implicit.userside import LEAST_CONFIDENCE, MOST_CONFIDENCE
from odp.errors import ConfigurationError, DataError
from odp.models.events import Events, table_of
from odp.models.matrix_factorization import MatrixFactorization

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.privacy.events import Sampling
    from odp.v1 import common_pb2

_TABLE = "events"


@strict_keywords
@dataclass(frozen=True)
class ImplicitData:
    """Items that the device saw, used or bought, in its local store: no opinions, so every item counts once.

    Of a table of values, rows above 0 say that something happened. With ``confidence``, values are counts, such as of
    plays: in all that a device computes of its own items, one with a count has 1 + confidence log(1 + count) times the
    weight. Bounds and noise stay as they are, and the released counts are of people.

    It goes with ``training=odp.ImplicitDPAM()``.

    Attributes:
      table: Name of the local table of items.
      events: Takes the items of events instead, as the task says: see ``odp.Events``; without value and aggregate,
        unless there is a ``confidence``.
      confidence: From 0.001 to 1,000; None counts every item once. Only for adaptive weights.

    Raises:
      ConfigurationError: the confidence is out of range.

    Source: Hu, Koren, Volinsky 2008, equation 6 with an epsilon of 1.
    """

    kind: ClassVar[str] = "implicit"

    table: str = _TABLE
    events: Events | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        table_of(self.table, self.events, default=_TABLE)
        if self.confidence is not None:
            _validate.within(confidence=self.confidence, low=LEAST_CONFIDENCE, high=MOST_CONFIDENCE)

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a value is 0 or less: such a row does not say that something happened.

        With a confidence, also where all values are 1: such a column has no counts.
        """
        if silent := int((ratings.values <= 0).sum()):
            raise DataError(
                f"{silent:,} rows of data set {ratings.name!r} have a value of 0 or less, which does not say 'seen': "
                "load the table with implicit=True, or leave them out with ratings.take(ratings.values > 0)"
            )
        if self.confidence is not None and (ratings.values == 1.0).all():
            raise DataError(
                f"all values of data set {ratings.name!r} are 1, and confidence={self.confidence!r} is for counts: "
                "load the table with as_written=True and its column of counts as value"
            )

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes the wire form into a definition."""
        definition.implicit.table = table_of(self.table, self.events, default=_TABLE)
        if self.confidence is not None:
            definition.implicit.confidence = self.confidence
        if self.events is not None:
            counted = "count" if self.events.value is None else "sum"
            aggregate = "" if self.confidence is None else counted
            definition.implicit.events.CopyFrom(self.events.to_proto(aggregate=aggregate))


# Chosen on validation parts of Gowalla (3,000 users to all), likes of MovieLens-1M and invented visits.
_LEAST_REACH, _FULL_REACH = 15.0, 100.0
# Items that a start tells of, whatever share of the catalogue they are. Chosen on validation parts of invented visits
# to 60 to 2,000 places.
_SMALL_HEAD = 1000
_MAX_RATIO = 2.0**40  # of the noise sampler; the finest grid is that of the right-hand sides


@_validate.strict_keywords
@dataclass(frozen=True)
class ImplicitDPAM:
    """Differentially private alternating minimization over all pairs: counts first, then factors.

    Minimises |X - U V'|^2, X the interactions weighted by item, each user's of length 1: private subspace iteration,
    whose steps are combined (docs/dpam.md).

    Attributes:
      steps: alternating steps; the first starts from what public item features tell, and from public random rows.
      row_clip: L2 bound of a user's row; None is 1. The server scales item rows so that most users' rows exceed it: so
        users count alike, whatever they have seen. Where there is no noise, no row exceeds it.
      weighting: "adaptive" lets every user use its whole bound: one with few items gives each a larger weight;
        "uniform" gives 1 to each item.
      weight_exponent: with adaptive weights, rarer items get noisy count ** -weight_exponent; from 0 to 1.
      head_items: number of items, those of largest noisy count, whose rows are learned; users' bounds go to these
        alone; None is those whose signal may stand out of the noise, by the noisy counts; all where there is no noise.
        At least the rank.
      count_share: part of mu^2 for counts; factor rounds get the rest, in equal parts.
      start_seed: seed of the public random start.
      slices_per_device: rows that every device fetches per round; None is min(items, max(items per user, 320)).

    Raises:
      ConfigurationError: a number is out of range.
    """

    models: ClassVar[tuple[type, ...]] = (MatrixFactorization,)
    data: ClassVar[tuple[type[TrainingData], ...]] = (ImplicitData,)

    steps: int = 4
    row_clip: float | None = None
    weighting: str = "adaptive"
    weight_exponent: float = 0.5
    head_items: int | None = None
    count_share: float = 0.2
    start_seed: int = 1
    slices_per_device: int | None = None

    def __post_init__(self) -> None:
        _validate.integer(steps=self.steps, low=1, high=64)
        if self.row_clip is not None:
            check_clips(row_clip=self.row_clip)
        _validate.one_of(tuple(WEIGHTINGS), weighting=self.weighting)
        _validate.within(weight_exponent=self.weight_exponent, low=0.0, high=1.0)
        if self.head_items is not None:
            _validate.integer(head_items=self.head_items, low=1, high=2**31 - 1)
        _validate.within(count_share=self.count_share, low=1e-3, high=1.0 - 1e-3)
        _validate.integer(start_seed=self.start_seed, low=0, high=2**64 - 1)
        if self.slices_per_device is not None:
            _validate.integer(slices_per_device=self.slices_per_device, low=1, high=2**31 - 1)

    @classmethod
    def recommended(
        cls,
        *,
        epsilon: float,
        delta: float,
        n_users: int,
        n_items: int,
        with_features: bool = False,
        start_items: int = 0,
    ) -> tuple[int, ImplicitDPAM]:
        """(rank, configuration) for a budget and a population, from public numbers alone.

        Whether tastes are heard depends on ``n_users * mu / sqrt(n_items)``: a sum over users grows with n, and the
        noise of a whole direction with the root of the items. Below 15 the model is popularity alone, which then ranks
        better: rank 1, and nearly all of the budget for counts. Below 100 the rank is 16 and counts have more of the
        budget than from there on, where the rank is 64. Where public features may tell tastes (``with_features``), it
        is never popularity alone: below 15 there is one step, with half of the budget, for half of the items. A start
        that has factors of ``start_items`` of the items tells them best: the steps begin with it, 4 are enough, and
        these items, up to a thousand or a quarter of all, are worth the noise of their rows.
        Without privacy (epsilon infinite), set ``max_items_per_user`` and ``slices_per_device`` to values that do not
        bind.

        Raises:
          ConfigurationError: a number is out of range.
        """
        _validate.integer(n_users=n_users, low=1, high=10**12)
        _validate.integer(n_items=n_items, low=1, high=2**31 - 1)
        _validate.integer(start_items=start_items, low=0, high=n_items)
        if epsilon == math.inf:
            return 64, cls(steps=10)
        from odp.privacy.accounting import mu_for

        reach = mu_for(epsilon=epsilon, delta=delta) * n_users / math.sqrt(n_items)
        if start_items:
            rank, share = (16, 0.3) if reach < _FULL_REACH else (64, 0.2)
            rank = min(rank, n_items)
            return rank, cls(
                steps=4, count_share=share, head_items=max(rank, min(start_items, max(n_items // 4, _SMALL_HEAD)))
            )
        if reach < _LEAST_REACH:
            if with_features:
                rank = min(16, n_items)
                return rank, cls(steps=1, count_share=0.5, head_items=max(rank, n_items // 2))
            return 1, cls(steps=1, count_share=0.97)
        if reach < _FULL_REACH:
            return min(16, n_items), cls(steps=8, count_share=0.3)
        return min(64, n_items), cls(steps=12, count_share=0.2)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """``resolve`` into a definition that has its model, data, privacy and cohort. Raises as that."""
        from odp.algorithms.release import sampling_of

        if definition.implicit.confidence and self.weighting != "adaptive":
            raise ConfigurationError(
                f"Expected no confidence={definition.implicit.confidence!r} with weighting={self.weighting!r}, which "
                "gives every item the same weight"
            )
        definition.dpam.CopyFrom(self.resolve(definition.model, definition.privacy, sampling_of(definition, 0)))

    def resolve(
        self,
        model: common_pb2.MatrixFactorizationModel,
        privacy: common_pb2.PrivacyTerms,
        sampling: Sampling | None = None,
    ) -> common_pb2.DpamTraining:
        """Every number of the task, with the noise that makes all planned releases together (epsilon, delta)-DP.

        ``sampling`` is the draw of every round, None for full participation.

        An infinite epsilon means no noise at all: for comparison in simulations; no enclave accepts it.

        Raises:
          ConfigurationError: a number is out of range, or the noise is beyond what the sampler covers.
          PrivacyError: too many numbers get noise: the sampler alone uses up delta.
        """
        from odp.v1 import common_pb2

        rank, items, places = model.rank, model.items, privacy.max_items_per_user
        if not rank:
            raise ConfigurationError("Expected rank=0 to be 1 or more: without factors, implicit feedback is counts")
        silent = privacy.epsilon == math.inf
        slices = max(places, 320) if self.slices_per_device is None else self.slices_per_device
        training = common_pb2.DpamTraining(
            steps=self.steps,
            row_clip=1.0 if self.row_clip is None else self.row_clip,
            weighting=WEIGHTINGS[self.weighting],
            weight_exponent=self.weight_exponent if self.weighting == "adaptive" else 0.0,
            start_seed=self.start_seed,
            slices_per_device=min(slices, items),
            head_items=items if silent and not self.head_items else min(items, self.head_items or 0),
        )
        if silent:
            return training
        from odp.privacy.calibration import total_mu_for

        factors = (1.0 - self.count_share) / self.steps
        total = total_mu_for(
            (self.count_share, *[factors] * self.steps),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            coordinates=items + self.steps * items * rank,
            sampling=sampling,
        )

        # Std, in units of clips, of a release of sensitivity sqrt(K) that has its share of mu^2.
        bound = math.sqrt(places) / total
        training.count_noise_std = bound / math.sqrt(self.count_share)
        training.target_noise = bound / math.sqrt(factors)
        if training.target_noise / math.sqrt(places) * ROW_UNITS * WEIGHT_UNITS > _MAX_RATIO:
            raise ConfigurationError(
                f"epsilon={privacy.epsilon!r} asks for more noise than can be sampled: raise epsilon"
            )
        return training

"""What a developer chooses for DPAM on implicit feedback, and how it becomes the numbers of a task definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.choices import TrainingData
from odp.algorithms.factorization.terms import WEIGHTINGS, check_clips, check_ridges
from odp.algorithms.implicit.data import ImplicitData
from odp.errors import ConfigurationError
from odp.models.matrix_factorization import MatrixFactorization

if TYPE_CHECKING:
    from odp.privacy.events import Sampling
    from odp.v1 import common_pb2

_MAX_RATIO = 2.0**40  # of the noise sampler; the finest grid is that of the Gram matrices
_SILENT_CLIP = 8.0


@_validate.strict_keywords
@dataclass(frozen=True)
class ImplicitDPAM:
    """Differentially private alternating minimization of the iALS objective: counts first, then factors.

    Sum over observed pairs of (1 - <u, v>)^2 + unobserved_weight * sum over all pairs of <u, v>^2 + ridges.

    Attributes:
      steps: alternating steps; the first starts from public random rows.
      unobserved_weight: weight of an unobserved pair, or alpha_0; larger catalogues need less.
      row_clip: L2 bound of a user's row; None is 0.3, which most rows exceed: so users count alike, whatever they have
        seen. 8 where there is no noise.
      weighting: "adaptive" lets every user use its whole bound: one with few items gives each a larger weight;
        "uniform" gives 1 to each item.
      weight_exponent: with adaptive weights, rarer items get noisy count ** -weight_exponent; from 0 to 1.
      head_items: number of items, those of largest noisy count, whose rows are learned; users' bounds go to these
        alone; None is those whose signal may stand out of the noise, by the noisy counts; all where there is no noise.
      item_grams: whether each item's Gram matrix is released; None is only where there is no noise. Without it, the
        mean over all users stands in, and the noise on the right-hand sides is less.
      count_share: part of mu^2 for counts; factors get the rest.
      gramian_share: part of each factor round's mu^2 for the users' Gramian.
      gram_share: part of it for the items' Gram matrices, where they are released; right-hand sides get the rest.
      user_ridge: ridge on a user's row, in observed items.
      item_ridge: ridge on an item's row, in users of mean squared row.
      start_seed: seed of the public random start.
      slices_per_device: rows that every device fetches per round; None is min(items, max(items per user, 320)).

    Raises:
      ConfigurationError: a number is out of range.
    """

    models: ClassVar[tuple[type, ...]] = (MatrixFactorization,)
    data: ClassVar[type[TrainingData]] = ImplicitData

    steps: int = 3
    unobserved_weight: float = 0.03
    row_clip: float | None = None
    weighting: str = "adaptive"
    weight_exponent: float = 0.5
    head_items: int | None = None
    item_grams: bool | None = None
    count_share: float = 0.1
    gramian_share: float = 0.05
    gram_share: float = 0.3
    user_ridge: float = 1.0
    item_ridge: float = 300.0
    start_seed: int = 1
    slices_per_device: int | None = None

    def __post_init__(self) -> None:
        _validate.integer(steps=self.steps, low=1, high=64)
        _validate.positive(unobserved_weight=self.unobserved_weight)
        check_ridges(user_ridge=self.user_ridge)
        if self.row_clip is not None:
            check_clips(row_clip=self.row_clip)
        _validate.one_of(tuple(WEIGHTINGS), weighting=self.weighting)
        _validate.within(weight_exponent=self.weight_exponent, low=0.0, high=1.0)
        if self.head_items is not None:
            _validate.integer(head_items=self.head_items, low=1, high=2**31 - 1)
        if self.item_grams not in (None, True, False):
            raise ConfigurationError(f"Expected item_grams={self.item_grams!r} to be true or false")
        shares = {"count_share": self.count_share, "gramian_share": self.gramian_share, "gram_share": self.gram_share}
        for name, share in shares.items():
            _validate.within(**{name: share}, low=1e-3, high=1.0 - 1e-3)
        if self.gramian_share + self.gram_share >= 1.0:
            given = self.gramian_share + self.gram_share
            raise ConfigurationError(f"Expected gramian_share + gram_share={given!r} to be < 1: targets get the rest")
        _validate.within(item_ridge=self.item_ridge, low=0.0, high=1e9)
        _validate.integer(start_seed=self.start_seed, low=0, high=2**64 - 1)
        if self.slices_per_device is not None:
            _validate.integer(slices_per_device=self.slices_per_device, low=1, high=2**31 - 1)

    @classmethod
    def recommended(cls, *, epsilon: float, delta: float, n_users: int, n_items: int) -> tuple[int, ImplicitDPAM]:
        """(rank, configuration) for a budget and a population, from public numbers alone.

        The rank grows with the signal of an average item, ``n_users * mu / n_items``: 8, from .25 on 16, from .5 on 32.
        A weak signal has more of the budget for counts and a stronger ridge on items.
        Without privacy (epsilon infinite), set ``max_items_per_user`` and ``slices_per_device`` to values that do not
        bind.

        Raises:
          ConfigurationError: a number is out of range.
        """
        _validate.integer(n_users=n_users, low=1, high=10**12)
        _validate.integer(n_items=n_items, low=1, high=2**31 - 1)
        if epsilon == math.inf:
            return 32, cls(steps=10, weighting="uniform", unobserved_weight=0.005, user_ridge=3.0, item_ridge=3.0)
        from odp.privacy.accounting import mu_for

        strength = mu_for(epsilon=epsilon, delta=delta) * n_users / n_items
        if strength < 0.5:
            chosen = cls(steps=4, count_share=0.25, user_ridge=0.5, item_ridge=1200.0)
            return 8 if strength < 0.25 else 16, chosen
        return 32, cls(steps=4, count_share=0.2, user_ridge=0.5, item_ridge=600.0)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """``resolve`` into a definition that has its model, data, privacy and cohort. Raises as that."""
        from odp.algorithms.release import sampling_of

        resolved = self.resolve(definition.model, definition.privacy, sampling_of(definition, 0))
        definition.dpam.CopyFrom(resolved)

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
        grams = silent if self.item_grams is None else self.item_grams
        slices = max(places, 320) if self.slices_per_device is None else self.slices_per_device
        training = common_pb2.DpamTraining(
            steps=self.steps,
            row_clip=(_SILENT_CLIP if silent else 0.3) if self.row_clip is None else self.row_clip,
            weighting=WEIGHTINGS[self.weighting],
            weight_exponent=self.weight_exponent if self.weighting == "adaptive" else 0.0,
            user_ridge=self.user_ridge,
            item_ridge=self.item_ridge,
            start_seed=self.start_seed,
            slices_per_device=min(slices, items),
            unobserved_weight=self.unobserved_weight,
            head_items=items if silent and not self.head_items else min(items, self.head_items or 0),
            item_grams=grams,
        )
        if silent:
            return training
        from odp.privacy.calibration import total_mu_for

        pairs = rank * (rank + 1) // 2
        draws = items + self.steps * (items * (rank + (pairs if grams else 0)) + pairs)
        factors = (1.0 - self.count_share) / self.steps
        total = total_mu_for(
            (self.count_share, *[factors] * self.steps),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            coordinates=draws,
            sampling=sampling,
        )
        gram_share = self.gram_share if grams else 0.0

        def noise(bound: float, share: float) -> float:
            """Std, in units of clips, of a release of sensitivity ``bound`` whose mu^2 is ``share`` of the total."""
            return bound / (math.sqrt(share) * total)

        root = math.sqrt(places)
        training.count_noise_std = noise(root, self.count_share)
        training.gramian_noise = noise(1.0, factors * self.gramian_share)
        training.target_noise = noise(root, factors * (1.0 - self.gramian_share - gram_share))
        if grams:
            training.gram_noise = noise(root, factors * gram_share)
        if max(training.gramian_noise, training.gram_noise / root * 2.0**10) * 2.0**22 > _MAX_RATIO:
            raise ConfigurationError(
                f"epsilon={privacy.epsilon!r} asks for more noise than can be sampled: raise epsilon"
            )
        return training

"""Public recipes: a whole task from a budget and the size of a data set, without reading any rating.

=========  =============================================================================================
auto       what ``DPAM.recommended`` says for the data set's numbers of users and items
ml-1m      what it says for 6,040 users and 3,706 items, whatever the data set: a fixed recipe to quote
=========  =============================================================================================

Both take up to 300 items per user; auto also knows implicit feedback, of which it takes up to 30. Sizes of
populations and catalogues, and declared bounds, count as public. With an
infinite ε both train without privacy: 14 steps at rank 16, uniform weights, bounds that do not bind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy.typing as npt

from odp import _validate
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.dpam.terms import DERIVED_FACTORS, MAX_ITEMS_PER_USER, MAX_RANK
from odp.algorithms.implicit.config import ImplicitData, ImplicitDPAM
from odp.datasets.catalogue import catalogue_keys
from odp.datasets.item_features import item_features
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.models.matrix_factorization import MatrixFactorization
from odp.models.warm_start import WarmStart
from odp.protocol.terms import Cohort, UserLevelDP
from odp.research.simulation.inputs import require_scale
from odp.tasks.task import Task

PRESETS = ("auto", "ml-1m")

_ML_1M_USERS, _ML_1M_ITEMS = 6040, 3706
_UNBOUND = 2000
# Of implicit feedback: a user of Gowalla has 24 items on average. Counts are noisier the larger it is, factors are not.
_EVENTS = 30
#: Items per user of gradient steps, whose noise does not grow with them: 600 upload 13 to 23 KB a round.
_GRADIENT_ITEMS = 600
# The group of features that rank and rounds are chosen for. An earlier model says where items begin, at any step.
_SURE = "features"


def preset_task(
    name: str,
    ratings: Ratings,
    *,
    epsilon: float,
    delta: float,
    features: bool | Mapping[str, npt.ArrayLike] = False,
    start: WarmStart | None = None,
) -> Task:
    """The task of preset ``name`` for ``ratings``, of which only sizes and declared bounds are read.

    With ``features`` the model also uses the public item features of the data set: genres, and years in titles; or
    groups by name, as of ``odp.datasets.auto_features``. Rank and rounds follow from the group "features" alone: other
    groups may tell little, and become columns where no factor is learned. With ``start`` the model begins with the
    items of an earlier one that have the same titles, or ids where there are no titles.

    Raises:
      ConfigurationError: the name is unknown (the nearest one is named), or a budget is out of range.
      DataError: the data set has no users or no items; or has no public features; or holds implicit feedback, which
        only "auto" is for.
      PrivacyError: ``delta`` is no guarantee at this number of users.
    """
    _validate.one_of(PRESETS, preset=name)
    if not ratings.n_users or not ratings.n_items:
        raise DataError(f"the data set {ratings.name!r} has {ratings.n_users} users and {ratings.n_items} items")
    require_scale(ratings)
    if ratings.implicit:
        if name != "auto":
            raise DataError(f"the data set {ratings.name!r} holds implicit feedback: take preset auto")
        items_with_factors = 0 if start is None else start.told(catalogue_keys(ratings))
        return _implicit_task(
            ratings, _model(ratings, features, start), items_with_factors, epsilon=epsilon, delta=delta
        )
    privacy = UserLevelDP(epsilon=epsilon, delta=delta)
    users, items = (_ML_1M_USERS, _ML_1M_ITEMS) if name == "ml-1m" else (ratings.n_users, ratings.n_items)
    model = _model(ratings, features, start)
    groups = () if model.grouped_features is None else model.grouped_features.groups
    width = sum(size for _, size in groups)
    sure = sum(size for name, size in groups if name == _SURE)
    rank, training = DPAM.recommended(epsilon=epsilon, delta=delta, n_users=users, n_items=items, n_features=sure)
    if training.step == "gradient":
        privacy = dataclasses.replace(privacy, max_items_per_user=min(_GRADIENT_ITEMS, ratings.n_items))
    elif not training.steps:
        rank = max(rank, min(DERIVED_FACTORS + width, MAX_RANK))
    if epsilon == math.inf:
        bound = min(_UNBOUND, ratings.n_items, MAX_ITEMS_PER_USER)
        privacy = dataclasses.replace(privacy, max_items_per_user=bound)
        training = dataclasses.replace(training, slices_per_device=ratings.n_items)
    if rank > ratings.n_items:
        rank = ratings.n_items
        if training.step == "gramian":
            steps = max(training.steps or 0, int(rank > DERIVED_FACTORS + width))
            training = dataclasses.replace(training, steps=steps)
        elif rank <= DERIVED_FACTORS:
            rank, training = min(rank, DERIVED_FACTORS), DPAM(steps=0)
    return Task(
        name=f"preset-{name}",
        model=dataclasses.replace(model, rank=rank),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=privacy,
        training=training,
        cohort=Cohort(minimum=min(100, ratings.n_users), goal=ratings.n_users),
    )


def _model(
    ratings: Ratings, features: bool | Mapping[str, npt.ArrayLike], start: WarmStart | None
) -> MatrixFactorization:
    """Of rank 0, with what is public of the items."""
    return MatrixFactorization(
        items=ratings.n_items,
        item_features=features if isinstance(features, Mapping) else item_features(ratings) if features else None,
        start=start,
        item_keys=None if start is None else catalogue_keys(ratings),
    )


def _implicit_task(
    ratings: Ratings, model: MatrixFactorization, start_items: int, *, epsilon: float, delta: float
) -> Task:
    users, items = ratings.n_users, ratings.n_items
    rank, training = ImplicitDPAM.recommended(
        epsilon=epsilon, delta=delta, n_users=users, n_items=items, with_features=model.features is not None,
        start_items=start_items,
    )  # fmt: skip
    bound = min(_UNBOUND if epsilon == math.inf else _EVENTS, items, MAX_ITEMS_PER_USER)
    if epsilon == math.inf:
        training = dataclasses.replace(training, slices_per_device=items)
    return Task(
        name="preset-auto",
        model=dataclasses.replace(model, rank=min(rank, items)),
        data=ImplicitData(),
        privacy=UserLevelDP(epsilon=epsilon, delta=delta, max_items_per_user=bound),
        training=training,
        cohort=Cohort(minimum=min(100, users), goal=users),
    )

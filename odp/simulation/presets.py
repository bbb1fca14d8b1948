"""Public recipes: a whole task from a budget and the size of a data set, without looking at a single rating.

=========  =============================================================================================
auto       what ``DPAM.recommended`` says for the data set's numbers of users and items
ml-1m      what it says for 6,040 users and 3,706 items, whatever the data set: a fixed recipe to quote
=========  =============================================================================================

Both take up to 300 items per user. Sizes of populations and catalogues, and declared bounds, count as public. With an
infinite ε both train without privacy: 14 steps at rank 16, uniform weights, bounds that do not bind.
"""

from __future__ import annotations

import dataclasses
import math

from odp import _validate
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.terms import DERIVED_FACTORS, MAX_ITEMS_PER_USER
from odp.datasets.item_features import item_features
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.models.matrix_factorization import MatrixFactorization
from odp.task import Cohort, RatingsData, Task, UserLevelDP

PRESETS = ("auto", "ml-1m")

_ML_1M_USERS, _ML_1M_ITEMS = 6040, 3706
_UNBOUND = 2000


def preset_task(name: str, ratings: Ratings, *, epsilon: float, delta: float, features: bool = False) -> Task:
    """The task of preset ``name`` for ``ratings``, of which only sizes and declared bounds are read.

    With ``features`` the model also uses the public item features of the data set: genres, and years in titles.

    Raises:
      ConfigurationError: the name is unknown (the nearest one is named), or a budget is out of range.
      DataError: the data set has no users or no items, or holds implicit feedback; or has no public features.
      PrivacyError: ``delta`` is no guarantee at this number of users.
    """
    _validate.one_of(PRESETS, preset=name)
    if ratings.implicit:
        raise DataError(f"the data set {ratings.name!r} holds implicit feedback; the presets are for ratings")
    if not ratings.n_users or not ratings.n_items:
        raise DataError(f"the data set {ratings.name!r} has {ratings.n_users} users and {ratings.n_items} items")
    privacy = UserLevelDP(epsilon=epsilon, delta=delta)
    users, items = (_ML_1M_USERS, _ML_1M_ITEMS) if name == "ml-1m" else (ratings.n_users, ratings.n_items)
    matrix = item_features(ratings) if features else None
    width = 0 if matrix is None else matrix.shape[1]
    rank, training = DPAM.recommended(epsilon=epsilon, delta=delta, n_users=users, n_items=items, n_features=width)
    if epsilon == math.inf:
        bound = min(_UNBOUND, ratings.n_items, MAX_ITEMS_PER_USER)
        privacy = dataclasses.replace(privacy, max_items_per_user=bound)
        training = dataclasses.replace(training, slices_per_device=ratings.n_items)
    if rank > ratings.n_items:
        rank = ratings.n_items
        training = dataclasses.replace(training, steps=max(training.steps or 0, int(rank > DERIVED_FACTORS + width)))
    return Task(
        name=f"preset-{name}",
        model=MatrixFactorization(items=ratings.n_items, rank=rank, item_features=matrix),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=privacy,
        training=training,
        cohort=Cohort(minimum=min(100, ratings.n_users), goal=ratings.n_users),
    )

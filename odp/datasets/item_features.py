"""A matrix of public item features from what a data set says about its items, for ``item_features=`` of a model.

=============================  =================================================================================
columns                        value
=============================  =================================================================================
one per feature (genre flag)   feature / sqrt(sum of the item's features): rows of norm 1 for flags, or 0
11 knots of the release year   1 at the knot, falling in a straight line to 0 at its neighbours; they add up to 1
=============================  =================================================================================

The year is the "(1995)" at the end of a MovieLens title. There is no column of ones: models have an intercept.

``auto_features`` adds texts, each kind as a group of its own, whose weight the training learns.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from odp.datasets.item_texts import ItemTexts
from odp.datasets.ratings import Ratings
from odp.datasets.text_columns import text_columns
from odp.errors import DataError

_YEAR = re.compile(r"\((\d{4})\)\s*$")
# Public and fixed: decades, closer together where most films of MovieLens are from.
_KNOTS = (1920, 1930, 1940, 1950, 1960, 1970, 1980, 1985, 1990, 1995, 2000)
# Below this share of dated titles the years would say which items lack one, not when they are from.
_DATED = 0.5


def item_features(ratings: Ratings) -> npt.NDArray[np.float32]:
    """Features float32 [n_items, p]: the data set's own, scaled by row, and release years where titles end in one.

    No rating is read. An item without a year gets zeros there.

    Raises:
      DataError: the data set has neither features nor years.
    """
    parts = [part for part in (_flags(ratings), _years(ratings)) if part is not None]
    if not parts:
        raise DataError(f"the data set {ratings.name!r} has no public item features: no genres and no years in titles")
    return np.concatenate(parts, axis=1).astype(np.float32)


def auto_features(ratings: Ratings, texts: ItemTexts | None = None) -> dict[str, npt.NDArray[np.float32]]:
    """All public features of a data set as groups float32 [n_items, p] by name, for ``item_features=`` of a model.

    "features" are those of :func:`item_features`, where there are any. "title" and the columns of ``texts`` become 32
    columns each by :func:`text_columns`; a column "title" of ``texts`` stands in for the data set's titles. The
    training estimates how much each group tells, so a group that tells nothing does no harm. Add groups of your own,
    such as embeddings of images: ``auto_features(ratings) | {"image": matrix}``.

    No rating is read.

    Raises:
      DataError: there are no genres, and no texts that several items share words of; or ``texts`` names an item that
        the data set does not have.
    """
    groups = {"features": item_features(ratings)} if has_item_features(ratings) else {}
    named: dict[str, list[str]] = {} if ratings.titles is None else {"title": list(ratings.titles)}
    named |= {} if texts is None else texts.of(ratings)
    for name, column in named.items():
        derived = text_columns(column)
        if derived.shape[1]:
            groups["features of texts" if name == "features" else name] = derived
    if not groups:
        raise DataError(
            f"the data set {ratings.name!r} has no public item features: no genres, and no texts with words in common"
        )
    return groups


def has_item_features(ratings: Ratings) -> bool:
    """Whether :func:`item_features` finds anything."""
    return _flags(ratings) is not None or _years(ratings) is not None


def _flags(ratings: Ratings) -> npt.NDArray[np.float64] | None:
    if ratings.features is None or not ratings.features.shape[1]:
        return None
    features = ratings.features.astype(np.float64)
    norm = np.sqrt(np.abs(features).sum(axis=1, keepdims=True))
    return np.asarray(features / np.where(norm > 0, norm, 1.0))


def _years(ratings: Ratings) -> npt.NDArray[np.float64] | None:
    matches = [_YEAR.search(title) for title in ratings.titles or ()]
    dated = np.array([match is not None for match in matches], dtype=np.bool_)
    if not len(matches) or dated.mean() < _DATED:
        return None
    years = np.array([float(match[1]) if match else 0.0 for match in matches])
    basis = np.stack([np.interp(years, _KNOTS, row) for row in np.eye(len(_KNOTS))], axis=1)
    return np.asarray(np.where(dated[:, None], basis, 0.0))

"""Synthetic ratings of MovieLens shape, for work without a download.

A rating is a sum of parts whose spread is chosen, then rounded to stars and clipped to [1, 5]::

    3.6 + user bias (std 0.4) + item bias (std 0.5) + <user factor, item factor> (std 0.5) + noise

Genre flags explain half of the variance of the item factors and 30 % of that of the item biases, so item features help.
Item popularity falls as a power of the rank; the number of ratings of a user is log-normal, at least 5.
Everything is a function of the arguments, ``seed`` included.

Also reads the arguments of invented data in a name, as in ``synthetic:n_users=50,seed=3``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.ratings import Ratings
from odp.errors import DataError

MEAN = 3.6
USER_STD, ITEM_STD, SIGNAL_STD = 0.4, 0.5, 0.5
GENRE_SHARE_OF_FACTORS, GENRE_SHARE_OF_BIAS = 0.5, 0.3
_FEWEST = 5
_ACTIVITY_SIGMA = 0.9  # log-normal spread; MovieLens-1M has about this
ZIPF = 0.8
_BLOCK_CELLS = 4_000_000  # user x item cells drawn at once: 32 MB

_GENRES = (
    "Drama",
    "Comedy",
    "Action",
    "Romance",
    "Space",
    "Mystery",
    "Nature",
    "History",
    "Music",
    "Animation",
    "Crime",
    "Sport",
    "Fantasy",
    "Travel",
    "Family",
    "Robots",
    "Sea",
    "Food",
    "Ghosts",
    "Trains",
    "Mountains",
    "Medicine",
    "Law",
    "Circus",
)

Floats = npt.NDArray[np.float64]


def synthetic_movielens(
    *,
    n_users: int = 1000,
    n_items: int = 600,
    ratings_per_user: float = 40,
    rank: int = 4,
    n_genres: int = 12,
    noise: float = 0.7,
    half_stars: bool = False,
    seed: int = 1,
) -> Ratings:
    """Draws a rating data set of MovieLens shape, with titles, genre flags and an order in time.

    Args:
      n_users, n_items: sizes; some unpopular items may stay without ratings.
      ratings_per_user: mean number of ratings of a user, before the bounds 5 and ``n_items``.
      rank: dimensions of the factors.
      n_genres: genre flags; every item has one to three.
      noise: standard deviation of the part of a rating that nothing explains, before rounding (stars).
      half_stars: ratings 1, 1.5, ..., 5 instead of 1, 2, ..., 5.
      seed: seed of numpy's PCG64.

    Raises:
      ConfigurationError: an argument is out of range.
    """
    _validate.integer(low=1, high=10_000_000, n_users=n_users)
    _validate.integer(low=_FEWEST, high=1_000_000, n_items=n_items)
    _validate.integer(low=1, high=256, rank=rank)
    _validate.integer(low=1, high=256, n_genres=n_genres)
    _validate.integer(low=0, high=2**63 - 1, seed=seed)
    _validate.within(low=_FEWEST, high=n_items, ratings_per_user=ratings_per_user)
    _validate.within(low=0, high=10, noise=noise)
    rng = np.random.Generator(np.random.PCG64(seed))

    flags = genre_flags(rng, n_items, n_genres)
    item_factors = genre_mix(rng, flags, rank, GENRE_SHARE_OF_FACTORS) * (SIGNAL_STD / np.sqrt(rank))
    item_bias = genre_mix(rng, flags, 1, GENRE_SHARE_OF_BIAS)[:, 0] * ITEM_STD
    user_factors = rng.standard_normal((n_users, rank))
    user_bias = rng.standard_normal(n_users) * USER_STD

    counts = _activity(rng, n_users, n_items, ratings_per_user)
    popularity = np.power(1.0 + rng.permutation(n_items).astype(np.float64), -ZIPF)  # by a random rank
    users, items = _choose_items(rng, counts, popularity)
    signal = np.einsum("nr,nr->n", user_factors[users], item_factors[items])  # [ratings]
    stars = MEAN + user_bias[users] + item_bias[items] + signal + noise * rng.standard_normal(len(users))
    step = 0.5 if half_stars else 1.0
    names = genre_names(n_genres)
    return Ratings.from_triples(
        "synthetic",
        users,
        items,
        np.clip(np.rint(stars / step) * step, 1.0, 5.0),
        low=1.0,
        high=5.0,
        n_users=n_users,
        n_items=n_items,
        times=rng.random(len(users)),
        titles=item_titles(flags, names),
        features=flags.astype(np.float32),
        feature_names=names,
    )


def genre_names(n_genres: int) -> tuple[str, ...]:
    """A name for each genre."""
    return tuple(_GENRES[index] if index < len(_GENRES) else f"Genre {index + 1}" for index in range(n_genres))


def genre_flags(rng: np.random.Generator, n_items: int, n_genres: int) -> Floats:
    """0/1 [n_items, n_genres], one to three ones a row; low-numbered genres are more common."""
    how_many = np.minimum(rng.integers(1, 4, size=n_items), n_genres)
    # Smallest of exponentials over weights = sampling without replacement in proportion to the weights.
    keys = rng.exponential(size=(n_items, n_genres)) * np.sqrt(np.arange(1, n_genres + 1))
    places = np.argsort(np.argsort(keys, axis=1), axis=1)
    return (places < how_many[:, None]).astype(np.float64)


def genre_mix(rng: np.random.Generator, flags: Floats, width: int, genre_share: float) -> Floats:
    """[n_items, width] of unit variance, of which ``genre_share`` is a linear function of the genre flags."""
    explained = flags @ rng.standard_normal((flags.shape[1], width))
    explained -= explained.mean(axis=0)
    spread = explained.std(axis=0)
    explained /= np.where(spread > 0, spread, 1.0)
    residual = rng.standard_normal((len(flags), width))
    return math.sqrt(genre_share) * explained + math.sqrt(1.0 - genre_share) * residual


def _activity(rng: np.random.Generator, n_users: int, n_items: int, mean: float) -> npt.NDArray[np.int64]:
    """Ratings of each user [n_users]: log-normal above the smallest count."""
    activity = np.exp(_ACTIVITY_SIGMA * rng.standard_normal(n_users) - _ACTIVITY_SIGMA**2 / 2)  # mean 1
    return np.clip(np.rint(_FEWEST + (mean - _FEWEST) * activity), _FEWEST, n_items).astype(np.int64)


def _choose_items(
    rng: np.random.Generator, counts: npt.NDArray[np.int64], weights: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``counts[u]`` distinct items for every user, drawn by weight without replacement: flat (users, items).

    Blocks of users of like activity keep memory bounded and the partial sort short.
    """
    by_activity = np.argsort(counts, kind="stable")
    block = max(1, _BLOCK_CELLS // len(weights))
    users, items = [], []
    for start in range(0, len(counts), block):
        chosen = by_activity[start : start + block]
        keys = rng.exponential(size=(len(chosen), len(weights))) / weights
        most = int(counts[chosen[-1]])
        smallest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
        limit = smallest[np.arange(len(chosen)), counts[chosen] - 1]
        row, item = np.nonzero(keys <= limit[:, None])
        users.append(chosen[row])
        items.append(item)
    return np.concatenate(users), np.concatenate(items)


def item_titles(flags: Floats, names: tuple[str, ...]) -> tuple[str, ...]:
    """A title for each row of ``flags`` [n_items, n_genres], all different."""
    digits = max(4, len(str(len(flags))))
    return tuple(
        f"Film {number:0{digits}d} ({', '.join(name for name, flag in zip(names, row, strict=True) if flag)})"
        for number, row in enumerate(flags.tolist(), start=1)
    )


def parse_arguments(arguments: str, function: Callable[..., object], *, where: str) -> dict[str, Any]:
    """Keyword arguments of ``function`` from ``key=value,..``.

    Raises:
      DataError: the text is of another form, or a value is no number, true or false.
      ConfigurationError: as ``known_options``.
    """
    parsed: dict[str, Any] = {}
    for part in filter(None, arguments.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise DataError(f"Expected key=value after 'synthetic:' (got {part!r} in {where!r})")
        parsed[key.strip()] = _literal(key.strip(), value.strip(), where)
    return known_options(parsed, function)


def known_options(options: Mapping[str, Any], function: Callable[..., object]) -> dict[str, Any]:
    """The same options. Raises ConfigurationError where ``function`` has no parameter of that name with a default."""
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    _validate.known_keys(options, names, where="the options of 'synthetic'")
    return dict(options)


def _literal(key: str, value: str, where: str) -> int | float | bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise DataError(f"Expected {key}={value!r} in {where!r} to be a number, true or false")

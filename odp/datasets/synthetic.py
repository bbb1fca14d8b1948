"""Synthetic ratings of MovieLens shape, for work without a download.

A rating is drawn from the model of ``rating_model.py`` and rounded to stars. Genre flags explain half of the variance
of the item factors and 30 % of that of the item biases, so item features help. Everything is a function of the
arguments, ``seed`` included.

Also reads the arguments of invented data in a name, as in ``synthetic:n_users=50,seed=3``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from odp import _validate
from odp.datasets.rating_model import HIGH, LOW, Floats, RatingModel, in_steps, interactions
from odp.datasets.ratings import Ratings
from odp.errors import DataError

SIGNAL_STD = 0.5
GENRE_SHARE_OF_FACTORS, GENRE_SHARE_OF_BIAS = 0.5, 0.3
ZIPF = 0.8

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
    _validate.integer(low=1, high=256, rank=rank)
    _validate.integer(low=1, high=256, n_genres=n_genres)
    _validate.integer(low=0, high=2**63 - 1, seed=seed)
    rng = np.random.Generator(np.random.PCG64(seed))

    model = RatingModel(
        n_users=n_users,
        n_items=n_items,
        ratings_per_user=ratings_per_user,
        rank=rank,
        signal=SIGNAL_STD,
        noise=noise,
        popularity=ZIPF,
        n_features=n_genres,
        feature_share=GENRE_SHARE_OF_FACTORS,
    )
    flags = genre_flags(rng, n_items, n_genres)
    users, items, stars = interactions(rng, model, flags, bias_share=GENRE_SHARE_OF_BIAS)
    names = genre_names(n_genres)
    return Ratings.from_triples(
        "synthetic",
        users,
        items,
        in_steps(stars, 0.5 if half_stars else 1.0),
        low=LOW,
        high=HIGH,
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

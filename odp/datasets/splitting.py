"""Splits the ratings of a data set into parts for training, validation and test.

=====================  ================================================================================================
``random_split``       each rating by itself, by a keyed hash of its user and its item: taking one user out changes
                       nothing for all others, so that what is released of a part has the sensitivity of one user
``permutation_split``  one permutation of all ratings, cut twice: the protocol of published comparisons, with parts of
                       exact sizes. Taking one user out cuts everybody's ratings anew: whatever is computed on a part
                       is a number of a simulation, and its epsilon is one of the parts as given, not of the data set
``time_split``         each user's ratings in the order of time: the first ones are for training, the last ones for the
                       test. Taking one user out changes nothing for all others
=====================  ================================================================================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import fraction_of, key_of, keyed_hash
from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError

Fractions = tuple[float, float, float]

_SHARES: Fractions = (0.8, 0.1, 0.1)
_SEED = 1234


def random_split(ratings: Ratings, *, fractions: Fractions = _SHARES, seed: int = _SEED) -> Split:
    """Splits single ratings at random, each independently: ``fractions`` are the chances of the three parts.

    The part of a rating is a function of the seed and of who rated what (original ids where the data set has them):
    the same on every machine, whatever else the data set holds.

    Raises:
      DataError: a fraction is negative or not finite, or they do not add up to 1.
      ConfigurationError: ``seed`` is not a whole number from 0.
    """
    shares = _checked(fractions, seed)
    user, item = ratings.user_keys[ratings.users()], ratings.item_keys[ratings.items]
    place = fraction_of(keyed_hash(key_of("split of ratings", seed), user, item))
    first, second = shares[0], 1.0 - shares[2]
    return _parts(ratings, place < first, place >= second)


def permutation_split(ratings: Ratings, *, fractions: Fractions = _SHARES, seed: int = _SEED) -> Split:
    """Splits single ratings uniformly at random: one permutation of all entries (numpy PCG64 of ``seed``), cut twice.

    The parts depend on the entries' order in CSR form, on ``fractions`` and on ``seed``, and on nothing else.

    Raises:
      DataError, ConfigurationError: as ``random_split``.
    """
    shares = _checked(fractions, seed)
    first, second = np.rint(np.cumsum(shares)[:2] * ratings.n_ratings).astype(np.int64)
    place = np.random.Generator(np.random.PCG64(seed)).permutation(ratings.n_ratings)
    return _parts(ratings, place < first, place >= second)


def time_split(ratings: Ratings, *, fractions: Fractions = _SHARES) -> Split:
    """Splits each user's ratings by time: train on the past, test on what came last; rounded to whole ratings.

    Every user with two ratings or more has at least one for training and, where there is a share for it, one test.

    Raises:
      DataError: as ``random_split``; the data set has no times.
    """
    shares = _checked(fractions, 0)
    if ratings.order is None:
        raise DataError(f"the data set {ratings.name!r} has no times: a split by time needs them")
    size = np.diff(ratings.offsets)
    user = ratings.users()
    place = np.empty(ratings.n_ratings, dtype=np.int64)
    place[np.lexsort((ratings.order, user))] = np.arange(ratings.n_ratings)
    place -= ratings.offsets[user]
    tests = np.maximum(np.rint(shares[2] * size), (shares[2] > 0) & (size > 1)).astype(np.int64)
    trains = np.maximum(np.rint(shares[0] * size), (shares[0] > 0) & (size > 0)).astype(np.int64)
    return _parts(ratings, place < np.minimum(trains, size - tests)[user], place >= (size - tests)[user])


def _checked(fractions: Fractions, seed: int) -> npt.NDArray[np.float64]:
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.shape != (3,) or not np.isfinite(shares).all() or (shares < 0).any() or abs(shares.sum() - 1) > 1e-9:
        raise DataError(f"Expected fractions={fractions!r} to be three shares >= 0 that add up to 1")
    _validate.integer(low=0, high=2**63 - 1, seed=seed)
    return shares


def _parts(ratings: Ratings, train: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> Split:
    test = test & ~train
    return Split(ratings.take(train), ratings.take(~train & ~test), ratings.take(test))

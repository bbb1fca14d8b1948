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

One moment for everybody: train on the rows before it, and test on those from it on.

================  ===================================================================================================
cut               part of a row
================  ===================================================================================================
a date            follows from the row alone, so that what is released of a part has the sensitivity of one user
a number          the same, for times that are no dates
a share (0 to 1)  follows from everybody's times: whatever is computed on a part is a number of a simulation, and its
                  epsilon is one of the parts as given, not of the data set
================  ===================================================================================================

Of the ratings before the cut, one in nine is for validation, drawn by a keyed hash of its user and its item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import fraction_of, key_of, keyed_hash
from odp.datasets.ratings import Ratings, Split
from odp.errors import ConfigurationError, DataError

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


PREFIX = "time:"
_VALIDATION = 1 / 9
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Digits of a second that a moment would lose.
_FINER = re.compile(r"[.,]\d{7}")
#: Seconds from 1973 to 2103: in no two units is a number within them.
_USUAL = (10**8, 42 * 10**8)


class Timed(Protocol):
    """Ratings or examples with the time of each."""

    @property
    def name(self) -> str:
        """What messages call the data set."""

    @property
    def times(self) -> npt.NDArray[Any] | None:
        """Numbers [n]; None where the data have no times."""

    @property
    def time_unit(self) -> str | None:
        """What times that were dates count from 1970; None for numbers."""


@dataclass(frozen=True)
class OnlyTested:
    """What the test part of a cut has, and training and validation do not.

    Attributes:
      counts: (how many, of how many in the data set) by what they are, such as "users".
    """

    counts: Mapping[str, tuple[int, int]]

    def line(self) -> str:
        """For people."""
        parts = [f"{count:,} of {size:,} {what}" for what, (count, size) in self.counts.items()]
        return f"only the test part has {' and '.join(parts)}"

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return {f"{what}_only_tested": count for what, (count, _) in self.counts.items()}


@dataclass(frozen=True)
class TimeCut:
    """Where the data are cut: exactly one of the three.

    Attributes:
      share: of the rows that are before the cut, above 0 and below 1.
      date: the moment, in UTC.
      number: the moment in the clock of the data.
    """

    share: float | None = None
    date: datetime | None = None
    number: float | None = None

    @classmethod
    def parse(cls, text: str) -> TimeCut:
        """The cut of ``time:0.9``, ``time:2001-03-01``, ``time:2001-03-01T12:00+02:00`` or ``time:977000000``.

        Raises:
          ConfigurationError: the text is of another form.
        """
        moment = text.removeprefix(PREFIX)
        if text.startswith(PREFIX):
            try:
                number = float(moment)
            except ValueError:
                pass
            else:
                if 0 < number < 1:
                    return cls(share=number)
                if np.isfinite(number) and number >= 1:
                    return cls(number=number)
            try:
                date = None if "-" not in moment or _FINER.search(moment) else datetime.fromisoformat(moment)
            except ValueError:
                date = None
            if date is not None:
                return cls(date=date if date.tzinfo is not None else date.replace(tzinfo=UTC))
        raise ConfigurationError(
            f"Expected split={text!r} to be time:DATE, such as time:2001-03-01 or time:2001-03-01T12:00+02:00, to the "
            "microsecond at most; time:SHARE, such as time:0.9; or time:NUMBER from 1 on, of times that are numbers"
        )

    def split(self, ratings: Ratings, *, seed: int) -> Split:
        """The parts of a data set; ``seed`` is that of the draw for validation.

        Raises:
          DataError: as ``tests``.
          ConfigurationError: ``seed`` is not a whole number from 0.
        """
        _validate.integer(low=0, high=2**63 - 1, seed=seed)
        test = self.tests(ratings, what="rating")
        user, item = ratings.user_keys[ratings.users()], ratings.item_keys[ratings.items]
        held = fraction_of(keyed_hash(key_of("validation before a cut in time", seed), user, item)) < _VALIDATION
        return Split(ratings.take(~test & ~held), ratings.take(~test & held), ratings.take(test))

    def tests(self, data: Timed, *, what: str) -> npt.NDArray[np.bool_]:
        """Which rows are at the moment or after it, bool [n]; ``what`` a row is, in messages.

        Raises:
          DataError: the data have no times, or these are no dates; or one of the sides would be empty.
        """
        if data.times is None:
            raise DataError(
                f"the data set {data.name!r} has no times that are comparable between users: a cut in time needs a "
                "column of times (--time)"
            )
        test: npt.NDArray[np.bool_] = data.times >= self._moment(data)
        if test.all() or not test.any():
            side = "before" if test.all() else "from"
            raise DataError(f"the data set {data.name!r} has no {what} {side} the cut in time: choose another")
        return test

    def is_public(self, data: Timed) -> bool:
        """Whether the moment is known without these data: no share, and no date in a unit that is guessed."""
        return self.share is None and (self.date is None or data.time_unit is not None)

    def notes(self, data: Timed, tested: OnlyTested) -> list[str]:
        """What has to be said of the parts, a line each."""
        lines = [tested.line()]
        if self.share is not None:
            lines.append(
                "the cut follows from everybody's times: ε is that of the parts as given, and not of the data set"
            )
        if self.date is not None and data.time_unit is None:
            lines.append(f"guessed: times count from 1970 in {_unit(data)}")
        return lines

    def _moment(self, data: Timed) -> float | int:
        assert data.times is not None
        if self.number is not None:
            if data.time_unit not in (None, "s"):
                raise DataError(
                    f"the times of the data set {data.name!r} are dates: cut them at one, such as time:2001-03-01"
                )
            return self.number
        if self.date is not None:
            microseconds = (self.date - _EPOCH) // timedelta(microseconds=1)
            return -(-microseconds * _PER_SECOND[_unit(data)] // 10**6)
        assert self.share is not None
        rows = len(data.times)
        place = min(round(self.share * rows), rows - 1)
        moment: float | int = np.partition(data.times, place)[place].item()
        return moment


def only_tested(split: Split) -> OnlyTested:
    """The users and items that have ratings in the test part, and none for training or validation."""
    past = (split.train, split.validation)
    users = (split.test.counts() > 0) & ~np.any([part.counts() > 0 for part in past], axis=0)
    rated = [np.bincount(part.items, minlength=part.n_items) > 0 for part in (split.test, *past)]
    items = rated[0] & ~np.any(rated[1:], axis=0)
    return OnlyTested(
        {"users": (int(users.sum()), split.test.n_users), "items": (int(items.sum()), split.test.n_items)}
    )


def _unit(data: Timed) -> str:
    """What times count from 1970: as was read, or the one unit in which all are usual dates."""
    if data.time_unit is not None:
        return data.time_unit
    assert data.times is not None
    if len(data.times):
        least, largest = data.times.min(), data.times.max()
        for unit, per_second in _PER_SECOND.items():
            if _USUAL[0] * per_second <= least and largest <= _USUAL[1] * per_second:
                return unit
    raise DataError(
        f"the times of the data set {data.name!r} are numbers, and not all are dates from 1973 on: cut them at a "
        "number of theirs or at a share (--split time:0.9)"
    )

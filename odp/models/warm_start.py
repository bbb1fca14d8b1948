"""What a new model begins with: the items of an earlier one, matched by the keys of a catalogue.

An earlier model is public for the new task: a release, or a model of public ratings. So it enters as public item
features do, and costs no privacy: the server estimates from the new releases how much each of its columns tells.

==================  ===========================================================================
columns             scale, over the items that both catalogues have
==================  ===========================================================================
bias                mean 0, mean square .245, as of the next
log(1 + popularity) (together .7^2)
factors             mean 0, mean squares that add up to 1
==================  ===========================================================================

An item that is new gets what a ridge regression on its own public features predicts, or 0, the mean, without features.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp._system.files.durability import write_whole
from odp.errors import ConfigurationError, DataError
from odp.models.item_features import Float32Array, checked_item_features
from odp.numerics.archives import UNREADABLE, require_stored

# Chosen on MovieLens-1M's validation parts, with starts from MovieLens latest-small and from releases.
_OWN_SCALE = 0.7  # of biases and popularity beside factors
_BESIDE_FEATURES = 0.7  # of all columns beside public features of total variance 1
_NEW_ITEMS_RIDGE = 10.0  # in items of a feature of value 1
_MAGIC = "odp-warm-start-1"
_LARGEST = 1e30  # models are of float32
_MOST_FACTORS = 1024
_LONGEST_ORIGIN = 200
_LONGEST_KEY = 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


@_validate.strict_keywords
@dataclass(frozen=True, repr=False)
class WarmStart:
    """Items of an earlier model, for ``MatrixFactorization(start=..)``. See the module.

    Attributes:
      keys: catalogue keys [m], distinct, of 1 to 1,024 bytes in UTF-8.
      popularity: about how many users each item has, [m], within 1e30; below 0 counts as 0.
      biases: [m], within 1e30.
      factors: [m, r], within 1e30; r may be 0, is at most 1,024, and need not be the rank of the new model.
      origin: what is known of its privacy, for people, in at most 200 characters.

    Raises:
      ConfigurationError: a key is none or stands twice, sizes differ, or a number is none or out of range.
    """

    keys: Sequence[str]
    popularity: npt.ArrayLike = field(repr=False)
    biases: npt.ArrayLike = field(repr=False)
    factors: npt.ArrayLike = field(repr=False)
    origin: str = ""

    def __post_init__(self) -> None:
        """Checks, and keeps read-only copies."""
        object.__setattr__(self, "keys", checked_keys(self.keys, name="keys"))
        require_storable(self.keys, name="keys")
        for name, width in (("popularity", None), ("biases", None), ("factors", 2)):
            numbers = _numbers(getattr(self, name), name)
            if numbers.ndim != (width or 1) or len(numbers) != len(self.keys):
                raise ConfigurationError(
                    f"Expected {name} of a start to have one row per key, {len(self.keys)} (got {list(numbers.shape)})"
                )
            numbers.flags.writeable = False
            object.__setattr__(self, name, numbers)
        if np.shape(self.factors)[1] > _MOST_FACTORS:
            raise ConfigurationError(f"Expected at most {_MOST_FACTORS:,} factors (got {np.shape(self.factors)[1]:,})")
        if not isinstance(self.origin, str) or len(self.origin) > _LONGEST_ORIGIN or not self.origin.isprintable():
            raise ConfigurationError(f"Expected origin to be a line of at most {_LONGEST_ORIGIN} characters")

    def __repr__(self) -> str:
        """Sizes only."""
        return f"WarmStart({len(self.keys)} items, {np.shape(self.factors)[1]} factors)"

    def columns(self, item_keys: Sequence[str], features: Float32Array | None = None) -> Float32Array:
        """Public item features float32 [items, q]: ``features`` scaled to total variance 1, and columns of the start.

        Args:
          item_keys: of the catalogue's items, in the order of their numbers.
          features: the catalogue's own [items, p], or None.

        Raises:
          ConfigurationError: a key is empty or stands twice, or none is a key of the start.
        """
        wanted = checked_keys(item_keys, name="item_keys")
        columns, in_start = self._columns(wanted)
        if not in_start.any():
            raise ConfigurationError(
                "Expected item_keys to share a key with the start: "
                f"it has {self.keys[0]!r}, the catalogue {wanted[0]!r}"
            )
        if features is None:
            if not columns.shape[1]:
                raise ConfigurationError(
                    f"Expected items of the start to differ: the catalogue has {int(in_start.sum())} of them, all alike"
                )
            return checked_item_features(len(wanted), columns)
        public = _scaled(features.astype(np.float64), np.ones(len(wanted), dtype=np.bool_))
        predicted = np.where(in_start[:, None], columns, public @ _map(public[in_start], columns[in_start]))
        return checked_item_features(len(wanted), np.concatenate((public, _BESIDE_FEATURES * predicted), axis=1))

    def tells(self, item_keys: Sequence[str]) -> bool:
        """Whether the start makes a difference between any of the items.

        Raises:
          ConfigurationError: a key is empty or stands twice.
        """
        return bool(self._columns(checked_keys(item_keys, name="item_keys"))[0].shape[1])

    def _columns(self, wanted: tuple[str, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Columns [items, q] that are not all 0, and which items the start has."""
        places = {key: place for place, key in enumerate(self.keys)}
        at = np.array([places.get(key, -1) for key in wanted], dtype=np.int64)
        in_start = at >= 0
        if not in_start.any():
            return np.empty((len(wanted), 0)), in_start
        popularity = np.log1p(np.maximum(np.asarray(self.popularity)[at], 0.0))
        item_columns = [_scaled(column[:, None], in_start) for column in (np.asarray(self.biases)[at], popularity)]
        parts = [
            *(_OWN_SCALE / math.sqrt(2.0) * column for column in item_columns),
            _scaled(np.asarray(self.factors)[at], in_start),
        ]
        columns = np.concatenate(parts, axis=1)
        return columns[:, columns.any(axis=0)], in_start

    def told(self, item_keys: Sequence[str]) -> int:
        """Of how many of the items the start has factors that are not all 0.

        Raises:
          ConfigurationError: a key is empty or stands twice.
        """
        with_factors = {key for key, row in zip(self.keys, np.asarray(self.factors), strict=True) if row.any()}
        return len(with_factors.intersection(checked_keys(item_keys, name="item_keys")))

    def save(self, path: str | Path) -> None:
        """Writes an .npz file, which :meth:`load` reads, whole or not at all.

        Raises:
          ConfigurationError: it cannot be written.
        """
        write_whole(path, (self.to_bytes(),))

    def to_bytes(self) -> bytes:
        """The content of that file."""
        file = io.BytesIO()
        np.savez(
            file,
            format=np.array(_MAGIC),
            keys=np.array(self.keys, dtype=np.str_),
            popularity=self.popularity,
            biases=self.biases,
            factors=self.factors,
            origin=np.array(self.origin),
        )
        return file.getvalue()

    @classmethod
    def load(cls, path: str | Path) -> WarmStart:
        """The start that ``save`` wrote.

        Raises:
          DataError: the file cannot be read, or holds something else.
        """
        try:
            require_stored(Path(path))
            with np.load(path, allow_pickle=False) as archive:
                if str(archive["format"]) != _MAGIC:
                    raise KeyError("format")
                names = ("popularity", "biases", "factors")
                origin = str(archive["origin"]) if "origin" in archive else ""
                return cls(keys=archive["keys"].tolist(), origin=origin, **{name: archive[name] for name in names})
        except OSError as error:
            raise DataError(f"cannot read the start {path}: {error.strerror or 'not an .npz file'}") from error
        except ConfigurationError as error:
            raise DataError(f"{path} is a damaged start: {error}") from error
        except UNREADABLE as error:
            raise DataError(f"{path} is no start of a model; write one by `odp simulate --save-start`") from error


def _numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    """A copy. Raises ConfigurationError where one is no number, or is larger than any model has."""
    try:
        array = np.asarray(values)
        whole = array.dtype.kind in "biuf" and not np.ma.isMaskedArray(values)
        copied = np.array(array, dtype=np.float64) if whole else None
    except (TypeError, ValueError):  # lists of several lengths
        copied = None
    if copied is None:
        raise ConfigurationError(f"Expected {name} of a start to be an array of real numbers")
    if not (np.abs(copied) <= _LARGEST).all():
        raise ConfigurationError(f"Expected {name} of a start to be finite numbers of at most {_LARGEST:g}")
    return copied


def checked_keys(keys: Sequence[str], *, name: str) -> tuple[str, ...]:
    """``keys`` as a tuple, in the normal form NFC: however a key is spelt, it is the same one.

    Raises:
      ConfigurationError: there are none, or one is no text, is empty, or stands twice.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise ConfigurationError(f"Expected {name} to be a list of texts (got {type(keys).__name__})")
    normal_keys = tuple(unicodedata.normalize("NFC", key) if isinstance(key, str) else key for key in keys)
    if not normal_keys:
        raise ConfigurationError(f"Expected {name} to have an item's key")
    places: dict[str, int] = {}
    for place, key in enumerate(normal_keys):
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"Expected {name} to be texts that are not empty (got {key!r} of item {place})")
        if places.setdefault(key, place) != place:
            raise ConfigurationError(
                f"Expected {name} to name each item once: {key!r} is that of items {places[key]} and {place}"
            )
    return normal_keys


def require_storable(keys: Iterable[str], *, name: str) -> None:
    """Returns if the files of starts and tables keep the keys as they are.

    Files of NumPy give every key the room of the longest, and lose zeros at an end.

    Raises:
      ConfigurationError: one is longer than 1,024 bytes in UTF-8, is none of Unicode, or has a zero.
    """
    for place, key in enumerate(keys):
        if "\0" in key or _SURROGATE.search(key) or len(key.encode()) > _LONGEST_KEY:
            raise ConfigurationError(
                f"Expected {name} to be Unicode texts of at most {_LONGEST_KEY:,} bytes without zeros"
                f" (got {key[:60]!r} of item {place})"
            )


def _scaled(columns: npt.NDArray[np.float64], usable: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Columns of mean 0 whose mean squares add up to 1, over the ``usable`` rows; 0 elsewhere, or if all are alike."""
    centred = np.where(usable[:, None], columns - columns[usable].mean(axis=0), 0.0)
    if not (largest := float(np.abs(columns[usable]).max(initial=0.0))):
        return np.zeros_like(centred)
    centred /= largest  # squares of very small numbers would be 0
    size = math.sqrt(float((centred**2).sum()) / int(usable.sum()))
    return centred / size if size > 1e-9 else np.zeros_like(centred)


def _map(features: npt.NDArray[np.float64], columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ridge regression [p, q] of columns of mean 0 on features."""
    normal = features.T @ features + _NEW_ITEMS_RIDGE * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(normal, features.T @ columns))

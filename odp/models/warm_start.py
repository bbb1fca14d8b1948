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
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.models.item_features import Float32Array, checked_item_features
from odp.numerics.archives import UNREADABLE

# Chosen on MovieLens-1M's validation parts, with starts from MovieLens latest-small and from releases.
_OWN_SCALE = 0.7  # of biases and popularity beside factors
_BESIDE_FEATURES = 0.7  # of all columns beside public features of total variance 1
_NEW_ITEMS_RIDGE = 10.0  # in items of a feature of value 1
_MAGIC = "odp-warm-start-1"


@_validate.strict_keywords
@dataclass(frozen=True, repr=False)
class WarmStart:
    """Items of an earlier model, for ``MatrixFactorization(start=..)``. See the module.

    Attributes:
      keys: catalogue keys [m], distinct and not empty.
      popularity: about how many users each item has, [m], finite; below 0 counts as 0.
      biases: [m], finite.
      factors: [m, r], finite; r may be 0 and need not be the rank of the new model.

    Raises:
      ConfigurationError: a key is empty or stands twice, sizes differ, or a number is not finite.
    """

    keys: Sequence[str]
    popularity: npt.ArrayLike = field(repr=False)
    biases: npt.ArrayLike = field(repr=False)
    factors: npt.ArrayLike = field(repr=False)

    def __post_init__(self) -> None:
        """Checks, and keeps read-only copies."""
        object.__setattr__(self, "keys", checked_keys(self.keys, name="keys"))
        for name, width in (("popularity", None), ("biases", None), ("factors", 2)):
            given = np.array(getattr(self, name), dtype=np.float64)
            if given.ndim != (width or 1) or len(given) != len(self.keys):
                raise ConfigurationError(
                    f"Expected {name} of a start to have one row per key, {len(self.keys)} (got {list(given.shape)})"
                )
            if not np.isfinite(given).all():
                raise ConfigurationError(f"Expected {name} of a start to be finite numbers")
            given.flags.writeable = False
            object.__setattr__(self, name, given)

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
        places = {key: place for place, key in enumerate(self.keys)}
        at = np.array([places.get(key, -1) for key in wanted], dtype=np.int64)
        known = at >= 0
        if not known.any():
            raise ConfigurationError(
                "Expected item_keys to share a key with the start: "
                f"it has {self.keys[0]!r}, the catalogue {wanted[0]!r}"
            )
        popularity = np.log1p(np.maximum(np.asarray(self.popularity)[at], 0.0))
        own = [_scaled(column[:, None], known) for column in (np.asarray(self.biases)[at], popularity)]
        parts = [
            *(_OWN_SCALE / math.sqrt(2.0) * column for column in own),
            _scaled(np.asarray(self.factors)[at], known),
        ]
        columns = np.concatenate(parts, axis=1)
        columns = columns[:, columns.any(axis=0)]
        if features is None:
            if not columns.shape[1]:
                raise ConfigurationError("Expected items of the start to differ: those of the catalogue are all alike")
            return checked_item_features(len(wanted), columns)
        public = _scaled(features.astype(np.float64), np.ones(len(wanted), dtype=np.bool_))
        predicted = np.where(known[:, None], columns, public @ _map(public[known], columns[known]))
        return checked_item_features(len(wanted), np.concatenate((public, _BESIDE_FEATURES * predicted), axis=1))

    def told(self, item_keys: Sequence[str]) -> int:
        """Of how many of the items the start has factors that are not all 0.

        Raises:
          ConfigurationError: a key is empty or stands twice.
        """
        known = {key for key, row in zip(self.keys, np.asarray(self.factors), strict=True) if row.any()}
        return len(known.intersection(checked_keys(item_keys, name="item_keys")))

    def save(self, path: Path) -> None:
        """Writes an .npz file, which :meth:`load` reads."""
        path.write_bytes(self.to_bytes())

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
        )
        return file.getvalue()

    @classmethod
    def load(cls, path: Path) -> WarmStart:
        """The start that ``save`` wrote.

        Raises:
          DataError: the file cannot be read, or holds something else.
        """
        try:
            with np.load(path, allow_pickle=False) as found:
                if str(found["format"]) != _MAGIC:
                    raise KeyError("format")
                names = ("popularity", "biases", "factors")
                return cls(keys=found["keys"].tolist(), **{name: found[name] for name in names})
        except OSError as error:
            raise DataError(f"cannot read the start {path}: {error.strerror or 'not an .npz file'}") from error
        except ConfigurationError as error:
            raise DataError(f"{path} is a damaged start: {error}") from error
        except UNREADABLE as error:
            raise DataError(f"{path} is no start of a model; write one by `odp simulate --save-start`") from error


def checked_keys(keys: Sequence[str], *, name: str) -> tuple[str, ...]:
    """``keys`` as a tuple, in the normal form NFC: however a key is spelt, it is the same one.

    Raises:
      ConfigurationError: there are none, or one is no text, is empty, or stands twice.
    """
    found = tuple(unicodedata.normalize("NFC", key) if isinstance(key, str) else key for key in keys)
    if not found:
        raise ConfigurationError(f"Expected {name} to have an item's key")
    places: dict[str, int] = {}
    for place, key in enumerate(found):
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"Expected {name} to be texts that are not empty (got {key!r} of item {place})")
        if places.setdefault(key, place) != place:
            raise ConfigurationError(
                f"Expected {name} to name each item once: {key!r} is that of items {places[key]} and {place}"
            )
    return found


def _scaled(columns: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Columns of mean 0 whose mean squares add up to 1, over the ``known`` rows; 0 elsewhere, or if all are alike."""
    centred = np.where(known[:, None], columns - columns[known].mean(axis=0), 0.0)
    size = math.sqrt(float((centred**2).sum()) / int(known.sum()))
    largest = float(np.abs(columns[known]).max(initial=0.0))
    return centred / size if size > 1e-9 * largest else np.zeros_like(centred)


def _map(features: npt.NDArray[np.float64], columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ridge regression [p, q] of columns of mean 0 on features."""
    normal = features.T @ features + _NEW_ITEMS_RIDGE * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(normal, features.T @ columns))

"""What people say of themselves, as where their local solve begins: a public map from categories to a bias and a row.

A person's age group or kind of device says a little about their taste. The map is learned from a *panel*, people whose
ratings and categories are public, so that it costs no privacy; a person's own categories stay on their device, which
looks up where to begin. It helps people with few ratings: own ratings soon count for more.

    prior mean of (bias, row)  =  common  +  sum over attributes of the row of the person's category
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.archives import UNREADABLE, unpacked_bytes
from odp.numerics.arrays import Float32Array, Float64Array

MOST_ATTRIBUTES, MOST_CATEGORIES, LONGEST_CATEGORY = 32, 1024, 120
_FURTHEST = 1e4
_LARGEST_FILE = 2**24
_MAGIC = "odp-side-prior-1"


@_validate.strict_keywords
@dataclass(frozen=True, repr=False)
class SidePrior:
    """Where a person's bias and row begin, by what the person says of themselves.

    Attributes:
      attributes: categories by attribute, such as ``{"age_group": ("18-24", "25-34")}``.
      rows: float [1 + number of all categories, 1 + rank]: what all people have in common, then each category's
        difference, in the order of ``attributes``.
      items_sha256: of the item rows that it was made for, as ``items_sha256`` says.

    Raises:
      ConfigurationError: a name is none, a category is empty or stands twice, or a number is not finite or huge.
    """

    attributes: Mapping[str, Sequence[str]]
    rows: npt.ArrayLike = field(repr=False)
    items_sha256: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Checks, and keeps read-only copies."""
        attributes = {name: tuple(values) for name, values in self.attributes.items()}
        _validate.integer(attributes=len(attributes), low=0, high=MOST_ATTRIBUTES)
        for name, values in attributes.items():
            if not values or len(set(values)) != len(values):
                raise ConfigurationError(f"Expected attribute {name!r} to have categories, each of them once")
            for value in values:
                check_said({name: value})
        count = sum(map(len, attributes.values()))
        _validate.integer(categories=count, low=0, high=MOST_CATEGORIES)
        rows = np.array(self.rows, dtype=np.float64)
        if rows.ndim != 2 or len(rows) != 1 + count or not rows.shape[1]:
            raise ConfigurationError(f"Expected rows of a side prior [{1 + count}, 1 + rank] (got {list(rows.shape)})")
        if not (np.abs(rows) <= _FURTHEST).all():
            raise ConfigurationError(f"Expected rows of a side prior to be numbers within {_FURTHEST:g} of 0")
        if not isinstance(self.items_sha256, bytes) or len(self.items_sha256) != hashlib.sha256().digest_size:
            raise ConfigurationError("Expected items_sha256 of a side prior to be 32 bytes")
        rows.flags.writeable = False
        object.__setattr__(self, "attributes", attributes)
        object.__setattr__(self, "rows", rows)

    def __repr__(self) -> str:
        """Names and sizes."""
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in self.attributes.items())
        return f"SidePrior({sizes or 'no attributes'})"

    def design(self, said: Sequence[Mapping[str, str]]) -> Float64Array:
        """What people say of themselves as 0 and 1, float64 [n, 1 + categories]: 1, then a 1 per known category.

        Attributes and categories that it does not have count as not said.
        """
        out = np.zeros((len(said), len(np.asarray(self.rows))))
        out[:, 0] = 1.0
        start = 1
        for name, values in self.attributes.items():
            place = {value: start + number for number, value in enumerate(values)}
            for person, answers in enumerate(said):
                if answers.get(name) in place:
                    out[person, place[answers[name]]] = 1.0
            start += len(values)
        return out

    def means(self, said: Sequence[Mapping[str, str]]) -> Float64Array:
        """Prior means of (bias, row), float64 [n, 1 + rank], of people who say ``said`` of themselves."""
        return np.asarray(self.design(said) @ np.asarray(self.rows))

    def require_made_for(self, item_rows: Float32Array) -> None:
        """Raises ConfigurationError where the item rows [m, width] of a model are not those that it was made for."""
        if items_sha256(item_rows) != self.items_sha256:
            raise ConfigurationError(
                "Expected a side prior of this very model: make it again by odp.items.side_prior after each training"
            )

    def save(self, path: Path) -> None:
        """Writes an .npz file, which :meth:`load` reads."""
        file = io.BytesIO()
        np.savez(
            file,
            format=np.array(_MAGIC),
            names=np.array([name for name, values in self.attributes.items() for _ in values], dtype=np.str_),
            categories=np.array([value for values in self.attributes.values() for value in values], dtype=np.str_),
            rows=np.asarray(self.rows),
            items_sha256=np.frombuffer(self.items_sha256, dtype=np.uint8),
        )
        path.write_bytes(file.getvalue())

    @classmethod
    def load(cls, path: Path) -> SidePrior:
        """The prior that ``save`` wrote.

        Raises:
          DataError: the file cannot be read, or holds something else.
        """
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_FILE)
            if unpacked_bytes(io.BytesIO(content)) > _LARGEST_FILE:
                raise ValueError("unpacks to more than a side prior")
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                if str(archive["format"]) != _MAGIC:
                    raise KeyError("format")
                attributes: dict[str, list[str]] = {}
                for name, value in zip(archive["names"].tolist(), archive["categories"].tolist(), strict=True):
                    attributes.setdefault(name, []).append(value)
                return cls(attributes=attributes, rows=archive["rows"], items_sha256=archive["items_sha256"].tobytes())
        except OSError as error:
            raise DataError(f"cannot read the side prior {path}: {error.strerror or 'not an .npz file'}") from error
        except ConfigurationError as error:
            raise DataError(f"{path} is a damaged side prior: {error}") from error
        except UNREADABLE as error:
            raise DataError(f"{path} is no side prior; write one by odp.items.side_prior(..).save(path)") from error


def items_sha256(item_rows: Float32Array) -> bytes:
    """SHA-256 of a model's item rows [m, width], little-endian float32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(item_rows, dtype="<f4").tobytes()).digest()


def check_said(said: Mapping[str, str]) -> None:
    """Raises ConfigurationError where an attribute is no name, or a category no text of 1 to 120 characters."""
    for name, value in said.items():
        _validate.identifier(attribute=name)
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_CATEGORY or not value.isprintable():
            raise ConfigurationError(
                f"Expected {name}={value!r} to be a text of 1 to {LONGEST_CATEGORY} printable characters"
            )

"""The items of a released model as a device serves them: one row of int8, a bias and a trust each.

For m items of rank r the numbers take m (r + 6) bytes: 38 MB for a million items of rank 32. Keys come on top, and are
read only of the items that are shown.

Keys of items as one text: where each ends, and the bytes. A file of them is read in place.

Rows of int8 with a scale of 16 bits each; a bias and a trust in 32 bits.

A scale is the largest absolute value of the row over 127, rounded up to 9 significant bits: those of a float32 without
its sign, which is always plus, and without its last 15 bits. A value is within half a scale of the given one.

The steps of a row are chosen for the scale as it is kept. So 16 bits for it cost at most 2^-8 of the precision, and
32 bits would cost two bytes more per item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError
from odp.models.item_files import IndexColumns
from odp.models.warm_start import checked_keys
from odp.numerics.arrays import Float32Array, Int64Array, UInt8Array

UInt32Array = npt.NDArray[np.uint32]

MOST_BYTES = 2**32 - 1
_KEYS_BLOCK = 2**14  # keys that are read at a time
_COMPARED = 2**20  # bytes of keys that are compared at a time
#: A byte inside of a character of UTF-8 begins with the bits 10.
_LEAD, _INSIDE = np.uint8(0b1100_0000), np.uint8(0b1000_0000)


@dataclass(frozen=True, eq=False)
class ItemKeys:
    """Keys by item number: ``ends`` uint32 [m], where each ends in ``text`` uint8 [b], which is UTF-8."""

    ends: UInt32Array = field(repr=False)
    text: UInt8Array = field(repr=False)

    @classmethod
    def of(cls, keys: Sequence[str]) -> ItemKeys:
        """From texts.

        Raises:
          ConfigurationError: there are none, they take 4 GiB, or one is no text, is empty, or stands twice.
        """
        try:
            written = [key.encode() for key in checked_keys(keys, name="item_keys")]
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"Expected item_keys to be valid texts (got {error.object!r})") from error
        ends = np.cumsum([len(key) for key in written], dtype=np.int64)
        if ends[-1] > MOST_BYTES:
            raise ConfigurationError(f"Expected item_keys to take at most {MOST_BYTES} bytes together (got {ends[-1]})")
        return cls(ends.astype(np.uint32), np.frombuffer(b"".join(written), dtype=np.uint8))

    def check(self) -> None:
        """Raises DataError for ends that do not ascend to the end of the text, or keys that are no UTF-8."""
        if not len(self) or int(self.ends[-1]) != len(self.text):
            raise DataError("the places of its item keys do not fit together")
        for first in range(0, len(self), _KEYS_BLOCK):
            ends = self.ends[first : first + _KEYS_BLOCK]
            starts = np.concatenate((np.array([self.start(first)], dtype=np.uint32), ends[:-1]))
            if not (starts < ends).all() or int(ends[-1]) > len(self.text):
                raise DataError("the places of its item keys do not fit together")
            try:
                self.text[int(starts[0]) : int(ends[-1])].tobytes().decode()
            except UnicodeDecodeError as error:
                raise DataError("an item key is not UTF-8 text") from error
            if ((self.text[starts] & _LEAD) == _INSIDE).any():  # a character that two keys share
                raise DataError("an item key is not UTF-8 text")

    def start(self, place: int) -> int:
        """Where a key begins in the text."""
        return int(self.ends[place - 1]) if place else 0

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> str:
        """The key of an item number. Raises ConfigurationError where there is no such item."""
        if not 0 <= place < len(self):
            raise ConfigurationError(f"Expected item={place} to be from 0 to {len(self) - 1}")
        return self.text[self.start(place) : int(self.ends[place])].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """All keys; blocks of them are in memory, not all."""
        for first in range(0, len(self), _KEYS_BLOCK):
            ends = self.ends[first : first + _KEYS_BLOCK].tolist()
            begin = self.start(first)
            block = self.text[begin : ends[-1]].tobytes()
            last = 0
            for end in ends:
                yield block[last : end - begin].decode()
                last = end - begin

    def places(self, wanted: Sequence[str]) -> Int64Array:
        """The item number of each wanted key, int64 [n]; -1 where no item has it.

        Only keys that are as long as a wanted one are compared, a megabyte of them at a time.
        """
        # A key of an event may be no valid text; no item has such a key.
        written = [key.encode(errors="surrogatepass") for key in wanted]
        place_of = dict.fromkeys(written, -1)
        lengths = np.unique([len(key) for key in place_of if 0 < len(key) <= len(self.text)])
        for length in lengths.tolist():
            same = np.array(sorted(key for key in place_of if len(key) == length), dtype=f"S{length}")
            windows = np.lib.stride_tricks.sliding_window_view(self.text, length)
            for places in self._of_length(length):
                starts = self.ends[places].astype(np.int64) - length
                # Of one length, texts without their zeros at the end are still distinct.
                texts = np.ascontiguousarray(windows[starts]).view(same.dtype)[:, 0]
                nearest = np.minimum(np.searchsorted(same, texts), len(same) - 1)
                for hit in np.flatnonzero(same[nearest] == texts).tolist():
                    place_of[windows[starts[hit]].tobytes()] = int(places[hit])
        return np.array([place_of[key] for key in written], dtype=np.int64)

    def _of_length(self, length: int) -> Iterator[Int64Array]:
        """The items whose keys have ``length`` bytes, in blocks that take at most ``_COMPARED`` bytes."""
        size = max(1, _COMPARED // max(length, 8))
        for first in range(0, len(self), size):
            ends = self.ends[first : first + size]
            sizes = np.diff(ends, prepend=np.uint32(self.start(first)))
            places = first + np.flatnonzero(sizes == length)
            if len(places):
                yield places


Int8Array = npt.NDArray[np.int8]
UInt16Array = npt.NDArray[np.uint16]

#: Steps are from -127 to 127.
STEPS = 127
#: Values are within this of 0: the scores of a scan are then finite as float32.
LARGEST = 2.0**40
#: The largest scale that a file may have.
LARGEST_SCALE = int(np.float32(LARGEST).view(np.uint32)) >> 15

_DROPPED = 15
_TRUST_BITS = 0xFF
# A smaller scale would be subnormal: its products would lose bits.
_SMALLEST_SCALE = int(np.float32(2.0**-126).view(np.uint32)) >> _DROPPED
_ROWS_BLOCK = 2**16  # rows held in float64 at a time


def quantised(rows: Float32Array) -> tuple[Int8Array, UInt16Array]:
    """(steps int8 [n, r], scales uint16 [n]) of rows float32 [n, r].

    Raises:
      DataError: a value is not finite, or further than 2^40 from 0.
    """
    steps, scales = np.zeros(rows.shape, dtype=np.int8), np.zeros(len(rows), dtype=np.uint16)
    for start in range(0, len(rows), _ROWS_BLOCK):
        block = slice(start, start + _ROWS_BLOCK)
        some = rows[block]
        largest = np.abs(some).max(axis=1, initial=0.0)
        if not (largest <= LARGEST).all():  # also false for a value that is not a number
            raise DataError("Expected item factors to be finite and within 2^40 of 0: train the model again")
        bits = (largest / np.float32(STEPS)).astype(np.float32).view(np.uint32)
        codes = (bits + np.uint32(2**_DROPPED - 1)) >> np.uint32(_DROPPED)
        codes[codes < _SMALLEST_SCALE] = 0
        scales[block] = codes
        divisors = scale_values(scales[block])
        positive = divisors > 0
        divisors[~positive] = 1.0
        steps[block] = np.rint(np.where(positive[:, None], some, np.float32(0)) / divisors[:, None].astype(np.float64))
    return steps, scales


def scale_values(scales: UInt16Array) -> Float32Array:
    """The scales as float32, exact."""
    return (scales.astype(np.uint32) << np.uint32(_DROPPED)).view(np.float32)


def decoded(steps: Int8Array, scales: UInt16Array) -> Float32Array:
    """The rows float32 [n, r] that steps and scales stand for: one exact product each."""
    return steps.astype(np.float32) * scale_values(scales)[:, None]


def joined(biases: Float32Array, trust: Float32Array) -> UInt32Array:
    """Biases of 16 significant bits as float32, and in its last 8 bits trusts in 255ths, uint32 [n].

    Raises:
      DataError: a bias is not finite, or further than 2^40 from 0.
    """
    if not (np.abs(biases) <= LARGEST).all():  # also false for a value that is not a number
        raise DataError("Expected item biases to be finite and within 2^40 of 0: train the model again")
    bits = np.ascontiguousarray(biases, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(_TRUST_BITS // 2 + 1)) & ~np.uint32(_TRUST_BITS)
    steps = np.rint(np.clip(np.nan_to_num(trust), 0.0, 1.0) * _TRUST_BITS).astype(np.uint32)
    return np.asarray(rounded | steps)


def bias_values(both: UInt32Array) -> Float32Array:
    """The biases of ``joined``, float32."""
    return (both & ~np.uint32(_TRUST_BITS)).view(np.float32)


def trust_values(both: UInt32Array) -> Float32Array:
    """The trusts of ``joined``, float32 from 0 to 1."""
    return (both & np.uint32(_TRUST_BITS)).astype(np.float32) / np.float32(_TRUST_BITS)


MOST_ITEMS = 2**24
MOST_RANK = 256

_BLOCK = 2**15  # items that are checked at a time


@dataclass(frozen=True, eq=False, repr=False)
class ItemIndex:
    """Quantised items, and what a device needs to score them. ``odp.serving.open_index`` reads one from a file.

    Attributes:
      steps: int8 [m, r].
      scales: uint16 [m]; see ``odp.serving.item_index``.
      biases: uint32 [m], a bias and a trust each (``odp.serving.item_index.joined``): what an item's score begins with,
        and how much its row counts where the person's own is solved.
      keys: of the items.
      task: the signed task of the model, serialized; without a signature for a simulation.
      tables: the dense tables of the model, float32 [n, width], by name.
      facts: name -> text, as ``odp.items.export_items`` has them.
      version: of the model.
      sha256: of the index's file, in hexadecimal digits.
    """

    steps: Int8Array = field(repr=False)
    scales: UInt16Array
    biases: UInt32Array
    keys: ItemKeys
    task: bytes
    tables: Mapping[str, Float32Array]
    facts: Mapping[str, str]
    version: int
    sha256: str

    def __len__(self) -> int:
        return len(self.scales)

    def __repr__(self) -> str:
        return f"ItemIndex({len(self)} items, {self.rank} factors, {self.sha256[:12]})"

    @property
    def rank(self) -> int:
        """Factors per item."""
        return int(self.steps.shape[1])

    def columns(self, items: Int64Array) -> IndexColumns:
        """The numbers of some items, decoded."""
        return IndexColumns(
            factors=decoded(self.steps[items], self.scales[items]),
            biases=bias_values(self.biases[items]),
            trust=trust_values(self.biases[items]),
        )

    def check(self) -> None:
        """Raises DataError for a number that no index has. ``ItemKeys.check`` looks at the keys."""
        for start in range(0, len(self), _BLOCK):
            block = slice(start, start + _BLOCK)
            if self.steps[block].size and int(self.steps[block].min()) < -STEPS:
                raise DataError("a step of a row is -128, which no index has")
            if int(self.scales[block].max()) > LARGEST_SCALE:
                raise DataError("a scale of a row is not finite or beyond 2^40")
            # Also false for a bias that is not a number.
            if not (np.abs(bias_values(self.biases[block])) <= LARGEST).all():
                raise DataError("a bias is not finite or beyond 2^40")
        for name, rows in self.tables.items():
            if not np.isfinite(rows).all():
                raise DataError(f"table {name!r} has a number that is not finite")


def packed(columns: IndexColumns) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an index, by attribute.

    Raises:
      DataError: a number is not finite, or further than 2^40 from 0.
    """
    steps, scales = quantised(columns.factors)
    return {"steps": steps, "scales": scales, "biases": joined(columns.biases, columns.trust)}

"""Keys of items as one text: where each ends, and the bytes. A file of them is read in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError
from odp.models.warm_start import checked_keys
from odp.numerics.arrays import Int64Array, UInt8Array

UInt32Array = npt.NDArray[np.uint32]

MOST_BYTES = 2**32 - 1
_BLOCK = 2**14  # keys that are read at a time
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
        for first in range(0, len(self), _BLOCK):
            ends = self.ends[first : first + _BLOCK]
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
        for first in range(0, len(self), _BLOCK):
            ends = self.ends[first : first + _BLOCK].tolist()
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

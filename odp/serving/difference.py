"""What turns one index into another: rows that changed, rows of new items, and where the others were.

A difference is the same for every device and is fetched whole, so no request tells which items a device knows. It
names both files by their SHA-256. What ``apply`` returns has the second one, to the bit, or nothing is returned: a
difference for another index, or a damaged one, leaves the old index as it is.

Little-endian: ``odp-diff``, version, length of the header, header (JSON: base, result, sizes), then a zlib stream of

=========  ==================================================================================
part       holds
=========  ==================================================================================
header     that of the new file
task       the new file's
tables     the new file's, float32
runs       uint32 [n, 2]: first item of the old index, number of items; 2^32 - 1 for new items
changed    uint32 [c]: numbers of items in the new index whose numbers changed, ascending
rows       c changed items: steps less the old ones (modulo 256), biases, scales
new        a new items: steps, biases, scales, ends of their keys, keys
=========  ==================================================================================

Items are matched by key, so that a new catalogue may have them in another order.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import BoolArray, Int64Array
from odp.serving.index_file import LARGEST_HEADER, Header, arrays_of, index_of, made, open_index, save_index
from odp.serving.item_index import ItemIndex, ItemKeys

_MAGIC, _VERSION = b"odp-diff", 1
_FIRST = struct.Struct("<8sII")
_LARGEST_HEADER = 2**12
_LEVEL = 6
_NEW = 2**32 - 1
_NUMBERS = ("steps", "biases", "scales")
_SIZES = ("head_bytes", "runs", "changed", "new", "new_key_bytes")

_Parts = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Described:
    """What a difference says of itself: hashes of both files, and how many items changed, came and went."""

    base: str
    result: str
    changed: int
    new: int
    head_bytes: int
    runs: int
    new_key_bytes: int


def difference(old: ItemIndex, new: ItemIndex) -> bytes:
    """The difference from ``old`` to ``new``.

    Raises:
      ConfigurationError: the two have other ranks: devices have to fetch the new index.
    """
    if old.rank != new.rank:
        raise ConfigurationError(
            f"Expected two indexes of one rank (got {old.rank} and {new.rank}): devices have to fetch the new index"
        )
    place_of = {key: place for place, key in enumerate(old.keys)}
    places = np.array([place_of.get(key, -1) for key in new.keys], dtype=np.int64)
    del place_of
    ours, theirs = arrays_of(old), arrays_of(new)
    changed, added = _changed(ours, theirs, places), np.flatnonzero(places < 0)
    runs, head = _runs(places), Header.of(new).to_bytes()
    parts = _part_arrays(theirs, changed) | {f"new_{name}": part for name, part in _part_arrays(theirs, added).items()}
    parts["steps"] = (parts["steps"].view(np.uint8) - ours["steps"][places[changed]].view(np.uint8)).view(np.int8)
    keys = [new.keys[place].encode() for place in added.tolist()]
    parts |= {
        "head": np.frombuffer(head, dtype=np.uint8), "task": theirs["task"], "runs": runs, "places": changed,
        "new_ends": np.cumsum([len(key) for key in keys], dtype=np.int64),
        "new_text": np.frombuffer(b"".join(keys), dtype=np.uint8),
        **{name: table for name, table in theirs.items() if name.startswith("table:")},
    }  # fmt: skip
    description = Described(
        base=old.sha256, result=new.sha256, changed=len(changed), new=len(added), head_bytes=len(head), runs=len(runs),
        new_key_bytes=len(parts["new_text"]),
    )  # fmt: skip
    written = json.dumps(vars(description), sort_keys=True, separators=(",", ":")).encode()
    packer, body = zlib.compressobj(_LEVEL), []
    for name, kind, shape in _layout(description, Header.of(new)):
        body.append(packer.compress(np.ascontiguousarray(parts[name], dtype=kind).reshape(shape).tobytes()))
    return b"".join((_FIRST.pack(_MAGIC, _VERSION, len(written)), written, *body, packer.flush()))


def described(data: bytes) -> Described:
    """What a difference says of itself. Raises DataError where it is none, or is damaged in front."""
    if len(data) < _FIRST.size or data[: len(_MAGIC)] != _MAGIC:
        raise DataError("this is no difference of indexes; write one by `odp index difference`")
    _, version, length = _FIRST.unpack(data[: _FIRST.size])
    if version != _VERSION:
        raise DataError(f"the difference has version {version}, and this program reads {_VERSION}; update odp")
    try:
        description = Described(**json.loads(data[_FIRST.size :][: min(length, _LARGEST_HEADER)]))
        valid = all(len(bytes.fromhex(digest)) == 32 for digest in (description.base, description.result))
        valid &= all(
            type(getattr(description, name)) is int and 0 <= getattr(description, name) <= _NEW for name in _SIZES
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError("the header of the difference is damaged; fetch it again") from error
    if not valid:
        raise DataError("the header of the difference has a size that is out of range; fetch it again")
    return description


def apply(old: ItemIndex, data: bytes) -> ItemIndex:
    """The index that a difference leads to from ``old``, in memory.

    Raises:
      DataError: the difference is for another index, is damaged, or does not give the index that it names.
    """
    description = described(data)
    if description.base != old.sha256:
        raise DataError(
            f"the difference is for index {description.base[:12]}, and this is {old.sha256[:12]}; fetch "
            "the difference from "
            "this one, or the whole index"
        )
    try:
        result = _applied(old, description, _Stream(data[_body_start(data) :]))
    except (zlib.error, ValueError, IndexError, MemoryError, OverflowError) as error:
        raise _damaged() from error
    if result.sha256 != description.result:
        raise DataError(f"the difference does not give index {description.result[:12]}, which it names: fetch it again")
    return result


def update_file(path: str | Path, data: bytes) -> str:
    """Puts the index that a difference leads to in the place of the one in a file; its SHA-256.

    A program that has the old one open keeps it until it opens the file again.

    Raises:
      DataError: as ``open_index`` and ``apply``; the file is as it was.
      ConfigurationError: the new one cannot be written; the file is as it was.
    """
    new = apply(open_index(path), data)
    save_index(new, path)
    return new.sha256


def _applied(old: ItemIndex, description: Described, stream: _Stream) -> ItemIndex:
    if description.head_bytes > LARGEST_HEADER:
        raise _damaged()
    header = Header.parse(stream.take(description.head_bytes))
    if header.rank != old.rank:
        raise DataError("the difference is for another rank")
    # Before anything of these sizes is unpacked: few bytes of zlib may stand for many.
    if (
        max(description.changed + description.new, description.runs) > header.items
        or header.items > len(old) + description.new
        or description.new_key_bytes > header.key_bytes
    ):
        raise _damaged()
    parts: _Parts = {}
    for name, kind, shape in _layout(description, header)[1:]:
        count = int(np.prod(shape))
        parts[name] = np.frombuffer(stream.take(kind.itemsize * count), dtype=kind).reshape(shape)
    stream.end()
    places = _places(parts["runs"].astype(np.int64), len(old), header.items, description.new)
    ours = arrays_of(old)
    added, changed = places < 0, parts["places"].astype(np.int64)
    if changed.size and (np.any(np.diff(changed) <= 0) or changed[-1] >= len(places) or added[changed].any()):
        raise _damaged()
    arrays: _Parts = {name: ours[name][places] for name in _NUMBERS}
    for name in _NUMBERS:
        numbers_of_name = parts[name]
        if name == "steps":
            numbers_of_name = (numbers_of_name.view(np.uint8) + arrays[name][changed].view(np.uint8)).view(np.int8)
        arrays[name][changed] = numbers_of_name
        arrays[name][added] = parts[f"new_{name}"]
    ends, text = parts["new_ends"], parts["new_text"]
    new_keys = ItemKeys(ends, text)
    if len(new_keys):
        new_keys.check()
        _check_new(new_keys, old.keys, places)
    keys = _joined(old.keys, new_keys, parts["runs"].astype(np.int64))
    arrays |= {"task": parts["task"], "ends": keys.ends, "text": keys.text}
    arrays |= {name: part for name, part in parts.items() if name.startswith("table:")}
    if len(keys.text) != header.key_bytes:
        raise _damaged()
    result = index_of(header, arrays, sha256="")
    result.keys.check()
    result.check()
    return made(result)


def _layout(description: Described, header: Header) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """(name, type, shape) of each part of the stream, in their order."""
    kinds = {name: (kind, shape[1:]) for name, kind, shape in header.sections()}

    def numbers(prefix: str, count: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        return [(prefix + name, kinds[name][0], (count, *kinds[name][1])) for name in _NUMBERS]

    small = [section for section in header.sections() if section[0] == "task" or section[0].startswith("table:")]
    return [
        ("head", np.dtype("u1"), (description.head_bytes,)),
        *small,
        ("runs", np.dtype("<u4"), (description.runs, 2)),
        ("places", np.dtype("<u4"), (description.changed,)),
        *numbers("", description.changed),
        *numbers("new_", description.new),
        ("new_ends", np.dtype("<u4"), (description.new,)),
        ("new_text", np.dtype("u1"), (description.new_key_bytes,)),
    ]


def _part_arrays(arrays: _Parts, items: Int64Array) -> _Parts:
    return {name: arrays[name][items] for name in _NUMBERS}


def _changed(ours: _Parts, theirs: _Parts, places: Int64Array) -> Int64Array:
    """Numbers of items of the new index that the old one has, with other numbers."""
    matched = np.flatnonzero(places >= 0)
    before = places[matched]
    differs: BoolArray = (ours["steps"][before] != theirs["steps"][matched]).any(axis=1)
    for name in ("scales", "biases"):
        differs |= ours[name][before] != theirs[name][matched]
    return matched[differs]


def _runs(places: Int64Array) -> Int64Array:
    """int64 [n, 2] of places in the old index, -1 for new items."""
    new = places < 0
    follows = np.where(new[1:], new[:-1], ~new[:-1] & (np.diff(places) == 1))
    starts = np.flatnonzero(np.concatenate(([True], ~follows)))
    firsts = np.where(new[starts], _NEW, places[starts])
    return np.stack((firsts, np.diff(np.append(starts, len(places)))), axis=1)


def _places(runs: Int64Array, old_items: int, items: int, new: int) -> Int64Array:
    """The inverse of ``_runs``. Raises DataError where runs do not fit the two indexes."""
    firsts, counts = runs[:, 0], runs[:, 1]
    added = firsts == _NEW
    fits = (counts > 0) & (added | (firsts + counts <= old_items))
    if not fits.all() or int(counts.sum()) != items or int(counts[added].sum()) != new:
        raise _damaged()
    within = np.arange(items) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.where(np.repeat(added, counts), -1, np.repeat(firsts, counts) + within)
    used = places[places >= 0]
    if used.size and int(np.bincount(used).max()) > 1:  # an item of the old index would stand twice
        raise _damaged()
    return places


def _check_new(new: ItemKeys, old: ItemKeys, places: Int64Array) -> None:
    """Raises DataError where a new key stands twice, or is that of an item that stays."""
    keys = list(new)
    before = old.places(keys)
    if len(set(keys)) != len(keys) or np.isin(before[before >= 0], places).any():
        raise _damaged()


def _joined(old: ItemKeys, new: ItemKeys, runs: Int64Array) -> ItemKeys:
    """Keys of both, in the order of runs that fit them."""
    sizes, texts, taken = [], [], 0
    for first, count in runs.tolist():
        source, place = (new, taken) if first == _NEW else (old, first)
        taken += count if first == _NEW else 0
        begin, end = source.start(place), int(source.ends[place + count - 1])
        texts.append(source.text[begin:end])
        sizes.append(np.diff(source.ends[place : place + count].astype(np.int64), prepend=begin))
    return ItemKeys(np.cumsum(np.concatenate(sizes)).astype(np.uint32), np.concatenate(texts))


def _damaged() -> DataError:
    return DataError("the difference is damaged: fetch it again")


class _Stream:
    """The bytes of a zlib stream, as many as are asked for: a damaged one cannot fill the memory."""

    def __init__(self, data: bytes) -> None:
        self._waiting, self._unpacker = data, zlib.decompressobj()

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. Raises zlib.error, and DataError where the stream ends before."""
        if not size:
            return b""
        content = self._unpacker.decompress(self._waiting, size)
        self._waiting = self._unpacker.unconsumed_tail
        if len(content) != size:
            raise DataError("the difference is truncated: fetch it again")
        return content

    def end(self) -> None:
        """Raises DataError where there is more, or the stream is not whole."""
        more = self._unpacker.decompress(self._waiting, 1)
        if more or not self._unpacker.eof or self._unpacker.unused_data:
            raise _damaged()


def _body_start(data: bytes) -> int:
    return _FIRST.size + int(_FIRST.unpack(data[: _FIRST.size])[2])

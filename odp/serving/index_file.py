"""The file of an item index: written whole or not at all, checked byte by byte, read in place.

Little-endian. Every section begins at a multiple of 64 bytes; between two there are zeros.

===========  ===========================================================================
bytes        hold
===========  ===========================================================================
8            ``odp-indx``
4, 4         version of the format; length of the header
32           SHA-256 of the 16 bytes before, and of all that follow
header       JSON: items, rank, model_version, key_bytes, task_bytes, tables, facts
m r          steps, int8
4 m          biases and trust, uint32
2 m          scales, uint16
task_bytes   the signed task
tables       float32, in the order of the header
4 m          ends of keys, uint32
key_bytes    keys, UTF-8
===========  ===========================================================================

The same model, keys and facts give the same bytes. The SHA-256 names the file: a difference names the two files that
it leads from and to, and an app that gets its files from elsewhere can ask for the one that it knows.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from odp._system.files.durability import write_whole
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float32Array
from odp.serving.item_index import MOST_BYTES, MOST_ITEMS, MOST_RANK, ItemIndex, ItemKeys

_MAGIC, _VERSION = b"odp-indx", 1
_FIRST = struct.Struct("<8sII")
_DIGEST = hashlib.sha256().digest_size
_ALIGNED = 64
LARGEST_HEADER = 2**20
_LARGEST_TASK = 2**20
_MOST_TABLES = 16
_LARGEST_TABLE = 2**20  # numbers
_PIECE = 2**18


@dataclass(frozen=True)
class Header:
    """Sizes of a file's sections, and the facts. ``tables`` are (name, rows, width)."""

    items: int
    rank: int
    model_version: int
    key_bytes: int
    task_bytes: int
    tables: tuple[tuple[str, int, int], ...]
    facts: Mapping[str, str]

    @classmethod
    def of(cls, index: ItemIndex) -> Header:
        """The header of an index."""
        tables = tuple((name, *rows.shape) for name, rows in index.tables.items())
        return cls(
            items=len(index), rank=index.rank, model_version=index.version, key_bytes=len(index.keys.text),
            task_bytes=len(index.task), tables=tables, facts=dict(index.facts),
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """JSON, the same for equal headers."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """The header of its JSON. Raises DataError where a field is missing, unknown or out of range."""
        try:
            fields = json.loads(data)
            header = cls(**{**fields, "tables": tuple((name, rows, width) for name, rows, width in fields["tables"])})
            counts = {
                "items": (1, MOST_ITEMS), "rank": (0, MOST_RANK), "model_version": (0, 2**31),
                "key_bytes": (1, MOST_BYTES), "task_bytes": (0, _LARGEST_TASK),
            }  # fmt: skip
            valid = all(_whole(getattr(header, name), *bounds) for name, bounds in counts.items())
            valid &= len(header.tables) <= _MOST_TABLES and isinstance(header.facts, dict)
            valid &= all(isinstance(text, str) for text in header.facts.values())
            valid &= len({name for name, _, _ in header.tables}) == len(header.tables)
            # Raises for text that is no Unicode.
            json.dumps(fields, ensure_ascii=False).encode()
            for name, rows, width in header.tables:
                valid &= isinstance(name, str) and _whole(rows, 0, _LARGEST_TABLE) and _whole(width, 0, _LARGEST_TABLE)
                valid &= rows * width <= _LARGEST_TABLE
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError("its header is damaged") from error
        if not valid:
            raise DataError("its header has a size that is out of range, or a table twice")
        return header

    def sections(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """(name, type, shape) of each section, in their order; a table's name is behind ``table:``."""
        m = self.items
        fixed = [
            ("steps", "i1", (m, self.rank)), ("biases", "<u4", (m,)), ("scales", "<u2", (m,)),
            ("task", "u1", (self.task_bytes,)),
            *((f"table:{name}", "<f4", (rows, width)) for name, rows, width in self.tables),
            ("ends", "<u4", (m,)), ("text", "u1", (self.key_bytes,)),
        ]  # fmt: skip
        return [(name, np.dtype(kind), shape) for name, kind, shape in fixed]


def made(index: ItemIndex) -> ItemIndex:
    """The index with the SHA-256 of its file. Raises ConfigurationError where it is larger than a file may be."""
    header = Header.of(index)
    try:
        Header.parse(header.to_bytes())
    except DataError as error:
        raise ConfigurationError(f"cannot make an index of {header.items} items: {error}") from error
    if len(header.to_bytes()) > LARGEST_HEADER:
        raise ConfigurationError(f"Expected facts to take at most {LARGEST_HEADER} bytes")
    digest = hashlib.sha256()
    first, rest = _pieces(index)
    digest.update(first)
    for piece in rest:
        digest.update(piece)
    return replace(index, sha256=digest.hexdigest())


def save_index(index: ItemIndex, path: str | Path) -> None:
    """Writes the file; one of that name keeps its bytes until the new ones are whole.

    Raises:
      ConfigurationError: it cannot be written.
    """
    first, rest = _pieces(index)
    # Half a file would cost every device the whole index again.
    write_whole(path, itertools.chain((first, bytes.fromhex(index.sha256)), rest))


def open_index(path: str | Path, *, sha256: str | None = None) -> ItemIndex:
    """An index that lies in its file: what is not read takes no memory.

    The file is read once and every byte of it is checked, which takes longer than a scan. It must not be written to
    while it is open; ``save_index`` and ``update_file`` put another file in its place.

    Args:
      path: of the file.
      sha256: of the file that is expected, as ``ItemIndex.sha256`` has it; by default any.

    Raises:
      DataError: the file cannot be read, is truncated or damaged, or is another one than expected.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _opened(file, path, sha256)
    except OSError as error:
        raise DataError(f"cannot read the index {path}: {error.strerror or error}") from error
    except DataError as error:
        raise DataError(f"index {path}: {error}") from error


def _opened(file: BinaryIO, path: Path, sha256: str | None) -> ItemIndex:
    first = file.read(_FIRST.size + _DIGEST)
    if len(first) < _FIRST.size + _DIGEST or first[: len(_MAGIC)] != _MAGIC:
        raise DataError("this is no index of items; write one by `odp task export TASK items.index`")
    _, version, length = _FIRST.unpack(first[: _FIRST.size])
    if version != _VERSION:
        raise DataError(f"it has version {version} of the format, and this program reads {_VERSION}; update odp")
    if length > LARGEST_HEADER:
        raise DataError("its header is damaged")
    header = Header.parse(file.read(length))
    places, end = _places(header, length)
    if (size := file.seek(0, io.SEEK_END)) != end:
        raise DataError(f"it has {size} bytes instead of {end}: it is truncated or damaged; fetch it again")
    digest, stated = _digest_of(file, first), first[_FIRST.size :].hex()
    if digest != stated:
        raise DataError("its content does not have the SHA-256 that it names: it is damaged; fetch it again")
    if sha256 is not None and digest != sha256:
        raise DataError(f"it is {digest[:12]}, and {sha256[:12]} was expected; fetch that one, or its difference")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {
        name: np.frombuffer(mapped, dtype=kind, count=int(np.prod(shape)), offset=places[name]).reshape(shape)
        for name, kind, shape in header.sections()
    }
    index = index_of(header, arrays, sha256=digest)
    index.keys.check()
    if hasattr(mmap, "MADV_DONTNEED"):
        # Of the keys, those of the items that are shown are read again: the others need no memory until then.
        mapped.madvise(mmap.MADV_DONTNEED, places["ends"] // mmap.PAGESIZE * mmap.PAGESIZE)
    index.check()
    return index


def index_of(header: Header, arrays: Mapping[str, npt.NDArray[Any]], *, sha256: str) -> ItemIndex:
    """The index of a header and the arrays of its sections."""
    tables: dict[str, Float32Array] = {name: arrays[f"table:{name}"] for name, _, _ in header.tables}
    return ItemIndex(
        steps=arrays["steps"], scales=arrays["scales"], biases=arrays["biases"],
        keys=ItemKeys(arrays["ends"], arrays["text"]), task=arrays["task"].tobytes(), tables=tables,
        facts=header.facts, version=header.model_version, sha256=sha256,
    )  # fmt: skip


def arrays_of(index: ItemIndex) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an index by section."""
    return {
        "steps": index.steps, "biases": index.biases, "scales": index.scales,
        "task": np.frombuffer(index.task, dtype=np.uint8), "ends": index.keys.ends, "text": index.keys.text,
        **{f"table:{name}": rows for name, rows in index.tables.items()},
    }  # fmt: skip


def _pieces(index: ItemIndex) -> tuple[bytes, Iterator[bytes | memoryview]]:
    """(what is before the SHA-256, what is behind it)."""
    header = Header.of(index)
    written, arrays = header.to_bytes(), arrays_of(index)

    def rest() -> Iterator[bytes | memoryview]:
        yield written
        at = _FIRST.size + _DIGEST + len(written)
        for name, kind, shape in header.sections():
            yield bytes(-at % _ALIGNED)
            at += -at % _ALIGNED
            array = np.ascontiguousarray(arrays[name], dtype=kind)
            if array.size:
                yield array.data.cast("B")
            at += array.nbytes
            if array.shape != shape:
                raise ConfigurationError(f"Expected {name} of an index to have the shape {shape} (got {array.shape})")

    return _FIRST.pack(_MAGIC, _VERSION, len(written)), rest()


def _places(header: Header, length: int) -> tuple[dict[str, int], int]:
    """(where each section begins, the file's size)."""
    places, at = {}, _FIRST.size + _DIGEST + length
    for name, kind, shape in header.sections():
        at += -at % _ALIGNED
        places[name] = at
        at += kind.itemsize * int(np.prod(shape))
    return places, at


def _digest_of(file: BinaryIO, first: bytes) -> str:
    """SHA-256 of a file without the one that it names, read in pieces."""
    digest = hashlib.sha256(first[: _FIRST.size])
    file.seek(len(first))
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

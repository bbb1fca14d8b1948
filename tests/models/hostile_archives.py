"""npz files that were made or damaged to mislead their reader: each of one array, ``name``."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

_SOME = np.random.default_rng(1).normal(size=200).astype(np.float32)


def _npy(descr: str, shape: str, data: bytes) -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    head += b" " * (117 - len(head)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def _saved(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def _archive(name: str, member: bytes) -> bytearray:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", member)
    return bytearray(file.getvalue())


def _encrypted(name: str) -> bytearray:
    data = _archive(name, _saved(_SOME))
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    return data


def _method(name: str) -> bytearray:
    data = _archive(name, _saved(_SOME))
    data[data.find(b"PK\x01\x02") + 10] = 99
    return data


def _damaged(name: str) -> bytearray:
    data = _archive(name, _saved(_SOME))
    at = 30 + len(f"{name}.npy")
    data[at] = 0xFF  # a block of a kind that there is not
    return data


#: Case -> the file, given the name of its array.
KINDS: dict[str, Callable[[str], bytearray]] = {
    "objects": lambda name: _archive(name, _saved(np.array([{}], dtype=object))),
    "negative": lambda name: _archive(name, _npy("<f4", "(-1,)", bytes(8))),
    "huge": lambda name: _archive(name, _npy("<f4", f"({2**60},)", bytes(8))),
    "overflow": lambda name: _archive(name, _npy("<f4", f"({2**40}, {2**40})", bytes(8))),
    "no array": lambda name: _archive(name, b"garbage"),
    "empty": lambda name: _archive(name, b""),
    "encrypted": _encrypted,
    "method": _method,
    "damaged": _damaged,
}


def write(folder: Path, kind: str, name: str) -> Path:
    """The file of a kind."""
    path = folder / "hostile.npz"
    path.write_bytes(KINDS[kind](name))
    return path

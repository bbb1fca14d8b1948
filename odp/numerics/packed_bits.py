"""Rows of whole numbers of 1 to 16 bits each, packed without gaps: the most significant bit first.

Eight numbers of ``width`` bits are ``width`` bytes, so every group of eight begins at a byte, and one operation moves
the k-th number of all groups. The bits after a row's last number are zero.

    >>> packed = pack(np.array([[1, 2, 3]], dtype=np.uint16), 10)
    >>> packed.tobytes().hex()
    '0040200c'
    >>> unpack(packed, 3, 10)
    array([[1, 2, 3]], dtype=uint16)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_GROUP = 8
_GROUPS = 2**13  # per pass: its wider copies stay in the processor's cache
_WHOLE_BYTES: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype(">u2")}
_WINDOW = 24  # bits of three bytes, in which a number of 16 bits lies wherever it begins


def packed_bytes(count: int, width: int) -> int:
    """Length of a row of ``count`` numbers of ``width`` bits."""
    return -(-count * width // 8)


def pack(numbers: npt.NDArray[np.uint16], width: int) -> npt.NDArray[np.uint8]:
    """The rows of ``numbers`` [rows, count], each below 2^width, as uint8 [rows, bytes]."""
    rows, count = numbers.shape
    if width in _WHOLE_BYTES:
        return numbers.astype(_WHOLE_BYTES[width]).view(np.uint8).reshape(rows, packed_bytes(count, width))
    packed = np.zeros((rows, packed_bytes(count, width)), dtype=np.uint8)
    for first in range(0, count, _GROUP * _GROUPS):
        part = numbers[:, first : first + _GROUP * _GROUPS]
        groups = -(-part.shape[1] // _GROUP)
        padded = np.zeros((rows, groups * _GROUP), dtype=np.uint32)
        padded[:, : part.shape[1]] = part
        # Two bytes of room: a number's window of three bytes may reach beyond its group.
        wide = np.zeros((rows, groups, width + 2), dtype=np.uint8)
        for place in range(_GROUP):
            byte, shift = _window(place, width)
            shifted = padded[:, place::_GROUP] << shift
            for offset in range(3):
                wide[:, :, byte + offset] |= (shifted >> np.uint32(16 - 8 * offset)).astype(np.uint8)
        start = first // _GROUP * width
        target = packed[:, start : start + groups * width]
        target[...] = wide[:, :, :width].reshape(rows, groups * width)[:, : target.shape[1]]
    return packed


def unpack(packed: npt.NDArray[np.uint8], count: int, width: int) -> npt.NDArray[np.uint16]:
    """The numbers of rows uint8 [rows, bytes], uint16 [rows, count]: the inverse of ``pack``."""
    rows = len(packed)
    if width in _WHOLE_BYTES:
        return np.ascontiguousarray(packed).view(_WHOLE_BYTES[width]).astype(np.uint16).reshape(rows, count)
    numbers = np.empty((rows, count), dtype=np.uint16)
    mask = np.uint32((1 << width) - 1)
    for first in range(0, count, _GROUP * _GROUPS):
        part = numbers[:, first : first + _GROUP * _GROUPS]
        groups = -(-part.shape[1] // _GROUP)
        start = first // _GROUP * width
        source = packed[:, start : start + groups * width]
        padded = np.zeros((rows, groups * width), dtype=np.uint8)
        padded[:, : source.shape[1]] = source
        wide = np.zeros((rows, groups, width + 2), dtype=np.uint32)
        wide[:, :, :width] = padded.reshape(rows, groups, width)
        unpacked_groups = np.empty((rows, groups, _GROUP), dtype=np.uint16)
        for place in range(_GROUP):
            byte, shift = _window(place, width)
            window = (wide[:, :, byte] << np.uint32(16)) | (wide[:, :, byte + 1] << np.uint32(8)) | wide[:, :, byte + 2]
            unpacked_groups[:, :, place] = (window >> shift) & mask
        part[...] = unpacked_groups.reshape(rows, groups * _GROUP)[:, : part.shape[1]]
    return numbers


def spare_bits(packed: npt.NDArray[np.uint8], count: int, width: int) -> npt.NDArray[np.bool_]:
    """Whether a row uint8 [rows, bytes] has a bit set after its last number, bool [rows]."""
    spare = packed.shape[1] * 8 - count * width
    spare_set: npt.NDArray[np.bool_] = (packed[:, -1] & np.uint8((1 << spare) - 1)) != 0
    return spare_set


def _window(place: int, width: int) -> tuple[int, np.uint32]:
    """The first byte of a number's window of three within its group, and how far the number is from its end."""
    byte, bit = divmod(place * width, 8)
    return byte, np.uint32(_WINDOW - bit - width)

"""Encodings of a table's rows: float32, float16, or int8 with a scale per row. Needs only numpy.

=========  =====================  ==============================================================
encoding   bytes per row          distance of a decoded value from the given one, at most
=========  =====================  ==============================================================
float32    4 width                0 (of float32 values)
float16    2 width                2^-11 of the value; 2^-25 below 2^-14
int8       4 + width              half a scale, with scale <= (1 + 2^-15) of the row's largest
                                  absolute value / 127; a row below 2^-119 becomes zeros
=========  =====================  ==============================================================

Encoding what was decoded gives the same bytes: a scale has 16 significant bits, so that its products with integers up
to 127 are exact. Decoding is defined for every platform alike: one exact conversion, or one exact product, per value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from odp._validate import one_of
from odp.errors import ConfigurationError
from odp.v1 import encoding_pb2

Encoding = Literal["float32", "float16", "int8"]
Float32Array = npt.NDArray[np.float32]

ENCODINGS: tuple[Encoding, ...] = ("float32", "float16", "int8")

_NUMBERS: Mapping[Encoding, encoding_pb2.TableEncoding] = {
    "float32": encoding_pb2.TABLE_ENCODING_UNSPECIFIED,
    "float16": encoding_pb2.TABLE_ENCODING_FLOAT16,
    "int8": encoding_pb2.TABLE_ENCODING_INT8,
}
_NAMES: Mapping[int, Encoding] = {int(number): name for name, number in _NUMBERS.items()}
_LARGEST: Mapping[Encoding, float] = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "int8": 2.0**120}
_SCALE = np.dtype("<f4")
_STEPS = 127
# A smaller scale would be subnormal, or nearly so: its products would lose bits.
_SMALLEST_SCALE = np.float32(2.0**-126)
_LOW_BITS = np.uint32(2**8 - 1)


def number_of(encoding: Encoding) -> encoding_pb2.TableEncoding:
    """The encoding's number in a manifest. Raises ConfigurationError for an unknown name."""
    one_of(list(ENCODINGS), encoding=encoding)
    return _NUMBERS[encoding]


def encoding_of(number: int) -> Encoding:
    """The encoding of a manifest's number. Raises ConfigurationError for one that this version does not know."""
    try:
        return _NAMES[number]
    except KeyError:
        raise ConfigurationError(f"Expected encoding={number} to be one that this version knows; update it") from None


def row_bytes(width: int, encoding: Encoding) -> int:
    """Bytes of one row of ``width`` numbers."""
    return {"float32": 4 * width, "float16": 2 * width, "int8": _SCALE.itemsize + width}[encoding]


def encoded(rows: npt.ArrayLike, encoding: Encoding) -> bytes:
    """The bytes of ``rows`` float [n, width].

    Raises:
      ConfigurationError: the encoding is unknown, or a value is not finite or beyond the encoding's range.
    """
    one_of(list(ENCODINGS), encoding=encoding)
    values = np.asarray(rows, dtype=np.float32)
    if encoding == "float32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    largest = np.abs(values).max(axis=1, initial=0.0)  # [n]
    if not (largest <= _LARGEST[encoding]).all():  # also false for a value that is not a number
        raise ConfigurationError(
            f"Expected all values to be finite and within {_LARGEST[encoding]:g} of 0 for encoding={encoding!r}"
        )
    if encoding == "float16":
        return values.astype("<f2").tobytes()
    scales = _scales(largest)
    divisors = np.where(scales > 0, scales, np.float32(1)).astype(np.float64)
    steps = np.rint(np.where(scales[:, None] > 0, values, np.float32(0)) / divisors[:, None])
    written = np.empty((len(values), row_bytes(values.shape[1], "int8")), dtype=np.uint8)
    written[:, : _SCALE.itemsize] = scales.astype(_SCALE)[:, None].view(np.uint8)
    written[:, _SCALE.itemsize :] = steps.astype(np.int8).view(np.uint8)
    return written.tobytes()


def decoded(data: bytes | bytearray | memoryview, width: int, encoding: Encoding) -> Float32Array:
    """The rows float32 [n, width] of ``data``, whose length is a multiple of ``row_bytes``.

    Raises:
      ConfigurationError: the length is no multiple, or the bytes are none that ``encoded`` writes: a value or scale
        that is not finite, a negative or too small scale, an int8 of -128.
    """
    rows = decoded_as_is(data, width, encoding)
    if not np.isfinite(rows).all():
        raise ConfigurationError(
            "a row of int8 has a scale or a step that no encoder writes"
            if encoding == "int8"
            else "a value is not finite"
        )
    return rows


def decoded_as_is(data: bytes | bytearray | memoryview, width: int, encoding: Encoding) -> Float32Array:
    """As ``decoded``, but accepts any values: they may be NaN or infinite.

    A row of int8 that ``encoded`` does not write is NaN throughout.

    Raises:
      ConfigurationError: the length is no multiple.
    """
    if len(data) % row_bytes(width, encoding):
        raise ConfigurationError(f"Expected rows of {row_bytes(width, encoding)} bytes each, got {len(data)} bytes")
    if encoding == "int8":
        return _from_steps(np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes(width, encoding)))
    written = np.frombuffer(data, dtype="<f4" if encoding == "float32" else "<f2").reshape(-1, width)
    return written.astype(np.float32, copy=False)


def rounded(rows: npt.ArrayLike, encoding: Encoding) -> Float32Array:
    """The values that a reader of the encoded ``rows`` gets, float32 of the same shape. Raises as ``encoded``."""
    values = np.asarray(rows, dtype=np.float32)
    return values if encoding == "float32" else decoded(encoded(values, encoding), values.shape[1], encoding)


def _scales(largest: Float32Array) -> Float32Array:
    bits = (largest / np.float32(_STEPS)).astype(np.float32).view(np.uint32)
    scales = ((bits + _LOW_BITS) & ~_LOW_BITS).view(np.float32)
    return np.where(scales < _SMALLEST_SCALE, np.float32(0), scales).astype(np.float32)


def _from_steps(written: npt.NDArray[np.uint8]) -> Float32Array:
    scales = np.ascontiguousarray(written[:, : _SCALE.itemsize]).view(_SCALE)[:, 0].astype(np.float32)
    steps = written[:, _SCALE.itemsize :].view(np.int8)
    valid = (scales == 0) | ((scales >= _SMALLEST_SCALE) & (scales <= np.float32(_LARGEST["int8"])))
    valid &= (steps >= -_STEPS).all(axis=1) & ~np.signbit(scales)
    return np.where(valid, scales, np.float32(np.nan))[:, None] * steps.astype(np.float32)

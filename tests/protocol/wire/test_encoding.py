"""Encodings of table rows: their errors, and what decoders refuse."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import ENCODINGS, Encoding, decoded, encoded, encoding_of, number_of, rounded, row_bytes
from odp.v1 import common_pb2


def matrices(largest: float) -> st.SearchStrategy[np.ndarray]:
    bound = float(np.float32(largest))
    return arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(-bound, bound, width=32),
    )


@given(matrices(65504.0), st.sampled_from(ENCODINGS))
def test_the_distance_of_a_decoded_value_is_within_the_stated_bound(rows: np.ndarray, encoding: Encoding) -> None:
    found = rounded(rows, encoding).astype(np.float64)
    exact = rows.astype(np.float64)
    if encoding == "float32":
        bound = np.zeros_like(exact)
    elif encoding == "float16":
        bound = np.where(np.abs(exact) < 2.0**-14, 2.0**-25, np.abs(exact) * 2.0**-11)
    else:
        largest = np.abs(exact).max(axis=1, keepdims=True)
        bound = np.where(largest < 2.0**-119, largest, largest / 127 * (1 + 2.0**-15) / 2)
        bound = np.broadcast_to(bound, exact.shape)
    assert (np.abs(found - exact) <= bound).all()


@given(matrices(2.0**120))
def test_the_bound_of_int8_holds_over_its_whole_range(rows: np.ndarray) -> None:
    exact = rows.astype(np.float64)
    largest = np.abs(exact).max(axis=1, keepdims=True)
    bound = np.where(largest < 2.0**-119, largest, largest / 127 * (1 + 2.0**-15) / 2)
    assert (np.abs(rounded(rows, "int8") - exact) <= bound).all()


@given(matrices(65504.0), st.sampled_from(ENCODINGS))
def test_encoding_what_was_decoded_gives_the_same_bytes(rows: np.ndarray, encoding: Encoding) -> None:
    once = encoded(rounded(rows, encoding), encoding)
    assert rounded(rounded(rows, encoding), encoding).tobytes() == decoded(once, rows.shape[1], encoding).tobytes()
    if encoding != "int8" or not np.signbit(rows[rows == 0]).any():
        assert once == encoded(decoded(once, rows.shape[1], encoding), encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_have_the_stated_bytes_and_numbers_in_the_manifest(encoding: Encoding) -> None:
    rows = np.ones((3, 5), dtype=np.float32)
    assert len(encoded(rows, encoding)) == 3 * row_bytes(5, encoding)
    assert row_bytes(5, encoding) == {"float32": 20, "float16": 10, "int8": 9}[encoding]
    entry = common_pb2.TableManifest(encoding=number_of(encoding))
    assert encoding_of(entry.encoding) == encoding


def test_the_layout_of_int8_is_a_little_endian_scale_and_signed_steps() -> None:
    scale = 2.0**-3
    written = encoded(np.array([[127 * scale, -scale, 0.4 * scale]]), "int8")
    assert written == struct.pack("<fbbb", scale, 127, -1, 0)


@pytest.mark.parametrize(
    ("rows", "encoding"),
    [
        ([[65520.0]], "float16"),
        ([[2.0**121]], "int8"),
        ([[np.nan]], "int8"),
        ([[np.inf]], "float16"),
        ([[1.0, np.nan]], "float16"),
    ],
)
def test_values_that_an_encoding_cannot_hold_are_refused(rows: list[list[float]], encoding: Encoding) -> None:
    with pytest.raises(ConfigurationError, match=f"encoding='{encoding}'"):
        encoded(rows, encoding)


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (bytes(7), "float32", "rows of 8 bytes"),
        (bytes(5), "int8", "rows of 6 bytes"),
        (struct.pack("<2f", 1, np.nan), "float32", "not finite"),
        (struct.pack("<2e", 1, np.inf), "float16", "not finite"),
        (struct.pack("<fbb", 1, -128, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", np.nan, 1, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", np.inf, 1, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", -1, 1, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", -0.0, 1, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", 2.0**-127, 1, 1), "int8", "no encoder writes"),
        (struct.pack("<fbb", 2.0**121, 1, 1), "int8", "no encoder writes"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(data: bytes, encoding: Encoding, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        decoded(data, 2, encoding)


def test_unknown_encodings_are_named() -> None:
    with pytest.raises(ConfigurationError, match="float17"):
        encoded([[1.0]], "float17")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="encoding=9"):
        encoding_of(9)

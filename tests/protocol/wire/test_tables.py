"""Model tables: what travels is what the manifest says, to the byte."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from odp.errors import ConfigurationError
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import broadcast_from, keyed_entry, manifest_for, padded_keys, slices_from, table_bytes
from odp.v1 import common_pb2, distributor_pb2

_ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
_DENSE = np.array([[0.5, -1.0]], dtype=np.float32)
_BROADCAST = ModelVersion(5, (TableValues("items", _ROWS, True), TableValues("dense", _DENSE, False)))
_MANIFEST = manifest_for(_BROADCAST, bytes(32))
_BYTES = {table.name: table_bytes(table) for table in _BROADCAST.tables}


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_a_model_survives_the_way_bit_for_bit(rows: np.ndarray) -> None:
    sent = ModelVersion(2, (TableValues("items", rows, True),))
    received = broadcast_from(manifest_for(sent, bytes(32)), {"items": table_bytes(sent.keyed)})
    assert received.version == 2
    assert received.keyed.rows.tobytes() == np.ascontiguousarray(rows).tobytes()


def test_the_layout_is_row_major_little_endian_float32_whatever_the_array_is() -> None:
    expected = b"".join(np.float32(value).tobytes() for value in _ROWS.ravel())
    assert _BYTES["items"] == expected
    assert table_bytes(TableValues("items", np.asfortranarray(_ROWS), True)) == expected
    assert table_bytes(TableValues("items", _ROWS.astype(">f4"), True)) == expected


def test_the_manifest_names_shapes_and_hashes() -> None:
    assert _MANIFEST.version == 5
    assert keyed_entry(_MANIFEST).name == "items"
    assert [(entry.rows, entry.width, entry.keyed) for entry in _MANIFEST.tables] == [(8, 3, True), (1, 2, False)]
    assert _MANIFEST.tables[1].sha256 == hashlib.sha256(_BYTES["dense"]).digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": _BYTES["items"][:-4]}, "expected 96 bytes, got 92"),
        ({"items": _BYTES["items"] + bytes(4)}, "expected 96 bytes, got 100"),
        ({"items": bytes(96)}, "do not have the manifest's SHA-256"),
    ],
)
def test_other_bytes_than_the_manifests_are_refused(changes: dict[str, bytes], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        broadcast_from(_MANIFEST, {**_BYTES, **changes})


def test_a_missing_table_is_named() -> None:
    with pytest.raises(ConfigurationError, match="lacks its table 'dense'"):
        broadcast_from(_MANIFEST, {"items": _BYTES["items"]})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_although_it_was_signed(value: float) -> None:
    rows = _ROWS.copy()
    rows[3, 1] = value
    broadcast = ModelVersion(5, (TableValues("items", rows, True),))
    with pytest.raises(ConfigurationError, match="'items' cannot be used: a value is not finite"):
        broadcast_from(manifest_for(broadcast, bytes(32)), {"items": table_bytes(broadcast.keyed)})


def test_a_request_for_keys_has_one_length_however_many_there_are() -> None:
    for keys in ([7], [1, 3, 5], [0, 1, 2, 3]):
        padded = padded_keys(keys, 4)
        assert len(padded) == 16
        assert set(np.frombuffer(padded, "<u4").tolist()) == set(keys)
        assert np.frombuffer(padded, "<u4")[: len(keys)].tolist() == keys
    for keys in ([], [0, 1, 2, 3, 4]):
        with pytest.raises(ConfigurationError, match=f"Expected 1 to 4 keys, got {len(keys)}"):
            padded_keys(keys, 4)


def _selected(keys: list[int], *, padding: int = 0) -> distributor_pb2.SelectedRows:
    rows = _ROWS[keys + [keys[0]] * padding]
    return distributor_pb2.SelectedRows(rows=rows.tobytes(), dense=[_BYTES["dense"]])


def test_slices_are_the_rows_that_were_asked_for_without_the_padding() -> None:
    keys = np.array([1, 4, 6])
    found = slices_from(_MANIFEST, keys, _selected([1, 4, 6], padding=5))
    np.testing.assert_array_equal(found.rows, _ROWS[keys])
    np.testing.assert_array_equal(found.dense["dense"], _DENSE)
    assert (found.version, found.keys.dtype, found.keys.tolist()) == (5, np.dtype(np.int64), [1, 4, 6])


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        (_selected([1, 4]), "wrong length of 24 bytes"),
        (distributor_pb2.SelectedRows(rows=bytes(37), dense=[_BYTES["dense"]]), "wrong length of 37 bytes"),
        (distributor_pb2.SelectedRows(rows=bytes(36)), "Expected 1 dense tables, got 0"),
        (distributor_pb2.SelectedRows(rows=bytes(36), dense=[bytes(8)]), "SHA-256"),
    ],
)  # fmt: skip
def test_rows_of_another_shape_are_refused(selected: distributor_pb2.SelectedRows, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        slices_from(_MANIFEST, np.array([1, 4, 6]), selected)


def test_rows_are_not_refused_for_what_is_in_them() -> None:
    rows = np.full((3, 3), np.nan, dtype=np.float32)
    selected = distributor_pb2.SelectedRows(rows=rows.tobytes(), dense=[_BYTES["dense"]])
    np.testing.assert_array_equal(slices_from(_MANIFEST, np.array([1, 4, 6]), selected).rows, rows)


def test_an_empty_manifest_hides_nothing() -> None:
    assert broadcast_from(common_pb2.ModelManifest(version=1), {}).tables == ()

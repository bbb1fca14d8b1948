"""Retrieval by lattices gives the gather's rows, from exact arithmetic, noise of the stated law and fixed lengths."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odp.crypto import pir
from odp.crypto.pir import lwe
from odp.crypto.pir.lwe import LweDatabase
from odp.errors import ConfigurationError

SEED, HASH = bytes(range(32)), hashlib.sha256(b"table").digest()


def table(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 256, (rows, width), dtype=np.uint8)


def database(rows: np.ndarray, keys: int) -> LweDatabase:
    return LweDatabase.of(rows, keys=keys, seed=SEED, table_sha256=HASH)


@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 300) | st.integers(1000, 2500),
    width=st.integers(1, 70),
    most=st.integers(1, 6),
    compiled=st.booleans(),
)
def test_the_rows_are_those_of_the_gather(
    data: st.DataObject, rows: int, width: int, most: int, compiled: bool
) -> None:
    keys = data.draw(st.lists(st.integers(0, rows - 1), max_size=most))
    keys += keys[:2]
    served = database(table(rows, width), most)
    request, secret = lwe.query(keys, served.shape)
    reply = lwe.answer(served, request, compiled=compiled)
    found = lwe.recover(secret, reply, lwe.hint(served))
    assert np.array_equal(found, table(rows, width)[np.array(keys, dtype=np.int64)])


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(1, 300), count=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_all_ways_to_multiply_are_exact_modulo_2_to_the_32(rows: int, columns: int, count: int, seed: int) -> None:
    kernels = pytest.importorskip("odp.crypto.pir._kernels")
    generator = np.random.default_rng(seed)
    matrix = generator.integers(-128, 128, (rows, columns)).astype(np.int8)
    vectors = generator.integers(0, 2**32, (columns, count), dtype=np.uint32)
    expected = matrix.astype(np.int64).astype(np.uint64) @ vectors.astype(np.uint64) & np.uint64(2**32 - 1)
    compiled = np.empty((count, rows), dtype=np.uint32)
    kernels.multiply(matrix, np.ascontiguousarray(vectors.T), compiled)
    assert np.array_equal(lwe.multiply(matrix, vectors), expected)
    assert np.array_equal(compiled.T, expected)


def test_the_largest_numbers_are_multiplied_exactly() -> None:
    left = np.full((3, lwe.DIMENSION), 2**32 - 1, dtype=np.uint32)
    right = np.full((lwe.DIMENSION, 2), 2**32 - 1, dtype=np.uint32)
    assert np.array_equal(lwe._product(left, right), np.full((3, 2), lwe.DIMENSION))
    matrix = np.full((2, 70_000), -128, dtype=np.int8)
    vectors = np.full((70_000, 1), 2**32 - 1, dtype=np.uint32)
    assert np.array_equal(lwe.multiply(matrix, vectors), np.full((2, 1), 128 * 70_000))


def test_the_noise_has_the_law_of_the_discrete_gaussian() -> None:
    count = 400_000
    drawn = lwe._noise((count,), np.random.default_rng(1).bytes).view(np.int32)
    values = np.arange(-lwe._TAIL, lwe._TAIL + 1)
    weights = np.exp(-(values**2) / (2 * lwe.SIGMA**2))
    expected = count * weights / weights.sum()
    common = expected > 20
    seen = np.bincount(drawn + lwe._TAIL, minlength=len(values))
    statistic = float(((seen - expected)[common] ** 2 / expected[common]).sum())
    freedom = int(common.sum()) - 1
    # Chi-square beyond its mean by six deviations: less than once in 10^6.
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)
    assert abs(drawn).max() <= lwe._TAIL


def test_two_queries_for_one_row_have_nothing_in_common_but_their_length() -> None:
    served = database(table(500, 20), 2)
    one, other = (lwe.query(keys, served.shape)[0] for keys in ([3], [3]))
    none, _ = lwe.query([], served.shape)
    assert len(one) == len(other) == len(none) == lwe.request_bytes(served.shape)
    shared = np.frombuffer(one[33:], dtype=np.uint8) == np.frombuffer(other[33:], dtype=np.uint8)
    # Bytes agree once in 256; of 4,000, more than 60 do so less than once in 10^9.
    assert shared.sum() < 60


def test_the_parameters_leave_failures_below_2_to_the_40() -> None:
    assert lwe.failure_bound(columns=25_000, values=50 * 25_600) < 2**-40
    assert lwe.failure_bound(columns=10**7, values=1) > 2**-40


def test_noise_is_what_rounding_takes_off() -> None:
    served = database(table(2000, 40), 1)
    request, secret = lwe.query([77], served.shape)
    known = np.frombuffer(lwe.hint(served), dtype="<u4").reshape(-1, lwe.DIMENSION)
    reply = np.frombuffer(lwe.answer(served, request), dtype="<u4")
    noise = (reply - lwe._product(known, secret.secrets)[:, 0]) & np.uint32(2**24 - 1)
    centred = np.minimum(noise, 2**24 - noise)
    assert 0 < centred.max() < 128 * lwe.SIGMA * 10 * math.sqrt(2000)


def test_a_wrong_reply_and_a_wrong_hint_are_noticed() -> None:
    served = database(table(300, 40), 2)
    request, secret = lwe.query([5], served.shape)
    reply, hint = lwe.answer(served, request), lwe.hint(served)
    for place in (3, 1003, len(reply) - 1):
        changed = bytearray(reply)
        changed[place] ^= 0x80
        with pytest.raises(pir.WrongRowsError):
            lwe.recover(secret, bytes(changed), hint)
    with pytest.raises(pir.WrongRowsError):
        lwe.recover(secret, reply, bytes(255 - value for value in hint))
    for pair in ((reply[:-1], hint), (reply, hint + b"\0")):
        with pytest.raises(pir.WrongRowsError, match="Expected a"):
            lwe.recover(secret, *pair)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda request: b"", "Expected a request of"),
        (lambda request: request + b"\0", "Expected a request of"),
        (lambda request: b"\2" + request[1:], "version"),
        (lambda request: request[:1] + bytes(32) + request[33:], "another table"),
    ],
)
def test_a_malformed_request_is_refused(change: object, message: str) -> None:
    served = database(table(300, 40), 2)
    request, _ = lwe.query([5], served.shape)
    with pytest.raises(pir.RequestError, match=message):
        lwe.answer(served, change(request))


def test_keys_out_of_range_and_too_many_are_refused() -> None:
    shape = database(table(300, 40), 2).shape
    for keys in ([300], [-1], [1, 2, 3]):
        with pytest.raises(ConfigurationError, match="keys"):
            lwe.query(keys, shape, os.urandom)

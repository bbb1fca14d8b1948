"""Two servers give the gather's rows, and no lie of one of them passes or tells it about the keys."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto import pir
from odp.crypto.pir import records
from odp.crypto.pir.shape import MOST_KEYS
from odp.errors import ConfigurationError

SEED, HASH = bytes(range(32)), hashlib.sha256(b"table").digest()


def table(rows: int, width: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)


def database(rows: np.ndarray, keys: int) -> pir.Database:
    return pir.Database.of(rows, keys=keys, seed=SEED, table_sha256=HASH)


def fetch(served: pir.Database, keys: Any, *, compiled: bool = True) -> np.ndarray:
    leader, helper, secret = pir.query(keys, pir.Shape.from_bytes(served.shape.to_bytes()))
    first = pir.answer(served, leader, pad_seed=None, compiled=compiled)
    second = pir.answer(served, helper, pad_seed=secret.pad_seed, compiled=compiled)
    return pir.recover(secret, pir.combine(first, second))


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 40) | st.integers(1000, 3000),
    width=st.integers(1, 150),
    most=st.integers(1, 30),
    compiled=st.booleans(),
)
def test_the_rows_are_those_of_the_gather(
    data: st.DataObject, rows: int, width: int, most: int, compiled: bool
) -> None:
    drawn = data.draw(st.lists(st.integers(0, rows - 1), max_size=most))
    keys = drawn + data.draw(st.lists(st.sampled_from(drawn), max_size=5) if drawn else st.just([]))
    given_rows = table(rows, width)
    found = fetch(database(given_rows, most), keys, compiled=compiled)
    assert found.dtype == np.uint8
    assert np.array_equal(found, given_rows[np.array(keys, dtype=np.int64)])


def test_floats_come_back_bit_for_bit() -> None:
    rows = np.random.default_rng(1).standard_normal((500, 33)).astype(np.float32)
    rows[4] = [-0.0, np.inf, np.nan] * 11
    found = fetch(database(rows, 7), [4, 499, 4, 0])
    assert found.view("<f4").tobytes() == rows[[4, 499, 4, 0]].tobytes()


def test_numba_and_numpy_give_the_same_bytes() -> None:
    for rows, keys in ((3000, 9), (40_000, 1), (500, 3)):
        served = database(table(rows, 100), keys)
        leader, helper, secret = pir.query([5, 1], served.shape) if keys > 1 else pir.query([5], served.shape)
        asked = [(leader, None), (helper, secret.pad_seed), (leader, None)]
        compiled, plain = (pir.answer_many(served, asked, compiled=how) for how in (True, False))
        assert compiled == plain
        assert compiled == [pir.answer(served, request, pad_seed=seed) for request, seed in asked]


def test_all_queries_and_replies_of_a_table_have_one_length() -> None:
    served = database(table(700, 50), 10)
    lengths = set()
    for keys in ([], [0], [5] * 20, list(range(10)), list(range(690, 700))):
        leader, helper, secret = pir.query(keys, served.shape)
        reply = pir.answer(served, helper, pad_seed=secret.pad_seed)
        lengths.add((len(leader), len(helper), len(secret.pad_seed), len(reply), leader[:34]))
    length = pir.request_bytes(served.shape)
    assert lengths == {(length, length, 32, pir.reply_bytes(served.shape), leader[:34])}


def test_requests_and_the_helpers_reply_look_random() -> None:
    served = database(np.zeros((700, 500), dtype=np.uint8), 10)
    leader, helper, secret = pir.query([3] * 5, served.shape)
    padded = pir.answer(served, helper, pad_seed=secret.pad_seed)
    for data in (leader[34:], helper[34:], padded):
        ones = np.unpackbits(np.frombuffer(data, dtype=np.uint8)).mean()
        # Three times within six deviations, but for 10^-8.
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(8 * len(data)) + 0.01


def test_a_pad_is_never_used_for_two_answers() -> None:
    served = database(table(700, 50), 10)
    _, helper, secret = pir.query([3], served.shape)
    _, other, _ = pir.query([3], served.shape)
    replies = []
    for request in (helper, other):
        padded = pir.answer(served, request, pad_seed=secret.pad_seed)
        bare = pir.answer(served, request[:1] + b"\0" + request[2:], pad_seed=None)
        replies.append(pir.combine(padded, bare))
    assert replies[0] != replies[1]


# A lie


@dataclasses.dataclass(frozen=True)
class Asked:
    """A query with both honest replies combined."""

    served: pir.Database
    secret: pir.Secret
    reply: bytes


def asked(keys: list[int], rows: np.ndarray | None = None) -> Asked:
    served = database(table(900, 60) if rows is None else rows, 12)
    leader, helper, secret = pir.query(keys, served.shape)
    own = pir.answer(served, leader, pad_seed=None)
    return Asked(served, secret, pir.combine(own, pir.answer(served, helper, pad_seed=secret.pad_seed)))


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10**9), value=st.integers(1, 255))
def test_any_changed_byte_of_a_reply_is_noticed_wherever_it_is(place: int, value: int) -> None:
    one = asked([1, 2, 3])
    changed = bytearray(one.reply)
    changed[place % len(changed)] ^= value
    with pytest.raises(pir.WrongRowsError):
        pir.recover(one.secret, bytes(changed))


def test_a_lie_is_noticed_in_buckets_that_nobody_asked_and_whatever_the_keys() -> None:
    # The same difference for different keys: whether the device fails must not depend on them.
    width = records.record_bytes(900, 60)
    for keys in ([], [0], list(range(12)), [899] * 3):
        one = asked(keys)
        for bucket in range(one.served.shape.layout.buckets):
            for offset in (0, 59, 60, width - 1):  # the row, its hashes, the padding
                changed = bytearray(one.reply)
                changed[bucket * width + offset] ^= 1
                with pytest.raises(pir.WrongRowsError):
                    pir.recover(one.secret, bytes(changed))


def test_a_row_that_the_server_guessed_cannot_be_replaced_by_another_real_row() -> None:
    one = asked([7])
    stored = one.served.records.view(np.uint8).reshape(900, -1)
    bucket = int(np.flatnonzero(one.secret.numbers == 7)[0])
    width = stored.shape[1]
    for other in (6, 8, 500):
        changed = np.frombuffer(one.reply, dtype=np.uint8).copy()
        changed[bucket * width : (bucket + 1) * width] ^= stored[7] ^ stored[other]
        with pytest.raises(pir.WrongRowsError):
            pir.recover(one.secret, changed.tobytes())


@pytest.mark.parametrize("who", ["leader", "helper"])
def test_a_server_with_another_table_is_noticed(who: str) -> None:
    rows = table(900, 60)
    served = database(rows, 12)
    changed = rows.copy()
    changed[:, 0] ^= 1
    stored = served.records.copy()
    stored.view(np.uint8).reshape(900, -1)[:, :60] = changed
    lying = dataclasses.replace(served, records=stored)
    leader, helper, secret = pir.query([5, 6, 7], served.shape)
    own = pir.answer(lying if who == "leader" else served, leader, pad_seed=None)
    helped = pir.answer(lying if who == "helper" else served, helper, pad_seed=secret.pad_seed)
    with pytest.raises(pir.WrongRowsError):
        pir.recover(secret, pir.combine(own, helped))


def test_a_leader_that_tells_of_another_table_than_the_helpers_gets_nowhere() -> None:
    honest, other = (database(table(900, 60, seed=seed), 12) for seed in (0, 1))
    leader, helper, secret = pir.query([5], other.shape)
    with pytest.raises(pir.RequestError, match="another table"):
        pir.answer(honest, helper, pad_seed=secret.pad_seed)
    # Not even where it puts its own name for the shape into the request that it carries.
    forged = helper[:2] + honest.shape.digest + helper[34:]
    helped = pir.answer(honest, forged, pad_seed=secret.pad_seed)
    with pytest.raises(pir.WrongRowsError):
        pir.recover(secret, pir.combine(pir.answer(other, leader, pad_seed=None), helped))


@pytest.mark.parametrize("length", [0, 1, -1, 64])
def test_a_reply_of_a_wrong_length_is_wrong(length: int) -> None:
    one = asked([7])
    reply = one.reply[:length] if length <= 0 else one.reply + bytes(length)
    with pytest.raises(pir.WrongRowsError, match="Expected a reply of"):
        pir.recover(one.secret, reply)


def test_replies_of_different_lengths_are_not_combined() -> None:
    with pytest.raises(ConfigurationError, match="helper's reply of 2 bytes"):
        pir.combine(b"ab", b"abc")


# What the layout fails at


def test_a_query_that_the_layout_cannot_place_looks_like_others_and_gives_the_other_rows() -> None:
    rows = table(60_000, 1)
    served = database(rows, 12)
    cells = served.shape.layout.cells(np.arange(60_000))[:, :, 0]
    # Rows that share three buckets, those first whose fourth is the most common: more rows than buckets.
    near = np.flatnonzero((cells[:, :3] == cells[0, :3]).all(axis=1))
    fourth = cells[near, 3]
    wanted = near[np.argsort(-np.bincount(fourth)[fourth], kind="stable")][:12]
    assert len(np.unique(cells[wanted])) < len(wanted)
    leader, helper, secret = pir.query(wanted, served.shape)
    assert len(leader) == len(helper) == pir.request_bytes(served.shape)
    reply = pir.combine(pir.answer(served, leader, pad_seed=None), pir.answer(served, helper, pad_seed=secret.pad_seed))
    assert 0 < secret.placed.sum() < len(wanted)
    found = pir.recover(secret, reply)
    assert found.tobytes() == rows[wanted[secret.placed]].tobytes()


# Bad input


def malformed(request: bytes) -> dict[str, tuple[bytes, str]]:
    return {
        "empty": (b"", "Expected a request of"),
        "cut": (request[:-1], "Expected a request of"),
        "longer": (request + b"\0", "Expected a request of"),
        "version": (b"\2" + request[1:], "version 1, got version 2"),
        "role": (request[:1] + b"\1" + request[2:], "other server"),
        "shape": (request[:2] + bytes(32) + request[34:], "another table"),
    }


@pytest.mark.parametrize("name", list(malformed(b"")))
def test_a_malformed_request_is_refused_with_one_clear_error(name: str) -> None:
    served = database(table(700, 20), 6)
    leader, _, _ = pir.query([1], served.shape)
    request, message = malformed(leader)[name]
    with pytest.raises(pir.RequestError, match=message) as error:
        pir.answer_many(served, [(leader, None), (request, None)])
    assert "\n" not in str(error.value)


def test_a_request_for_another_number_of_keys_or_rows_is_refused() -> None:
    served = database(table(700, 20), 6)
    for other in (database(table(700, 20), 40), database(table(70_000, 20), 6)):
        leader, _, _ = pir.query([1], other.shape)
        with pytest.raises(pir.RequestError, match="Expected a request of"):
            pir.answer(served, leader, pad_seed=None)


def test_unused_bits_of_a_request_have_to_be_zero() -> None:
    served = database(table(7000, 20), 1)
    leader, _, _ = pir.query([1], served.shape)
    levels = 6
    place = 34 + 16 + 16 * levels + 1
    with pytest.raises(pir.RequestError, match="unused control bits"):
        pir.answer(served, leader[:place] + bytes([leader[place] | 0x80]) + leader[place + 1 :], pad_seed=None)


def test_the_helper_answers_under_a_pad_only() -> None:
    served = database(table(700, 20), 6)
    leader, helper, secret = pir.query([1], served.shape)
    with pytest.raises(pir.RequestError, match="other server"):
        pir.answer(served, helper, pad_seed=None)
    with pytest.raises(pir.RequestError, match="other server"):
        pir.answer(served, leader, pad_seed=secret.pad_seed)
    with pytest.raises(pir.RequestError, match="pad seed of 32 bytes, got 5"):
        pir.answer(served, helper, pad_seed=b"short")


@pytest.mark.parametrize("keys", [[-1], [700], [0.5], [[1]], ["1"]])
def test_a_key_that_is_no_row_is_refused_and_not_printed(keys: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"whole numbers from 0 to 699$"):
        pir.query(keys, database(table(700, 20), 6).shape)


def test_too_many_different_keys_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 6 distinct keys, got 7"):
        pir.query(range(7), database(table(700, 20), 6).shape)


@pytest.mark.parametrize(
    "rows", [np.zeros((0, 3), np.uint8), np.zeros(3, np.uint8), np.zeros((2, 2)), np.zeros((2, 0))]
)
def test_rows_that_are_no_table_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match="float32 or uint8"):
        database(rows, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": b"short"}, "seed of a table's shape to be 32 bytes"),
        ({"table_sha256": b""}, "table_sha256 of a table's shape to be 32 bytes"),
        ({"keys": 0}, "keys=0"),
        ({"keys": MOST_KEYS + 1}, "keys=513"),
    ],
)
def test_a_shape_out_of_range_is_refused(change: dict[str, Any], message: str) -> None:
    given_values = {"keys": 3, "seed": SEED, "table_sha256": HASH, **change}
    with pytest.raises(ConfigurationError, match=message):
        pir.Database.of(table(5, 5), **given_values)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=120), cut=st.integers(0, 200))
def test_bytes_that_are_no_shape_are_refused(data: bytes, cut: int) -> None:
    shape = database(table(20, 5), 3).shape.to_bytes()
    for wrong in (data, shape[: cut % len(shape)], shape + data + b"\0", bytes([2]) + shape[1:]):
        with pytest.raises(ConfigurationError):
            pir.Shape.from_bytes(wrong)
    assert pir.Shape.from_bytes(shape).to_bytes() == shape

"""A long field read in place: the same message and the same value as the parser gives."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from odp.protocol.wire.long_fields import fields, split_field
from odp.v1.aggregator_enclave_pb2 import SubmitBatch
from odp.v1.aggregator_pb2 import Contribution, SubmitRequest

_PAYLOAD = Contribution.PAYLOAD_FIELD_NUMBER


def _split(message: bytes) -> tuple[Contribution, bytes]:
    rest, payload = split_field(memoryview(message), _PAYLOAD)
    return Contribution.FromString(rest), bytes(payload)


def _parsed(message: bytes) -> tuple[Contribution, bytes]:
    given = Contribution.FromString(message)
    payload = given.payload
    given.ClearField("payload")
    return given, payload


@pytest.mark.parametrize("length", [0, 1, 127, 128, 2**14, 2**21 + 5])
def test_the_rest_and_the_value_are_those_of_the_parser(length: int) -> None:
    message = Contribution(
        task_sha256=b"t" * 32, round=300, payload=bytes(length), token=b"k" * 256, pseudonym=b"p" * 32
    ).SerializeToString()
    assert _split(message) == _parsed(message)


def test_the_last_of_several_values_counts_and_none_is_empty() -> None:
    first, second = (Contribution(payload=value).SerializeToString() for value in (b"one", b"two"))
    assert _split(first + second) == (Contribution(), b"two")
    assert _split(b"") == (Contribution(), b"")


def test_numbers_of_a_fixed_width_that_nobody_knows_are_skipped() -> None:
    unknown = bytes([15 << 3 | 1, *range(8), 14 << 3 | 5, *range(4)])
    rest, payload = split_field(memoryview(unknown + Contribution(payload=b"x").SerializeToString()), _PAYLOAD)
    assert (rest, bytes(payload)) == (unknown, b"x")


@pytest.mark.parametrize(
    "message",
    [
        Contribution(payload=b"numbers").SerializeToString()[:-1],
        Contribution(task_sha256=b"task").SerializeToString()[:-1],
        bytes([0x08]),
        bytes([0x80] * 11),
        bytes([15 << 3 | 1, 0]),
        bytes([15 << 3 | 3]),
    ],
)
def test_a_cut_or_odd_message_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        split_field(memoryview(message), _PAYLOAD)


def test_random_bytes_are_refused_or_read_as_the_parser_reads_them() -> None:
    draw = random.Random(7)
    whole = Contribution(task_sha256=b"t" * 32, round=5, payload=b"p" * 40, token=b"k" * 8).SerializeToString()
    read = 0
    for _ in range(3000):
        message = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            message[draw.randrange(len(message))] = draw.randrange(256)
        try:
            split = _split(bytes(message))
        except DecodeError:
            continue
        assert split == _parsed(bytes(message))
        read += 1
    assert read > 100


def test_the_values_of_a_repeated_field_come_in_their_order() -> None:
    submits = [SubmitRequest(round=number, sealed_contribution=bytes(200)) for number in range(3)]
    message = SubmitBatch(submits=submits).SerializeToString()
    values = fields(memoryview(message), SubmitBatch.SUBMITS_FIELD_NUMBER)
    assert [SubmitRequest.FromString(bytes(value)) for value in values] == submits


@pytest.mark.parametrize("message", [b"\x0a\x05abc", b"\x12\x01a", b"\x08\x01", b"\x0a"])
def test_another_field_or_a_cut_one_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        list(fields(memoryview(message), SubmitBatch.SUBMITS_FIELD_NUMBER))

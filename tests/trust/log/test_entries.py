"""Entries: one encoding per value, one value per encoding, nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError
from odp.signed.ledger import LedgerPart
from odp.trust.log import entries
from odp.trust.log.entries import TYPES, LedgerEntry, PolicyEntry, TaskEntry, decode
from odp.trust.log.merkle import leaf_hash


def _entries() -> st.SearchStrategy[entries.Entry]:
    return st.sampled_from(sorted(TYPES)).flatmap(
        lambda code: st.builds(
            TYPES[code],
            **{
                field.name: st.binary(min_size=length, max_size=length)
                if (length := _fixed(field.name))
                else (st.binary(max_size=40))
                for field in dataclasses.fields(TYPES[code])
            },
        )
    )


def _fixed(name: str) -> int:
    return {"task_sha256": 32, "round": 4, "approvals": 2 * 96}.get(name, 0)


@settings(max_examples=300, deadline=None)
@given(_entries())
def test_an_entry_comes_back_as_it_was(entry: entries.Entry) -> None:
    data = entry.encode()
    assert decode(data) == entry
    assert entry.leaf == leaf_hash(data)
    assert entries.type_of(data[: entries.HEAD_BYTES]) is type(entry)


@settings(max_examples=500, deadline=None)
@given(_entries(), st.data())
def test_no_two_byte_strings_are_one_entry(entry: entries.Entry, data: st.DataObject) -> None:
    encoded = bytearray(entry.encode())
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = data.draw(
        st.sampled_from(["flip", "cut", "add"]),
    )
    if changed == "flip":
        encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    elif changed == "cut":
        del encoded[place]
    else:
        encoded.insert(place, data.draw(st.integers(0, 255)))
    try:
        found = decode(bytes(encoded))
    except ConfigurationError:
        return
    assert found.encode() == bytes(encoded)
    assert found != entry or bytes(encoded) == entry.encode()


def test_the_bytes_of_an_entry_are_those_of_the_protocol_page() -> None:
    assert PolicyEntry(b"abc").encode() == b"odp/v1/entry\x02\x00\x00\x00\x03abc"
    assert TaskEntry(b"", b"s").encode() == b"odp/v1/entry\x01\x00\x00\x00\x00\x00\x00\x00\x01s"
    ledger = LedgerEntry.of(bytes(32), 258, LedgerPart(0, b"l", b"h", b"s"))
    assert ledger.number == 258
    assert ledger.encode().startswith(
        b"odp/v1/entry\x08\x00\x00\x00\x20" + bytes(32) + b"\x00\x00\x00\x04\x00\x00\x01\x02"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"odp/v1/entry",
        b"odp/v1/entry\x00",
        b"odp/v1/entry\x09\x00\x00\x00\x00",
        b"odp/v1/entry\x02",
        b"odp/v1/entry\x02\x00\x00\x00\x04abc",
        b"odp/v1/entry\x02\xff\xff\xff\xffabc",
        b"odp/v1/entry\x02\x00\x00\x00\x03abcd",
        b"odp/v2/entry\x02\x00\x00\x00\x03abc",
        b"odp/v1/entry\x08" + b"\x00\x00\x00\x00" * 4,
    ],
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        decode(data)


def test_an_entry_that_no_message_could_carry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most"):
        PolicyEntry(bytes(entries.LARGEST_ENTRY)).encode()

"""Files of indexes: they come back equal, every byte is checked, and a write that fails leaves the old file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from serving.indexes import index_of, random_index

import odp
from odp.errors import ConfigurationError, DataError
from odp.serving import index_file, item_index
from odp.serving.index_file import arrays_of, made, open_index, save_index
from odp.serving.item_index import ItemKeys

ITEMS, RANK = 37, 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_index(random_index(ITEMS, RANK), tmp_path / "new" / "items.index")
    return tmp_path / "new" / "items.index"


def test_an_index_comes_back_equal_and_lies_in_its_file(path: Path) -> None:
    made_one, found = random_index(ITEMS, RANK), odp.items.open_index(path)
    assert [one.name for one in path.parent.iterdir()] == ["items.index"]
    assert (found.task, found.facts, found.version, found.sha256) == (b"a task", {"task": "films"}, 3, made_one.sha256)
    for name, array in arrays_of(made_one).items():
        np.testing.assert_array_equal(arrays_of(found)[name], array)
    assert not found.steps.flags.owndata
    assert not found.steps.flags.writeable
    assert [found.keys[0], found.keys[36]] == ["Amélie 0", "Amélie 36"]
    assert list(found.keys) == [f"Amélie {place}" for place in range(ITEMS)]
    assert found.keys.places(["Amélie 7", "none", "Amélie 0"]).tolist() == [7, -1, 0]
    assert repr(found) == f"ItemIndex(37 items, 4 factors, {found.sha256[:12]})"
    with pytest.raises(ConfigurationError, match="item=37 to be from 0 to 36"):
        found.keys[37]


@given(
    keys=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=40, unique=True),
    wanted=st.lists(st.text(max_size=5), max_size=6),
    picked=st.lists(st.integers(0, 39), max_size=6),
    compared=st.sampled_from([1, 40, 2**20]),
)
@example(keys=["a\0", "a", "\0", "b\0"], wanted=["a", "a\0", "\0", "\0\0"], picked=[], compared=1)
def test_keys_are_found_whatever_their_letters_and_the_blocks_they_lie_in(
    keys: list[str], wanted: list[str], picked: list[int], compared: int
) -> None:
    asked = [*wanted, *(keys[place % len(keys)] for place in picked)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(item_index, "_COMPARED", compared)
        found = ItemKeys.of(keys).places(asked)
    assert found.dtype == np.int64
    assert found.tolist() == [keys.index(key) if key in keys else -1 for key in asked]


def test_the_same_items_give_the_same_bytes_and_a_million_of_rank_32_fit_40_mb(path: Path, tmp_path: Path) -> None:
    save_index(random_index(ITEMS, RANK), tmp_path / "again.index")
    assert (tmp_path / "again.index").read_bytes() == path.read_bytes()
    index = open_index(path)
    per_item = sum(arrays_of(index)[name].nbytes for name in ("steps", "biases", "scales")) / ITEMS
    assert 1e6 * (per_item - RANK + 32) <= 38e6


@given(cut=st.integers(0, 10_000), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_every_flipped_bit_and_every_cut_is_found(
    tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("index") / "items.index"
    save_index(random_index(ITEMS, RANK), path)
    whole = path.read_bytes()
    torn = bytearray(whole)
    torn[place % len(whole)] ^= 1 << bit
    for content in (whole[: cut % len(whole)], bytes(torn), whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"index .*items\.index: ") as caught:
            open_index(path)
        assert "\n" not in str(caught.value)


def test_errors_say_what_is_wrong_in_one_line(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()

    def refused(content: bytes, message: str) -> None:
        (tmp_path / "bad.index").write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_index(tmp_path / "bad.index")

    refused(whole[:-1], f"has {len(whole) - 1} bytes instead of {len(whole)}: it is truncated")
    refused(b"PK" + whole[2:], "is no index of items; write one by `odp task export")
    refused(whole[:8] + struct.pack("<I", 2) + whole[12:], "version 2 of the format, and this program reads 1; update")
    refused(whole[:-1] + b"?", "does not have the SHA-256 that it names")
    with pytest.raises(DataError, match=r"cannot read the index .*: No such file"):
        open_index(tmp_path / "none.index")
    with pytest.raises(DataError, match=r"index .*: it is [0-9a-f]{12}, and 000000000000 was expected; fetch"):
        open_index(path, sha256="0" * 64)
    assert open_index(path, sha256=random_index(ITEMS, RANK).sha256)


def rewritten(path: Path, **changed: Any) -> None:
    """A file with a right hash and wrong content, as a broken program would write it."""
    index = open_index(path)
    keys = ItemKeys(changed.pop("ends", index.keys.ends), changed.pop("text", index.keys.text))
    save_index(made(dataclasses.replace(index, keys=keys, **changed)), path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": np.full((ITEMS, RANK), -128, np.int8)}, "step of a row is -128"),
        ({"scales": np.full(ITEMS, 0x7F80 << 1, np.uint16)}, "scale of a row is not finite"),
        ({"biases": np.full(ITEMS, np.nan, np.float32).view(np.uint32)}, "bias is not finite"),
        ({"biases": np.full(ITEMS, 2.0**41, np.float32).view(np.uint32)}, "bias is not finite or beyond"),
        ({"tables": {"globals": np.full((1, 2), np.inf, np.float32)}}, "table 'globals' has a number that is not"),
        ({"ends": np.arange(ITEMS, dtype=np.uint32)}, "places of its item keys"),
        ({"text": np.full(12, 0xFF, np.uint8), "ends": None}, "not UTF-8"),
        ({"text": np.frombuffer("ééé".encode(), np.uint8), "ends": "split"}, "not UTF-8"),
    ],
)
def test_content_that_no_index_has_is_refused_in_spite_of_a_right_hash(
    path: Path, changed: dict[str, Any], message: str
) -> None:
    if "text" in changed:
        size = 3 if changed["ends"] is None else 2
        ends = np.array([5, 12] if changed["ends"] is None else [3, 6], dtype=np.uint32)[:size]
        index = index_of(np.zeros((2, 1), np.float32), np.zeros(2, np.float32))
        save_index(index, path)
        changed = {"text": changed["text"], "ends": ends}
    rewritten(path, **changed)
    with pytest.raises(DataError, match=message):
        open_index(path)


@pytest.mark.parametrize(
    "header",
    [
        b"[]", b"{", b"null", b"[" * 5000,
        *(
            json.dumps({"items": 1, "rank": 1, "model_version": 1, "key_bytes": 1, "task_bytes": 0, "tables": [],
                        "facts": {}} | change).encode()
            for change in ({"items": 0}, {"items": 2**40}, {"rank": -1}, {"rank": True}, {"facts": {"a": 1}},
                           {"tables": [["a", 2**19, 2**19]]}, {"tables": [[1, 1, 1]]}, {"other": 1}, {"tables": 3})
        ),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, header: bytes) -> None:
    start = struct.pack("<8sII", b"odp-indx", 1, len(header))
    digest = hashlib.sha256(start + header).digest()
    (tmp_path / "bad.index").write_bytes(start + digest + header)
    with pytest.raises(DataError, match="its header"):
        open_index(tmp_path / "bad.index")


def test_a_write_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, other = path.read_bytes(), random_index(5, 2)

    def failing(index: object) -> object:
        first, rest = real(index)

        def cut() -> Any:
            yield next(rest)
            raise OSError(28, "No space left on device")

        return first, cut()

    real = index_file._pieces
    monkeypatch.setattr(index_file, "_pieces", failing)
    with pytest.raises(ConfigurationError, match="No space left on device; give another place"):
        save_index(other, path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["items.index"]


def test_numbers_and_keys_that_no_index_holds_are_refused_where_it_is_made() -> None:
    zeros = np.zeros(2, np.float32)
    with pytest.raises(DataError, match="item biases to be finite"):
        index_of(np.zeros((2, 1), np.float32), np.array([0, np.inf], np.float32))
    for keys, message in ((["a", "a"], "name each item once"), (["", "a"], "not empty"), (["\ud800", "a"], "valid")):
        with pytest.raises(ConfigurationError, match=message):
            index_of(np.zeros((2, 1), np.float32), zeros, keys)
    with pytest.raises(ConfigurationError, match="cannot make an index of 2 items"):
        index_of(np.zeros((2, 257), np.float32), zeros)


@pytest.mark.parametrize("changed", [{"tables": [["globals", 9, 9], ["globals", 1, 2]]}, {"facts": {"task": "\ud800"}}])
def test_a_header_that_names_a_table_twice_or_has_no_unicode_is_refused(changed: dict[str, Any]) -> None:
    head = json.loads(index_file.Header.of(random_index(ITEMS, RANK)).to_bytes())
    index_file.Header.parse(json.dumps(head).encode())
    with pytest.raises(DataError, match="its header"):
        index_file.Header.parse(json.dumps(head | changed).encode())

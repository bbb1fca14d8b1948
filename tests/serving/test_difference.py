"""Differences of indexes: the new file to the bit, or the old one as it was."""

from __future__ import annotations

import dataclasses
import importlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serving.indexes import index_of, random_index

from odp.errors import ConfigurationError, DataError
from odp.serving import apply, difference, open_index, save_index, update_file
from odp.serving.difference import described
from odp.serving.index_file import Header, arrays_of, made
from odp.serving.item_index import ItemKeys

OLD = random_index(60, 3)


def changed_index(rows: list[int], *, retired: list[int], added: int, order: list[int] | None = None):  # type: ignore[no-untyped-def]
    """The index of a later version of the same catalogue."""
    generator = np.random.default_rng(2)
    columns = OLD.columns(np.arange(60))
    factors, biases = columns.factors.copy(), columns.biases.copy()
    factors[rows] += generator.standard_normal((len(rows), 3)).astype(np.float32)
    kept = [place for place in (range(60) if order is None else order) if place not in retired]
    new = generator.standard_normal((added, 3)).astype(np.float32)
    keys = [OLD.keys[place] for place in kept] + [f"new ☃ {place}" for place in range(added)]
    return index_of(np.concatenate((factors[kept], new)), np.append(biases[kept], np.ones(added, np.float32)), keys)


@settings(max_examples=60)
@given(
    rows=st.lists(st.integers(0, 59), max_size=20),
    retired=st.lists(st.integers(0, 59), max_size=30),
    added=st.integers(0, 5),
    order=st.one_of(st.none(), st.permutations(range(60))),
)
def test_the_difference_gives_the_new_index_to_the_bit(
    rows: list[int], retired: list[int], added: int, order: list[int] | None
) -> None:
    new = changed_index(rows, retired=retired, added=added, order=order)
    data = difference(OLD, new)
    assert apply(OLD, data).sha256 == new.sha256
    told = described(data)
    assert (told.base, told.result, told.new) == (OLD.sha256, new.sha256, added)


def test_only_rows_that_changed_are_in_it(tmp_path: Path) -> None:
    old = random_index(20_000, 32)
    steps = old.steps.copy()
    steps[::100] = -steps[::100]
    # Trust, which `index_of` spreads over the items, stays as it was.
    new = made(dataclasses.replace(old, steps=steps))
    data = difference(old, new)
    assert described(data).changed == 200
    save_index(new, tmp_path / "new.index")
    assert len(data) < 0.012 * (tmp_path / "new.index").stat().st_size + 300
    assert len(difference(old, old)) < 500


def test_a_file_is_updated_in_its_place_and_whoever_has_it_open_keeps_the_old_one(tmp_path: Path) -> None:
    path, new = tmp_path / "items.index", changed_index([3, 4], retired=[0], added=1)
    save_index(OLD, path)
    before = open_index(path)
    assert update_file(path, difference(OLD, new)) == new.sha256
    save_index(new, tmp_path / "whole.index")
    assert path.read_bytes() == (tmp_path / "whole.index").read_bytes()
    np.testing.assert_array_equal(before.steps, OLD.steps)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["items.index", "whole.index"]


def test_a_difference_for_another_index_is_refused_by_name(tmp_path: Path) -> None:
    path, other = tmp_path / "items.index", changed_index([1], retired=[], added=0)
    save_index(other, path)
    content = path.read_bytes()
    data = difference(OLD, changed_index([2], retired=[], added=0))
    with pytest.raises(DataError, match=f"is for index {OLD.sha256[:12]}, and this is {other.sha256[:12]}; fetch"):
        update_file(path, data)
    assert path.read_bytes() == content


def outcome(content: bytes) -> str:
    try:
        return apply(OLD, content).sha256
    except DataError as error:
        return "refused" if "\n" not in str(error) else str(error)


@settings(max_examples=100)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 10_000))
def test_a_damaged_difference_gives_an_error_of_one_line_and_never_another_index(
    place: int, bit: int, cut: int
) -> None:
    new = changed_index([5, 9, 30], retired=[7, 8], added=2)
    whole = difference(OLD, new)
    torn = bytearray(whole)
    torn[place % len(whole)] ^= 1 << bit
    for content in (bytes(torn), whole[: cut % len(whole)], whole + b"\0"):
        # Bits that zlib does not read, such as its level, change nothing.
        assert outcome(content) in ("refused", new.sha256)
    with pytest.raises(DataError, match="no difference"):
        apply(OLD, b"")


def test_a_difference_of_another_format_and_one_that_lies_are_refused() -> None:
    new = changed_index([5], retired=[], added=0)
    data = difference(OLD, new)
    with pytest.raises(DataError, match="version 9, and this program reads 1; update odp"):
        apply(OLD, data[:8] + b"\x09" + data[9:])
    with pytest.raises(DataError, match="does not give index"):
        apply(OLD, data.replace(new.sha256.encode(), b"0" * 64))
    with pytest.raises(ConfigurationError, match=r"one rank .got 3 and 2."):
        difference(OLD, random_index(60, 2))


def forged(told: dict[str, Any], body: bytes) -> bytes:
    """A difference from ``OLD`` that says of itself what it likes."""
    head = json.dumps({"base": OLD.sha256, **told}).encode()
    return b"odp-diff" + np.array([1, len(head)], "<u4").tobytes() + head + zlib.compress(body, 9)


def test_a_difference_that_makes_an_item_twice_is_refused_though_its_hash_is_right() -> None:
    arrays, keys = arrays_of(OLD), OLD.keys
    twice = {name: np.concatenate((arrays[name], arrays[name])) for name in ("steps", "biases", "scales")}
    ends = np.concatenate((keys.ends, keys.ends + keys.ends[-1])).astype(np.uint32)
    result = made(dataclasses.replace(OLD, **twice, keys=ItemKeys(ends, np.concatenate((keys.text, keys.text)))))
    head = Header.of(result).to_bytes()
    sizes = {"result": result.sha256, "head_bytes": len(head), "changed": 0}
    start = head + OLD.task + OLD.tables["globals"].astype("<f4").tobytes()
    runs = np.array([[0, 60], [0, 60]], "<u4").tobytes()
    assert outcome(forged({**sizes, "runs": 2, "new": 0, "new_key_bytes": 0}, start + runs)) == "refused"
    runs = np.array([[0, 60], [2**32 - 1, 60]], "<u4").tobytes()
    new = b"".join(arrays[name].tobytes() for name in ("steps", "biases", "scales", "ends", "text"))
    data = forged({**sizes, "runs": 2, "new": 60, "new_key_bytes": len(keys.text)}, start + runs + new)
    assert outcome(data) == "refused"


def test_no_more_is_unpacked_than_the_new_index_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    stream = importlib.import_module("odp.serving.difference")._Stream
    take = stream.take
    monkeypatch.setattr(stream, "take", lambda self, size: asked.append(size) or take(self, size))
    head = Header.of(OLD).to_bytes()
    sizes = {"result": "00" * 32, "changed": 0, "new": 0, "head_bytes": len(head), "runs": 1, "new_key_bytes": 0}
    for name in ("changed", "new", "runs", "new_key_bytes", "head_bytes"):
        assert outcome(forged(sizes | {name: 2**32 - 1}, head + bytes(10_000))) == "refused"
    assert max(asked) == len(head)

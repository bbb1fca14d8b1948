"""A chain of differences is the list that it stands for, and nothing but its own next step follows it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError, DataError
from odp.protocol.catalogues import catalogue as module
from odp.protocol.catalogues.catalogue import BLOCK, Catalogue, block_of, versions_in
from odp.protocol.catalogues.step import LARGEST_STEP, LONGEST_KEY, SignedStep, Step, step_sha256
from odp.v1 import catalogue_pb2

FIRST = Catalogue.make("films", ["a", "b", "c"])
SECOND = FIRST.change(add=["d"], retire=["b"])


@st.composite
def histories(draw: st.DrawFn) -> list[list[str]]:
    """The list of items of each version, as the rule of numbers has it; versions differ."""
    keys = [f"item {number}" for number in range(12)]
    items = draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
    found = [items]
    for _ in range(draw(st.integers(0, 12))):
        stay = [key for key in items if draw(st.booleans())]
        new = draw(st.lists(st.sampled_from([key for key in keys if key not in items] or [""]), unique=True))
        new = [key for key in new if key]
        if stay + new and stay + new != items:
            items = stay + new
            found.append(items)
    return found


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_chain_of_differences_gives_the_full_list_of_every_version(history: list[list[str]]) -> None:
    made = Catalogue.make("films", history[0])
    for items in history[1:]:
        made = made.change_to(items)
    taken = Catalogue.from_bytes(made.to_bytes())
    assert taken == made
    assert taken.sha256 == made.sha256
    for version, items in enumerate(history, start=1):
        then = taken.at(version)
        assert list(then.keys) == items
        assert [then.numbers[key] for key in items] == list(range(len(items)))
        assert then.sha256 == taken.hashes[version - 1]


def test_a_difference_holds_what_changed_and_not_what_stayed() -> None:
    large = Catalogue.make("films", [f"film {number}" for number in range(5000)])
    assert len(large.change(add=["new"], retire=["film 7"]).steps[1]) < 100


def test_an_item_that_comes_back_has_its_key_and_a_new_number() -> None:
    assert SECOND.change(add=["b"]).keys == ("a", "c", "d", "b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"add": ["a"]}, "adds 'a', which is an item already"),
        ({"add": ["x", "x"]}, "'x' stands at 0 and 1"),
        ({"retire": ["alien"]}, "retires 'alien', which is no item"),
        ({"retire": ["a", "a"]}, "'a' stands at 0 and 1"),
        ({"add": ["a"], "retire": ["a"]}, "added or retired, not both"),
        ({"retire": ["a", "b", "c"]}, "keep an item"),
        ({"add": "Dune"}, "add='Dune' to be a list of keys, not one text"),
        ({"add": [""]}, "printable key"),
        ({"add": ["two\nlines"]}, "printable key"),
        ({"add": ["Ame\u0301lie"]}, "in the normal form NFC"),
        ({"add": ["\ud800"]}, "printable key"),
        ({"add": ["k" * (LONGEST_KEY + 1)]}, "printable key"),
        ({"withdraw": [2]}, "withdraw=2"),
        ({"withdraw": [1, 1]}, "withdrawn already"),
        ({}, "change something"),
    ],
)
def test_a_wrong_change_is_refused_by_name(change: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        FIRST.change(**change)  # type: ignore[arg-type]  # the table mixes keys and versions


def test_keys_that_stand_twice_make_no_catalogue() -> None:
    with pytest.raises(ConfigurationError, match="'a' stands at 0 and 2"):
        Catalogue.make("films", ["a", "b", "a"])
    with pytest.raises(ConfigurationError, match="at least one item"):
        Catalogue.make("films", [])
    with pytest.raises(ConfigurationError, match="not one text"):
        Catalogue.make("films", "Dune")


def test_a_withdrawn_version_stays_readable_and_may_not_be_named() -> None:
    third = SECOND.change(withdraw=[1])
    assert third.keys == SECOND.keys
    assert third.withdrawn == {1}
    third.require_usable(2)
    with pytest.raises(ConfigurationError, match=r"version 1 of population 'films' was withdrawn: .* version 3"):
        third.require_usable(1)
    with pytest.raises(ConfigurationError, match="withdrawn already"):
        third.change(withdraw=[1])


def _changed(step: bytes, **fields: object) -> bytes:
    return dataclasses.replace(Step.decode(step), **fields).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_sha256": bytes(32)},
        {"version": 3},
        {"population": "songs"},
        {"added": ("x", "y")},
        {"items": 4},
    ],
)
def test_a_step_that_does_not_follow_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"version|items"):
        Catalogue((FIRST.steps[0], _changed(SECOND.steps[1], **fields)))


def test_a_tampered_difference_changes_the_id_of_every_later_version() -> None:
    third = SECOND.change(add=["e"])
    forged = _changed(SECOND.steps[1], added=("D",))
    assert step_sha256(forged) != SECOND.sha256
    with pytest.raises(ConfigurationError, match="follows another version"):
        Catalogue((FIRST.steps[0], forged, third.steps[2]))


def test_bytes_that_are_no_step_are_refused() -> None:
    extra = SECOND.steps[1] + b"\x98\x06\x01"  # a field that nobody declared
    for data, words in (
        (b"", "1 to"),
        (b"\xff", "valid message"),
        (extra, "does not know"),
        (b"x" * (LARGEST_STEP + 1), "1 to"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Step.decode(data)
    unsorted = catalogue_pb2.CatalogueStep.FromString(SECOND.change(withdraw=[1]).steps[2])
    unsorted.withdrawn[:] = [2, 1]
    with pytest.raises(ConfigurationError, match="ascending"):
        Step.decode(unsorted.SerializeToString())


def test_many_large_changes_in_one_block_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = SECOND.change(add=["e" * 200])
    monkeypatch.setattr(module, "LARGEST_BLOCK", sum(map(len, grown.steps[1:])))
    Catalogue(grown.steps)
    with pytest.raises(ConfigurationError, match="version 4 has too many changes"):
        grown.change(add=["f"])


def test_version_one_is_a_block_of_its_own_and_later_blocks_have_eight() -> None:
    assert [block_of(version) for version in (1, 2, 9, 10, 17, 18)] == [0, 1, 1, 2, 2, 3]
    for block in range(4):
        assert {block_of(version) for version in versions_in(block)} == {block}
    assert [len(versions_in(block)) for block in range(3)] == [1, BLOCK, BLOCK]


def test_a_signature_is_of_its_key_and_of_every_byte() -> None:
    key = SigningKey.generate()
    signed = SignedStep.by(key, SECOND.steps[1])
    assert signed.open().added == ("d",)
    for wrong in (
        dataclasses.replace(signed, step=FIRST.steps[0]),
        dataclasses.replace(signed, key=SigningKey.generate().public),
        dataclasses.replace(signed, signature=bytes(64)),
    ):
        with pytest.raises(SignatureError):
            wrong.open()


def test_a_file_comes_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "films.catalogue"
    SECOND.save(path)
    assert odp.items.Catalogue.load(path) == SECOND
    whole = path.read_bytes()
    cut = [whole[:length] for length in range(len(whole))]  # also where a step ends
    for damaged in (*cut, b"something", whole + b"\0\0\0\0", whole + whole[-32:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"films\.catalogue is no catalogue"):
            Catalogue.load(path)
    with pytest.raises(DataError, match="cannot read"):
        Catalogue.load(tmp_path / "none")

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from device_runtime.store.keys import (
    DESCRIPTOR,
    FILE,
    GIVEN,
    KEY_FILE,
    KEYRING,
    VARIABLE,
    at_rest,
    host_key,
    no_keyring,
)
from device_runtime.store.store import Store, store_path
from odp.errors import StateError


class Ring:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise RuntimeError("locked")
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.locked:
            raise RuntimeError("locked")
        self.held[service, username] = password


def key_file(path: Path, content: bytes = b"ab" * 32) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_without_a_given_key_or_a_keyring_the_key_is_a_file_that_its_owner_alone_reads(tmp_path: Path) -> None:
    made = host_key(tmp_path, environment={}, ring=no_keyring)
    assert (made.source, made.where) == (FILE, str(tmp_path / KEY_FILE))
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert host_key(tmp_path, environment={}, ring=no_keyring) == made
    protected = at_rest(tmp_path)
    assert protected is not None
    assert "AES-256" in protected.text
    assert str(tmp_path / KEY_FILE) in protected.text
    assert "a copy of the whole folder contains both" in protected.text
    assert made.key.hex() not in repr(made) + (tmp_path / DESCRIPTOR).read_text()


def test_a_keyring_keeps_the_key_and_the_folder_then_holds_none(tmp_path: Path) -> None:
    ring = Ring()
    made = host_key(tmp_path, environment={}, ring=lambda: ring)
    assert made.source == KEYRING
    assert list(ring.held.values()) == [made.key.hex()]
    assert not (tmp_path / KEY_FILE).exists()
    assert host_key(tmp_path, environment={}, ring=lambda: ring) == made
    protected = at_rest(tmp_path)
    assert protected is not None
    assert "keyring of the operating system" in protected.text
    assert protected.warning == ""
    with pytest.raises(StateError, match="no keyring is available"):
        host_key(tmp_path, environment={}, ring=no_keyring)
    ring.locked = True
    with pytest.raises(StateError, match="unlock it"):
        host_key(tmp_path, environment={}, ring=lambda: ring)


def test_a_keyring_that_takes_nothing_leaves_the_key_in_a_file(tmp_path: Path) -> None:
    ring = Ring()
    ring.locked = True
    assert host_key(tmp_path, environment={}, ring=lambda: ring).source == FILE


def test_a_given_key_comes_first_and_may_be_moved(tmp_path: Path) -> None:
    state, ring = tmp_path / "state", Ring()
    one = key_file(tmp_path / "one.key")
    made = host_key(state, key_file=one, environment={VARIABLE: "/nonexistent"}, ring=lambda: ring)
    assert (made.source, made.key, ring.held) == (GIVEN, b"\xab" * 32, {})
    assert host_key(state, environment={}).key == made.key
    moved = one.rename(tmp_path / "moved.key")
    with pytest.raises(StateError, match=r"one\.key cannot be read"):
        host_key(state, environment={})
    assert host_key(state, environment={VARIABLE: str(moved)}).key == made.key
    assert host_key(state, environment={}).where == str(moved)


def test_a_wrong_key_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    path = store_path(tmp_path, 0)
    with Store.open_or_create(path) as store:
        store.rate(3, 4.5)
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    other = key_file(tmp_path.parent / "other.key", os.urandom(32))
    with pytest.raises(StateError, match="is not the key of the stores") as caught:
        host_key(tmp_path, key_file=other, environment={})
    assert "\n" not in str(caught.value)
    foreign = host_key(tmp_path.parent / "elsewhere", key_file=other, environment={})
    for opened in (Store.open, Store.open_or_create):
        with pytest.raises(StateError, match="encrypted with another key"):
            opened(path, key=foreign)
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


@pytest.mark.parametrize("lost", [DESCRIPTOR, KEY_FILE])
def test_a_lost_key_is_never_replaced_by_a_new_one_while_stores_need_it(tmp_path: Path, lost: str) -> None:
    path = store_path(tmp_path, 0)
    Store.open_or_create(path).close()
    kept = (tmp_path / KEY_FILE).read_bytes()
    (tmp_path / lost).unlink()
    for one in (path, store_path(tmp_path, 1)):
        with pytest.raises(StateError, match=r"restore (it|that file)"):
            Store.open_or_create(one)
    assert not (tmp_path / lost).exists()
    if lost == DESCRIPTOR:
        found = host_key(tmp_path, key_file=key_file(tmp_path / "given", kept), environment={})
        with Store.open(path, key=found) as store:
            assert len(store.identity().secret) == 32


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [(b"short", 0o600, "32 bytes or 64"), (b"a" * 64, 0o640, "chmod 600"), (b"g" * 64, 0o600, "32 bytes or 64")],
)
def test_a_key_file_that_is_no_key_or_is_no_secret_is_refused(
    tmp_path: Path, content: bytes, mode: int, message: str
) -> None:
    given = key_file(tmp_path / "key", content)
    given.chmod(mode)
    with pytest.raises(StateError, match=message):
        host_key(tmp_path / "state", key_file=given, environment={})
    assert not (tmp_path / "state" / DESCRIPTOR).exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 2, "source": "file", "where": "", "check": ""}'])
def test_a_damaged_descriptor_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DESCRIPTOR).write_bytes(content)
    with pytest.raises(StateError, match=DESCRIPTOR):
        host_key(tmp_path, environment={})


def test_an_interrupted_making_of_the_key_goes_on_with_the_same_one(tmp_path: Path) -> None:
    made = host_key(tmp_path, environment={}, ring=no_keyring)
    (tmp_path / DESCRIPTOR).unlink()
    assert host_key(tmp_path, environment={}, ring=no_keyring) == made
    assert json.loads((tmp_path / DESCRIPTOR).read_bytes())["check"] == made.check


def test_every_store_has_a_key_of_its_own(tmp_path: Path) -> None:
    key = host_key(tmp_path, environment={}, ring=no_keyring)
    found = [key.of_store(store_path(tmp_path, device)) for device in range(100)]
    assert len({one.key for one in found}) == len({one.salt for one in found}) == 100
    assert key.key not in {one.key for one in found}

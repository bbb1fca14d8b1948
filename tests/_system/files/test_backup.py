"""Backups of state folders: what comes back, what is refused, and deaths in between."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odp._system.files.backup import back_up, restore
from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.platform import EmulatedPlatform


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder of `odp up`: programs inside, a chip beside them, and one inside one of them."""
    root = tmp_path / "state"
    for path, role in ((root, "services"), (root / "server", "server"), (root / "aggregator", "aggregator")):
        with StateFolder.open(path, role) as folder:
            folder.write_atomically("data.db", f"what the {role} knows".encode())
    (root / "server" / "log").mkdir(mode=0o700)
    (root / "server" / "log" / "entries").write_bytes(bytes(range(256)) * 5000)
    (root / "server" / "log" / "entries").chmod(0o600)
    (root / "ca.pem").write_text("for everybody")
    (root / "ca.pem").chmod(0o644)
    for chip in (root / "platform", root / "aggregator" / "platform"):
        EmulatedPlatform.open(chip).counter("one").advance(expected=0, to=7)
    return root


def _content(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_what_was_backed_up_comes_back_with_its_modes_around_the_chips_as_they_are(state: Path, tmp_path: Path) -> None:
    before = _content(state)
    made = back_up(state, tmp_path / "backup.tar")
    assert stat.S_IMODE((tmp_path / "backup.tar").stat().st_mode) == 0o600
    for chip in (state / "platform", state / "aggregator" / "platform"):
        EmulatedPlatform.open(chip).counter("one").advance(expected=7, to=8)
    kept = _content(state)
    for path in state.rglob("*"):
        if path.is_file() and "platform" not in path.parts:
            path.unlink()
    assert restore(tmp_path / "backup.tar", state) == made
    after = _content(state)
    assert {name: after[name] for name in after if "platform" in name} == {
        name: kept[name] for name in kept if "platform" in name
    }
    assert {name: after[name] for name in after if "platform" not in name} == {
        name: before[name] for name in before if "platform" not in name
    }
    assert EmulatedPlatform.open(state / "platform").counter("one").value == 8
    with StateFolder.open(state / "server", "server") as folder:
        assert folder.read("data.db") == b"what the server knows"


@pytest.mark.parametrize(("mode", "after"), [(0o400, 0o600), (0o640, 0o600), (0o444, 0o644), (0o664, 0o644)])
def test_r281_a_file_of_any_mode_comes_back(state: Path, tmp_path: Path, mode: int, after: int) -> None:
    """A hardened umask, or an owner who made a key read-only, must not make a backup that nothing restores."""
    (state / "ca.pem").chmod(mode)
    back_up(state, tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new" / "ca.pem").stat().st_mode) == after


def test_no_byte_of_a_chip_is_in_a_backup(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup.tar")
    secret = json.loads((state / "platform" / "platform.json").read_text())["chip_secret"]
    data = (tmp_path / "backup.tar").read_bytes()
    assert secret.encode() not in data
    assert b"platform" not in data


@pytest.mark.parametrize("where", ["", "aggregator"])
def test_a_program_that_runs_is_not_backed_up(state: Path, tmp_path: Path, where: str) -> None:
    role = where or "services"
    with StateFolder.open(state / where, role), pytest.raises(StateError, match="in use"):
        back_up(state, tmp_path / "backup.tar")
    assert not list(tmp_path.glob("*.tar"))


def test_nothing_is_overwritten(state: Path, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    back_up(state, archive)
    with pytest.raises(StateError, match="exists already"):
        back_up(state, archive)
    with pytest.raises(StateError, match="not empty"):
        restore(archive, state)
    with pytest.raises(ConfigurationError, match="no state folder"):
        back_up(tmp_path, tmp_path / "other.tar")


def test_a_changed_byte_is_found_and_nothing_is_put_in_place(state: Path, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    back_up(state, archive)
    data = bytearray(archive.read_bytes())
    at = data.index(b"what the server knows")
    data[at] ^= 1
    archive.write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"data\.db is not what was backed up"):
        restore(archive, tmp_path / "new")
    archive.write_bytes(bytes(data[:at]))
    with pytest.raises(ConfigurationError, match="damaged"):
        restore(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "a//b", "a/../../outside", ""])
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    manifest = {"files": {name: {"mode": 0o600, "sha256": "0" * 64, "size": 0}}, "format": "odp-backup-1", "role": "x"}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "backup.tar", "w") as tar:
        tar.add(path, "manifest.json")
    with pytest.raises(ConfigurationError, match="no backup"):
        restore(tmp_path / "backup.tar", tmp_path / "new")


@pytest.mark.parametrize(
    "name",
    [
        "platform/platform.json", "platform.json", "server/new/platform.json", "platform/counters.json",
        "aggregator/platform/counters.json", "platform/slots/00", "platform/notes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("replace", [False, True])
def test_r383_a_backup_that_brings_a_chip_is_refused_and_changes_nothing(
    state: Path, tmp_path: Path, name: str, replace: bool
) -> None:
    """Its counters would say that an old ledger is the newest: the budget would be spent twice."""
    before = _content(state)
    other = tmp_path / "other"
    shutil.copytree(state, other)
    for chip in (other / "platform", other / "aggregator" / "platform"):
        shutil.rmtree(chip)
    (other / "not-yet").write_text("a chip of whoever made this")
    back_up(other, tmp_path / "genuine.tar")
    crafted = tmp_path / "crafted.tar"
    with tarfile.open(tmp_path / "genuine.tar") as genuine, tarfile.open(crafted, "w") as tar:
        members = {member.name: genuine.extractfile(member).read() for member in genuine}  # type: ignore[union-attr]
        manifest = json.loads(members.pop("manifest.json"))
        manifest["files"][name] = manifest["files"].pop("not-yet")
        members[f"state/{name}"] = members.pop("state/not-yet")
        files = [("manifest.json", json.dumps(manifest).encode()), *sorted(members.items())]
        for path, data in files:
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    if not replace:
        _empty(state)
        before = _content(state)
    with pytest.raises(ConfigurationError, match=r"brings a chip .*: no backup holds one"):
        restore(crafted, state, replace=replace)
    assert _content(state) == before
    assert not list(tmp_path.glob(".state*"))


def test_a_folder_that_is_in_use_or_full_is_replaced_around_its_chips_and_stays_beside(
    state: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "backup.tar"
    before = _content(state)
    back_up(state, archive)
    (state / "server" / "data.db").write_bytes(b"damaged")
    damaged = {name: one for name, one in _content(state).items() if "platform" not in name}
    with pytest.raises(StateError, match="give --replace"):
        restore(archive, state)
    with StateFolder.open(state / "server", "server"), pytest.raises(StateError, match="in use"):
        restore(archive, state, replace=True)
    restore(archive, state, replace=True)
    assert _content(state) == before
    assert _content(tmp_path / "state.replaced-0") == damaged
    restore(archive, state, replace=True)
    assert _content(tmp_path / "state.replaced-1") == {name: before[name] for name in damaged}


def test_a_backup_replaces_the_folder_of_no_other_program(state: Path, tmp_path: Path) -> None:
    archive, before = tmp_path / "server.tar", _content(state)
    back_up(state / "server", archive)
    for other in (state, state / "aggregator"):
        with pytest.raises(ConfigurationError, match=r"server.tar is of 'server' and .* of '(services|aggregator)'"):
            restore(archive, other, replace=True)
    files = tmp_path / "files"
    files.mkdir()
    (files / "photo").write_text("precious")
    with pytest.raises(ConfigurationError, match="files is no state folder of a program"):
        restore(archive, files, replace=True)
    assert _content(state) == before
    assert (files / "photo").read_text() == "precious"
    assert not list(tmp_path.glob("*replaced*"))


def test_half_a_backup_leaves_nothing_behind(state: Path, tmp_path: Path) -> None:
    archive, half = tmp_path / "whole.tar", tmp_path / "half.tar"
    back_up(state, archive)
    half.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    for place, replace in ((state, True), (tmp_path / "new", False)):
        with pytest.raises(ConfigurationError, match=r"half\.tar is damaged"):
            restore(half, place, replace=replace)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.tar", "state", "whole.tar"]


def test_a_backup_is_never_inside_what_the_next_one_holds(state: Path, tmp_path: Path) -> None:
    for archive in (state / "backup.tar", state / "server" / "backup.tar"):
        with pytest.raises(StateError, match=r"is inside .*state, so that the next backup would hold it"):
            back_up(state, archive)
        assert not archive.exists()
    back_up(state / "server", state / "backup.tar")


@pytest.mark.parametrize("name", ["no-such.tar", "state"])
def test_a_backup_that_cannot_be_read_is_the_file_that_is_named(state: Path, tmp_path: Path, name: str) -> None:
    for replace in (False, True):
        with pytest.raises(ConfigurationError, match=f"cannot read the backup .*{name}: "):
            restore(tmp_path / name, state if replace else tmp_path / "new", replace=replace)


def test_a_link_in_a_state_folder_is_not_followed(state: Path, tmp_path: Path) -> None:
    (state / "server" / "link").symlink_to(tmp_path)
    with pytest.raises(StateError, match="neither a file nor a folder"):
        back_up(state, tmp_path / "backup.tar")


class _Killed(BaseException):
    pass


def _deaths(
    archive: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, replace: bool = False
) -> Iterator[Path]:
    """Copies of ``state`` in which a restore of ``archive`` died at its first step, its second, and so on."""
    steps = {name: getattr(os, name) for name in ("fsync", "rename", "replace", "rmdir", "unlink")}
    for number in itertools.count(1):
        place = tmp_path / f"try-{number}" / "state"
        shutil.copytree(state, place)
        left = itertools.count(number, -1)

        def dying(*arguments: Any, name: str, left: Iterator[int] = left, **keywords: Any) -> Any:
            if next(left) == 1:
                raise _Killed
            return steps[name](*arguments, **keywords)

        with monkeypatch.context() as patched:
            for name in steps:
                patched.setattr(os, name, functools.partial(dying, name=name))
            try:
                restore(archive, place, replace=replace)
                return
            except _Killed:
                pass
        yield place


def _empty(state: Path) -> None:
    for path in [path for path in state.rglob("*") if path.is_file() and "platform" not in path.parts]:
        path.unlink()


def test_a_restore_that_dies_at_any_step_is_finished_by_the_next_one(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "backup.tar"
    before = _content(state)
    back_up(state, archive)
    _empty(state)
    finished = 0
    for place in _deaths(archive, state, tmp_path, monkeypatch):
        restore(archive, place)
        assert _content(place) == before
        assert [path.name for path in place.parent.iterdir()] == ["state"]
        finished += 1
    assert finished > 10


def test_a_restore_in_place_that_dies_at_any_step_is_finished_by_the_next_one(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "backup.tar"
    before = _content(state)
    back_up(state, archive)
    (state / "server" / "data.db").write_bytes(b"damaged")
    finished = 0
    for place in _deaths(archive, state, tmp_path, monkeypatch, replace=True):
        restore(archive, place, replace=True)
        assert _content(place) == before
        aside = [path for path in place.parent.iterdir() if path.name.startswith("state.replaced-")]
        assert (aside[0] / "server" / "data.db").read_bytes() == b"damaged"
        finished += 1
    assert finished > 10


def test_r281_a_restore_of_another_backup_than_the_one_that_died_never_ends_with_that_one(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = tmp_path / "older.tar", tmp_path / "newer.tar"
    back_up(state, older)
    (state / "server" / "data.db").write_bytes(b"what the server learnt since")
    before = _content(state)
    back_up(state, newer)
    _empty(state)
    outcomes = set()
    for place in _deaths(older, state, tmp_path, monkeypatch):
        if (place / "server" / "data.db").exists():
            with pytest.raises(StateError, match="not empty"):
                restore(newer, place)
            outcomes.add("the older one was in place already")
        else:
            restore(newer, place)
            assert _content(place) == before
            assert [path.name for path in place.parent.iterdir()] == ["state"]
            outcomes.add("restored")
    assert len(outcomes) == 2

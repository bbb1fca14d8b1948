"""Backups of state folders, and how to restore them: everything that a program must not lose, in one file.

A backup is a tar archive of regular files, after a manifest with the SHA-256 of each. It is taken of a program that is
stopped, so that its files belong together, and it holds private keys: it is its user's alone (0600).

The emulated chip is left out, wherever it lies. It is the hardware below an enclave, whose counters say which state is
the newest: a backup of it would be the way to spend a budget twice.

A restore puts everything in place at once, by one rename. It goes into an empty folder, or one that holds nothing but
chips; what else is there stays beside it where it is to be replaced. The chips of the folder stay in their place, and a
backup that brings one is refused. Whether the state is the newest, the enclave finds out when it starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from odp._system.files.durability import create_file, finish, replaced_file, sync_folder
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import StateFolder, free_name, state_errors, write_atomically
from odp.errors import ConfigurationError, StateError

_FORMAT = "odp-backup-1"
_MANIFEST = "manifest.json"
_CHIP = "platform.json"
#: Files that chips alone have, by any of which a backup would bring one, or a part of it.
_OF_CHIPS = (_CHIP, "platform.lock", "counters.json", "counters.lock")
_ROLE_FILE = "format"
_ROLE = re.compile(rb"odp ([a-z-]{1,32}) 1\n")
#: Of a start alone: who holds the folder, where it served, how SQLite shares memory, what a kill left unfinished.
_PASSING = re.compile(r"lock|address|control-address|.*-shm|\..*\.tmp|.*\.lock")
# Whatever mode a file has, it comes back with one of two: whether others may read it is what counts.
_MODES = _PRIVATE, _PUBLIC = 0o600, 0o644
_LARGEST_MANIFEST = 2**26
_CHUNK = 2**20


@dataclass(frozen=True)
class Backup:
    """The content of a backup: ``role`` of the folder's program, its files, and their total size in bytes."""

    role: str
    files: int
    bytes: int


def back_up(state: Path, archive: Path) -> Backup:
    """Writes the state folder of a stopped program to the file ``archive``, completely or not at all.

    Raises:
        StateError: a program runs on the folder or on one inside it, the archive exists or would be in the folder, or a
            file cannot be read or written.
        ConfigurationError: the folder is no state folder.
    """
    with contextlib.ExitStack() as held, state_errors(archive.parent):
        role = _role(state)
        if archive.exists():
            raise StateError(f"{archive} exists already; give another name, or remove it")
        if state.resolve() in archive.resolve().parents:
            raise StateError(f"{archive} is inside {state}, so that the next backup would hold it: give another place")
        for folder in _folders(state):
            if (folder / _ROLE_FILE).is_file():
                held.enter_context(StateFolder.open(folder, _role(folder)))
        listed: dict[str, dict[str, Any]] = {}
        for path in _files(state):
            digest, size = _digest(path)
            mode = _PUBLIC if path.stat().st_mode & stat.S_IROTH else _PRIVATE
            listed[str(path.relative_to(state))] = {"mode": mode, "sha256": digest, "size": size}
        manifest = json.dumps({"files": listed, "format": _FORMAT, "role": role}, sort_keys=True).encode()
        with (
            replaced_file(archive) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add(tar, _MANIFEST, io.BytesIO(manifest), len(manifest))
            for name, entry in sorted(listed.items()):
                with (state / name).open("rb") as content:
                    _add(tar, f"state/{name}", content, entry["size"])
    return Backup(role, len(listed), sum(listed_file["size"] for listed_file in listed.values()))


def restore(archive: Path, state: Path, *, replace: bool = False) -> Backup:
    """Restores ``archive`` into ``state``, which is empty, missing, or has only chips in it. Can be repeated.

    With ``replace`` it may hold more, of programs that are stopped: that is moved to ``<state>.replaced-0``, or the
    next free number; chips stay.

    Raises:
        ConfigurationError: the file cannot be read, is no backup, one of its bytes was changed, it brings a chip, or
            the folder to replace is of another program, or of none.
        StateError: the folder holds something else, a program runs on it, or it cannot be written.
    """
    state = state.absolute()
    unfinished, whole = (state.with_name(f".{state.name}.restoring{end}") for end in ("", ".whole"))
    with state_errors(state):
        if whole.exists() and not unfinished.exists():
            # A kill came when everything was in place.
            made = whole.read_bytes()
            whole.unlink()
            if made == _read_manifest(archive):
                return _summary(_manifest(made, archive))
        if unfinished.exists() and whole.exists() and whole.read_bytes() != _read_manifest(archive):
            # A kill came while another backup was put in place.
            _move(_chips(unfinished), unfinished, state)
            whole.unlink()
        if unfinished.exists() and not whole.exists():
            shutil.rmtree(unfinished)  # a kill came while it was unpacked
        chips = _chips(state)
        sets_aside = replace and bool(_others(state, chips))
        if sets_aside:
            _require_same_role(state, _manifest(_read_manifest(archive), archive)["role"], archive)
            _require_stopped(state)
        else:
            _require_empty(state, chips)
        if not unfinished.exists():
            _require_chips_apart(_manifest(_read_manifest(archive), archive), _names(chips, state), archive)
            try:
                data = _unpack(archive, unfinished)
            except Exception:
                # Keys, and perhaps what fills the disk: whoever gives up leaves none of it.
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            write_atomically(whole, data)
        manifest = _manifest(whole.read_bytes(), archive)
        _move(chips, state, unfinished)
        if sets_aside:
            state.rename(free_name(state, "replaced"))
        elif state.exists():
            _remove_empty(state)
        unfinished.rename(state)
        sync_folder(state.parent)
        whole.unlink()
    return _summary(manifest)


def _summary(manifest: dict[str, Any]) -> Backup:
    return Backup(manifest["role"], len(manifest["files"]), sum(entry["size"] for entry in manifest["files"].values()))


def _role(state: Path) -> str:
    try:
        match = _ROLE.fullmatch((state / _ROLE_FILE).read_bytes())
    except OSError:
        match = None
    if match is None:
        raise ConfigurationError(f"{state} is no state folder of a program: it has no file {_ROLE_FILE!r}")
    return match[1].decode()


def _all_folders(state: Path) -> Iterator[Path]:
    for root, _, _ in os.walk(state):
        yield Path(root)


def _chips(state: Path) -> list[Path]:
    return [folder for folder in _all_folders(state) if (folder / _CHIP).is_file()]


def _names(chips: list[Path], state: Path) -> list[str]:
    return [chip.relative_to(state).as_posix() for chip in chips]


def _move(chips: list[Path], source: Path, target: Path) -> None:
    for chip in chips:
        place = target / chip.relative_to(source)
        make_folders(place.parent)
        chip.rename(place)


def _folders(state: Path) -> list[Path]:
    """The folder and those inside it, without chips and what is inside of them."""
    folders = []
    for root, names, _ in os.walk(state):
        names[:] = sorted(name for name in names if not (Path(root) / name / _CHIP).is_file())
        folders.append(Path(root))
    return folders


def _files(state: Path) -> list[Path]:
    files = []
    for folder in _folders(state):
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise StateError(f"{path} is neither a file nor a folder: a backup has only these")
            if path.is_file() and not _PASSING.fullmatch(path.name):
                files.append(path)
    return files


def _digest(path: Path) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
            size += len(chunk)
    return hashed.hexdigest(), size


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, content)


def _manifest(data: bytes, archive: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
        files = manifest["files"]
        right = manifest["format"] == _FORMAT and isinstance(manifest["role"], str)
        for name, entry in files.items():
            parts = name.split("/")
            plain = all(part not in ("", ".", "..") and "\\" not in part and "\0" not in part for part in parts)
            right = (
                right
                and plain
                and entry["mode"] in _MODES
                and type(entry["size"]) is int
                and len(entry["sha256"]) == 64
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise ConfigurationError(f"{archive} is no backup of this version (`odp backup`)")
    return manifest  # type: ignore[no-any-return]  # its form was checked


def _read_manifest(archive: Path) -> bytes:
    try:
        with tarfile.open(archive, mode="r:") as tar:
            return _first(tar, archive)
    except OSError as error:
        raise ConfigurationError(f"cannot read the backup {archive}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"{archive} is damaged: {error}") from error


def _first(tar: tarfile.TarFile, archive: Path) -> bytes:
    first = tar.next()
    if first is None or first.name != _MANIFEST or first.size > _LARGEST_MANIFEST:
        raise ConfigurationError(f"{archive} is no backup of this version (`odp backup`)")
    return _content(tar, first).read()


def _unpack(archive: Path, target: Path) -> bytes:
    """Writes all files below ``target``, durably; the bytes of the manifest."""
    try:
        with tarfile.open(archive, mode="r:") as tar:
            data = _first(tar, archive)
            files = _manifest(data, archive)["files"]
            for name, entry in sorted(files.items()):
                member = tar.next()
                if (
                    member is None
                    or member.name != f"state/{name}"
                    or not member.isreg()
                    or member.size != entry["size"]
                ):
                    raise ConfigurationError(f"{archive} is damaged: {name} is not in its place")
                _write(_content(tar, member), target / name, entry, archive)
            if tar.next() is not None:
                raise ConfigurationError(f"{archive} is damaged: it holds more than it lists")
    except (tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"{archive} is damaged: {error}") from error
    for folder in _all_folders(target):
        sync_folder(folder)
    return data


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    if (content := tar.extractfile(member)) is None:
        raise tarfile.TarError(f"{member.name} is no file")
    return content


def _write(content: IO[bytes], path: Path, expected: dict[str, Any], archive: Path) -> None:
    make_folders(path.parent)
    hashed = hashlib.sha256()
    with create_file(path, mode=expected["mode"]) as file:
        while chunk := content.read(_CHUNK):
            hashed.update(chunk)
            file.write(chunk)
        os.fchmod(file.fileno(), expected["mode"])
        finish(file, path)
    if hashed.hexdigest() != expected["sha256"]:
        raise ConfigurationError(f"{archive} is damaged: {path.name} is not what was backed up")


def _others(state: Path, chips: list[Path]) -> list[Path]:
    """The files of a folder that are of no chip."""
    inside = [path for path in state.rglob("*") if not path.is_dir()] if state.exists() else []
    return [path for path in inside if not any(chip in path.parents for chip in chips)]


def _require_empty(state: Path, chips: list[Path]) -> None:
    if others := _others(state, chips):
        raise StateError(
            f"{state} is not empty ({others[0].name}, ..): restore into an empty folder, or give --replace, which "
            "moves what is there to a folder beside it and leaves the chip where it is"
        )


def _require_same_role(state: Path, role: str, archive: Path) -> None:
    """Raises ConfigurationError unless ``state`` is the folder of a program of that role: no other is set aside."""
    present = _role(state)
    if present != role:
        raise ConfigurationError(
            f"{archive} is of {role!r} and {state} of {present!r}: give the --state folder that the backup was made of"
        )


def _require_stopped(state: Path) -> None:
    with contextlib.ExitStack() as held:
        for folder in _folders(state):
            if (folder / _ROLE_FILE).is_file():
                held.enter_context(StateFolder.open(folder, _role(folder)))


def _require_chips_apart(manifest: dict[str, Any], chips: list[str], archive: Path) -> None:
    """Raises ConfigurationError where a backup has a file of a chip, or one in the folder of a chip that is there."""
    for name in manifest["files"]:
        folder, _, file = name.rpartition("/")
        if file in _OF_CHIPS or any(f"{folder}/".startswith(f"{chip}/") for chip in chips):
            raise ConfigurationError(
                f"{archive} brings a chip ({name}): no backup holds one, since its counters say which state is the "
                "newest; whoever made this file wants a budget spent twice"
            )


def _remove_empty(state: Path) -> None:
    for folder in sorted(_all_folders(state), key=lambda path: len(path.parts), reverse=True):
        folder.rmdir()

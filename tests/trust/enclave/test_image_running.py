"""Images in sealed memory files: they hold what the manifest lists, or nothing starts; and what a launch refuses."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trust.enclave.conftest import POLICY
from trust.enclave.test_launcher import children

from odp._system.sandbox import kernel
from odp.errors import ConfigurationError, StateError
from odp.trust.enclave import measurement
from odp.trust.enclave.image import running
from odp.trust.enclave.image.built import built
from odp.trust.enclave.image.parts import Blob, ImageFile, open_image, written
from odp.trust.enclave.image.running import loaded
from odp.trust.enclave.launcher import launch
from odp.trust.enclave.measurement import PLATFORM_ENTRY

PROBE = "odp.trust.enclave.probe"
BLOBS = (
    Blob("base", "dynamic-loader", "ld.so", b"loader" * 1000),
    Blob("base", "extension", "zlib", b"extension" * 1000),
    Blob("base", "library", "libc.so.6", b"library" * 1000),
    Blob("base", "program", "python", b"program" * 1000),
    Blob("base", "start", "start.zip", b"start" * 1000),
    Blob("code", "entry", "odp.probe", b""),
    Blob("code", "module", "odp.probe", b"module" * 1000),
)


@contextmanager
def opened(path: Path, *blobs: Blob) -> Iterator[ImageFile]:
    path.write_bytes(b"".join(written(blobs)))
    descriptor, file = open_image(path)
    try:
        yield file
    finally:
        os.close(descriptor)


def memory_files() -> list[str]:
    """Those of images that this process has open; other threads of it open and close files of their own."""
    return [place.name for place in Path("/proc/self/fd").iterdir() if "odp-image" in os.path.realpath(place)]


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 20, 0)


def test_memory_files_hold_an_image_and_nobody_can_write_into_them(tmp_path: Path) -> None:
    with opened(tmp_path / "image", *BLOBS) as file, loaded(file) as memory:
        kinds = {blob.kind: blob.data for blob in BLOBS}
        assert content(memory.loader) == kinds["dynamic-loader"]
        assert content(memory.program) == kinds["program"]
        assert content(memory.start) == kinds["start"]
        assert [content(library) for library in memory.libraries] == [kinds["library"]]
        assert {name: content(place) for name, place in memory.extensions.items()} == {"zlib": kinds["extension"]}
        assert marshal.loads(content(memory.modules)) == {"odp.probe": (kinds["module"], False)}
        for descriptor in memory.descriptors:
            with pytest.raises(PermissionError):
                os.pwrite(descriptor, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, 0)
            with pytest.raises(PermissionError):
                fcntl.fcntl(descriptor, running._ADD_SEALS, 0)
        # The dynamic loader is the program of the process, and one that nobody can read is closed to debuggers.
        assert os.fstat(memory.loader).st_mode & 0o777 == 0o111
    for descriptor in memory.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


COPIES = 5  # of the dynamic loader, program, start, library and extension


@pytest.mark.parametrize("moment", range(COPIES))
@pytest.mark.parametrize("how", ["changed", "cut", "emptied"])
def test_r440_an_image_that_is_written_to_while_it_is_copied_starts_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, how: str
) -> None:
    path = tmp_path / "image"
    copies = 0

    def sendfile(*arguments: Any) -> int:
        nonlocal copies
        if copies == moment:
            data = path.read_bytes()
            start = data.index(b"\n\n") + 2
            changed = {"changed": data[:start] + b"\xcc" * (len(data) - start), "cut": data[:-1], "emptied": b""}[how]
            # Into the same file, in place.
            with path.open("r+b") as file:
                file.write(changed)
                file.truncate(len(changed))
        copies += 1
        return copy(*arguments)

    copy = os.sendfile
    with opened(path, *BLOBS) as file:
        monkeypatch.setattr(os, "sendfile", sendfile)
        if how == "cut":
            # Its last byte is a module's, which was read before.
            with loaded(file) as memory:
                assert marshal.loads(content(memory.modules)) == {"odp.probe": (BLOBS[-1].data, False)}
        else:
            with pytest.raises(ConfigurationError, match="is not the one that its manifest lists"), loaded(file):
                pass
    assert not memory_files()


def test_r440_a_part_that_is_empty_is_read_like_any_other(tmp_path: Path) -> None:
    empty = Blob("base", "library", "libempty.so", b"")
    with opened(tmp_path / "image", *BLOBS, empty) as file, loaded(file) as memory:
        assert [content(library) for library in memory.libraries] == [BLOBS[2].data, b""]


class Refusing:
    """The C library on a system that refuses memory files."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls: list[int] = []

    def memfd_create(self, name: bytes, flags: int) -> int:
        self.calls.append(flags)
        ctypes.set_errno(self.code)
        return -1


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EACCES, r"makes no executable memory file \(Permission denied\).*vm\.memfd_noexec=0"),
        (errno.EPERM, r"makes no executable memory file \(Operation not permitted\).*system calls"),
        (errno.ENOSYS, "makes no executable memory file"),
        (errno.EMFILE, "Too many open files.*ulimit -n"),
    ],
)
def test_r440_a_system_without_executable_memory_files_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    libc = Refusing(code)
    monkeypatch.setattr(running, "ctypes", SimpleNamespace(CDLL=lambda *_, **__: libc, get_errno=ctypes.get_errno))
    with opened(tmp_path / "image", *BLOBS) as file, pytest.raises(StateError, match=advice) as caught, loaded(file):
        pass
    assert "\n" not in str(caught.value)
    # Without the flag a file would be executable only by accident of the system's settings.
    assert len(libc.calls) == 1


def refuse_landlock(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_: object) -> bool:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(kernel, "landlock", refuse)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_r440_without_landlock_a_library_that_the_system_preloads_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_landlock(monkeypatch, code)
    monkeypatch.setattr(running, "_PRELOAD", tmp_path / "ld.so.preload")
    running._close_files({})
    (tmp_path / "ld.so.preload").write_text("\n")
    running._close_files({})
    (tmp_path / "ld.so.preload").write_text("/lib/hostile.so\n")
    with pytest.raises(StateError, match=r"ld\.so\.preload loads libraries into every process.*empty that file"):
        running._close_files({})


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ENOENT, errno.E2BIG])
def test_r440_nothing_starts_with_open_files_where_closing_them_fails(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_landlock(monkeypatch, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        running._close_files({})


# What a launch refuses, in one line, and starts nothing.


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images of the probe and the platform."""
    folder = tmp_path_factory.mktemp("images")
    for name, entry in (("probe.image", PROBE), ("platform.image", PLATFORM_ENTRY)):
        (folder / name).write_bytes(built(entry).read_bytes())
    return folder


@pytest.fixture
def start(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Launches the probe from a folder of images."""
    monkeypatch.setattr(measurement, "FILES", {**measurement.FILES, PROBE: "probe.image"})

    def started(**files: bytes) -> None:
        folder = tmp_path / "images"
        folder.mkdir()
        for name in ("probe", "platform"):
            (folder / f"{name}.image").write_bytes(files.get(name, b"") or (shipped / f"{name}.image").read_bytes())
        launch(platform_folder=tmp_path / "chip", entry=PROBE, policy=POLICY, images=folder).close()

    return started


def damaged(data: bytes, kind: str) -> bytes:
    """The image with a changed byte in its part of a kind."""
    head = data[: data.index(b"\n\n") + 2]
    row = next(row for row in head.decode().splitlines()[1:] if row.split()[1] == kind)
    place = len(head) + int(row.split()[3])
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("which", ["probe", "platform"])
@pytest.mark.parametrize("kind", ["dynamic-loader", "program", "start", "module"])
@pytest.mark.slow
def test_r440_a_damaged_image_is_refused_by_its_part_and_starts_nothing(
    shipped: Path, start: Callable[..., None], which: str, kind: str
) -> None:
    before = children()
    data = (shipped / f"{which}.image").read_bytes()
    with pytest.raises(ConfigurationError, match=f"its {kind} .* is not the one that its manifest lists") as caught:
        start(**{which: damaged(data, kind)})
    assert "\n" not in str(caught.value)
    assert children() == before


def test_r442_the_image_of_another_entry_is_refused_by_both_names(shipped: Path, start: Callable[..., None]) -> None:
    probe = (shipped / "probe.image").read_bytes()
    refusal = r"image of odp\.trust\.enclave\.probe, not of odp\.trust\.enclave\.platform_pr"
    with pytest.raises(ConfigurationError, match=refusal):
        start(platform=probe)


@pytest.mark.parametrize("which", ["probe", "platform"])
def test_r442_an_image_that_is_replaced_by_another_one_after_the_host_looked_at_it_is_refused(
    shipped: Path, start: Callable[..., None], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    other = {"probe": "platform", "platform": "probe"}[which]
    find = measurement.file_of

    def file_of(*arguments: Any, **named: Any) -> Path:
        path = find(*arguments, **named)
        if path.name == f"{which}.image":
            path.write_bytes((shipped / f"{other}.image").read_bytes())
        return path

    monkeypatch.setattr("odp.trust.enclave.launcher.file_of", file_of)
    before = children()
    refusal = r"it is an image of odp\.trust\.enclave\.\w+, not of odp\.trust\.enclave\.\w+"
    with pytest.raises(ConfigurationError, match=refusal):
        start()
    assert children() == before


def test_what_is_no_image_is_refused_before_anything_starts(start: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"probe\.image cannot be used as an image"):
        start(probe=b"no image")
    assert not (tmp_path / "chip").exists()

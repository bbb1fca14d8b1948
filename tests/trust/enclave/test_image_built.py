"""Images in the cache folder: built once, again when anything changed, and never half."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odp.errors import ConfigurationError, StateError
from odp.transport import observing
from odp.trust.enclave.image import built as cache
from odp.trust.enclave.image.built import built, image_of

if sys.platform != "linux":
    pytest.skip("images of enclaves are built on Linux", allow_module_level=True)

ENTRY = "cached_enclave.entry"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of an entry module, and an empty cache folder."""
    folder = tmp_path / "code" / "cached_enclave"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "entry.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A file that was written as its image was built is not trusted.
    time.sleep(0.02)
    return folder


class Builds:
    """Calls of ``built`` for the package; ``number`` counts builds that the log announced."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> Path:
        return built(ENTRY, ["cached_enclave"])

    def count(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if event == "image_is_built":
            assert fields["entry"] == ENTRY
            self.number += 1


@pytest.fixture
def build(package: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    builds = Builds()
    monkeypatch.setattr(observing, "logged", builds.count)
    return builds


def test_an_image_is_built_once(build: Builds) -> None:
    first = build()
    assert build() == first
    assert build.number == 1
    assert first.stat().st_mode & 0o777 == 0o644
    assert first.parent.stat().st_mode & 0o777 == 0o700


def edit(package: Path) -> None:
    (package / "entry.py").write_text("value = 2\n")


def edit_and_set_the_time_back(package: Path) -> None:
    path = package / "entry.py"
    before = path.stat()
    path.write_text("value = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(package: Path) -> None:
    path = package / "entry.py"
    before = path.stat()
    (package / "new").write_text("value = 2\n")
    os.utime(package / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (package / "new").rename(path)


@pytest.mark.parametrize("change", [edit, edit_and_set_the_time_back, replace])
@pytest.mark.slow
def test_r441_an_image_of_files_that_were_changed_is_built_again(
    build: Builds, package: Path, change: Callable[[Path], None]
) -> None:
    before = image_of(build()).digest
    change(package)
    assert image_of(build()).digest != before
    assert build.number == 2


def cut(image: Path) -> None:
    os.truncate(image, 100)


def flip(image: Path) -> None:
    with image.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def flip_and_set_the_time_back(image: Path) -> None:
    before = image.stat()
    flip(image)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


def empty_stamps(image: Path) -> None:
    image.with_suffix(".json").write_bytes(b"")


def nonsense_stamps(image: Path) -> None:
    image.with_suffix(".json").write_bytes(b"[1, 2]")


def numbers_as_stamps(image: Path) -> None:
    image.with_suffix(".json").write_bytes(b'{"/etc/passwd": 3}')


def no_stamps(image: Path) -> None:
    image.with_suffix(".json").unlink()


#: In CI, a change of the image that its time does not show, and stamps that cannot be read.
DAMAGES = [
    flip_and_set_the_time_back, nonsense_stamps,
    *(pytest.param(damage, marks=pytest.mark.proof)
      for damage in (Path.unlink, cut, flip, empty_stamps, numbers_as_stamps, no_stamps)),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_r441_a_damaged_cache_is_built_again(build: Builds, damage: Callable[[Path], None]) -> None:
    image = build()
    clean = image.read_bytes()
    time.sleep(0.02)  # times of files are as exact as the kernel's clock tick
    damage(image)
    assert build().read_bytes() == clean
    assert build.number == 2
    build()
    assert build.number == 2


def test_builders_at_once_build_one_image(build: Builds) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(build())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert len(set(paths)) == build.number == 1


KILLED = """
import os, signal, sys
from odp.trust.enclave.image import built as cache
step = sys.argv[1]
def end(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)
if step == "while it reads":
    cache.write = end
elif step == "before the image is in place":
    os.replace = os.rename = end
else:
    write = cache.write
    def write_and_end(*arguments):
        write(*arguments)
        end()
    cache.write = write_and_end
cache.built("cached_enclave.entry", ["cached_enclave"])
"""


@pytest.mark.parametrize("step", ["while it reads", "before the image is in place", "before its stamps are written"])
@pytest.mark.slow
def test_a_builder_that_is_killed_leaves_nothing_that_is_used(build: Builds, package: Path, step: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", KILLED, step], env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    image = build()
    assert build.number == 1
    assert image_of(image).entry == ENTRY
    build()
    assert build.number == 1


def test_a_file_that_changes_while_an_image_is_built_is_read_again_by_the_next_start(
    build: Builds, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = cache.write

    def write_and_edit(*arguments: object) -> list[Path]:
        files = write(*arguments)  # type: ignore[arg-type]
        edit(package)
        return files

    with monkeypatch.context() as patched:
        patched.setattr(cache, "write", write_and_edit)
        first = image_of(build()).digest
    assert image_of(build()).digest != first
    assert build.number == 2


def test_images_that_nobody_used_for_long_are_removed_and_used_ones_stay(build: Builds, package: Path) -> None:
    image = build()
    folder = image.parent
    old = time.time() - 15 * 24 * 3600
    unused = [folder / f"{'0' * 32}{suffix}" for suffix in (".image", ".json", ".lock")]
    for path in unused:
        path.write_bytes(b"x")
    # Used today, and built long ago.
    kept = [folder / f"{'1' * 32}{suffix}" for suffix in (".image", ".json", ".lock")]
    for path in kept:
        path.write_bytes(b"x")
    for path in (*unused, kept[0], kept[2]):
        os.utime(path, (old, old))
    edit(package)
    build()
    # A program may hold a lock for hours, and another would then take a new one of that name.
    assert [path.suffix for path in unused if path.exists()] == [".lock"]
    assert all(path.exists() for path in kept)


def test_of_images_that_are_used_the_newest_ones_stay(
    build: Builds, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_IMAGES", 2)
    image = build()
    others = [image.with_name(f"{number:032}.image") for number in range(4)]
    for age, path in enumerate(others):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - 60 - age, time.time() - 60 - age))
    edit(package)
    assert build() == image
    assert [path.exists() for path in (image, *others)] == [True, True, False, False, False]


def test_where_no_cache_folder_can_be_made_both_ways_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StateError, match=r"XDG_CACHE_HOME .* --images"):
        cache.built("odp.trust.enclave.probe")


def test_another_version_of_a_library_is_another_image(build: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    image = build()
    monkeypatch.setattr(cache, "installed", lambda: ["numpy 0.0 elsewhere"])
    assert build() != image


def test_a_use_of_an_image_is_noted(build: Builds) -> None:
    image = build()
    stamps = image.with_suffix(".json")
    os.utime(stamps, (0, 0))
    build()
    assert build.number == 1
    assert stamps.stat().st_mtime > 0


def test_a_cache_folder_that_others_may_use_is_refused(build: Builds) -> None:
    folder = build().parent
    folder.chmod(0o777)
    with pytest.raises(StateError, match="enclave-images"):
        build()


def test_a_cache_folder_that_cannot_be_made_is_refused(build: Builds, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(StateError, match="cannot create"):
        build()


def test_an_image_that_cannot_be_built_any_more_is_not_started_from_the_cache(build: Builds, package: Path) -> None:
    build()
    shutil.rmtree(package)
    with pytest.raises(ConfigurationError, match="cached_enclave"):
        build()

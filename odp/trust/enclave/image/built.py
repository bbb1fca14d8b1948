"""The images of this installation: each is built when it is first needed, and kept for as long as its files stay.

They lie in the user's cache folder (``XDG_CACHE_HOME``), which may be emptied at any time. Whoever can write there can
change what is started and not what it is measured as: a platform measures what it loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odp.errors import ConfigurationError, StateError
from odp.transport import owner_files
from odp.transport.logs import Log
from odp.trust.enclave.image.parts import Image, open_image, written
from odp.trust.enclave.image.recorded import installed, package_folder

_FORMAT = 1
_LARGEST_STAMPS = 1 << 22
_UNUSED_SECONDS, _MOST_IMAGES = 14 * 24 * 3600.0, 24
_STAMPS = ".json"
_IMAGE = ".image"


def packages_of(entry: str) -> tuple[str, ...]:
    """The import packages of an image with this entry module unless others are given: odp and the entry's own."""
    return tuple(sorted({"odp", entry.partition(".")[0]}))


def built(entry: str, packages: Sequence[str] = ()) -> Path:
    """The file of this installation's image that starts with the module ``entry``; built where it is not there.

    A build takes some five seconds, and the log says so before.

    Args:
        entry: import name of the entry module.
        packages: import packages of its own code; default: ``packages_of(entry)``.

    Raises:
        ConfigurationError: it cannot be built: something is not installed, or not as it was installed.
        StateError: the cache folder cannot be used.
    """
    packages = tuple(sorted(packages)) or packages_of(entry)
    folder = _folder()
    # What is installed where: not the search path, which differs between programs of one installation.
    place = [_FORMAT, entry, *packages, Path(sys.executable).resolve(), *map(package_folder, packages), *installed()]
    path = folder / (hashlib.sha256(repr(list(map(str, place))).encode()).hexdigest()[:32] + _IMAGE)
    if not _is_current(path):
        with owner_files.locked(path.with_suffix(".lock")):
            # Another program may have built it meanwhile.
            if not _is_current(path):
                Log("enclave").event("image_is_built", entry=entry, takes="about 5 s, once per installation")
                _build(entry, packages, path)
                _drop_unused(folder)
    with contextlib.suppress(OSError):
        os.utime(path.with_suffix(_STAMPS))
    return path


def image_of(path: Path) -> Image:
    """The manifest of an image's file. Raises ConfigurationError where it cannot be read, or is none."""
    descriptor, file = open_image(path)
    os.close(descriptor)
    return file.image


def write(entry: str, packages: Sequence[str], path: Path) -> list[Path]:
    """Builds an image into ``path``, and returns the files that it was made from.

    Raises:
        ConfigurationError: as ``built``.
        StateError: the file cannot be written.
    """
    from odp.trust.enclave.image.building import Builder

    builder = Builder(entry, packages)
    owner_files.write_atomically(path, b"".join(written(builder.blobs())), mode=owner_files.PUBLIC)
    return builder.files


def _build(entry: str, packages: Sequence[str], path: Path) -> None:
    path.with_suffix(_STAMPS).unlink(missing_ok=True)
    started = time.time_ns()
    files = write(entry, packages, path)
    stamps = {str(file): _stamp(file) for file in files}
    if any(stamp is None or stamp[1] >= started for stamp in stamps.values()):
        return  # a file was written while this read it: the next start builds again
    stamps[str(path)] = _stamp(path)
    owner_files.write_atomically(path.with_suffix(_STAMPS), json.dumps(stamps).encode(), mode=owner_files.PRIVATE)


def _is_current(path: Path) -> bool:
    """Whether the image, and every file that it was made from, is as it was."""
    try:
        data = owner_files.read_private(path.with_suffix(_STAMPS), limit=_LARGEST_STAMPS)
        stamps: Any = json.loads(data or b"{}")
        image_of(path)
    except (ValueError, StateError, ConfigurationError):
        return False
    return (
        bool(stamps) and isinstance(stamps, dict) and all(_stamp(Path(file)) == stamp for file, stamp in stamps.items())
    )


def _stamp(file: Path) -> list[int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    # Any program can set the time of a file's last writing back, and none that of its last change.
    return [status.st_size, status.st_ctime_ns, status.st_ino]


def _drop_unused(folder: Path) -> None:
    """Removes images that nobody used for long, and of the others all but the newest ones; locks stay."""
    images = sorted(((_last_use(path), path) for path in folder.glob(f"*{_IMAGE}")), reverse=True)
    oldest = time.time() - _UNUSED_SECONDS
    for place, (used, path) in enumerate(images):
        if used < oldest or place >= _MOST_IMAGES:
            for file in (path.with_suffix(_STAMPS), path):
                with contextlib.suppress(OSError):
                    file.unlink()


def _last_use(image: Path) -> float:
    times = [0.0]
    for file in (image, image.with_suffix(_STAMPS)):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)


def _folder() -> Path:
    try:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(home) / "odp" / "enclave-images"
        owner_files.make_private_folder(folder, marker="")
    except (RuntimeError, StateError) as error:
        raise StateError(
            f"there is no cache folder for images of enclaves ({error}): set XDG_CACHE_HOME to a folder of your own, "
            "or give images that were built elsewhere with --images"
        ) from None
    return folder

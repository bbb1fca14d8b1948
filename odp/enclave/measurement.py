"""Measurement of an enclave's code: one digest over every file of its import packages.

Two installations have one digest exactly if their packages hold the same files with the same bytes. Evidence carries
the digest, and devices compare it with the digests that they pin.

What is measured is every regular file below the package's folder, data files included, because code reads them.
``__pycache__`` is left out: Python rebuilds it from the source. A ``.pyc`` outside of it *is* measured, since Python
would import it without any source.

Dependencies, the interpreter and the machine below it are not part of this digest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from odp.errors import ConfigurationError

AGGREGATOR_PACKAGES: tuple[str, ...] = ("odp", "trusted_aggregator")
DISTRIBUTOR_PACKAGES: tuple[str, ...] = ("odp", "distributor")

DIGEST_PREFIX = "sha384:"

_CACHE_FOLDER = "__pycache__"


def image_digest(packages: Sequence[str]) -> str:
    """Digest ``"sha384:<96 hex digits>"`` of the files of ``packages``, whatever order they are named in.

    The hash runs over one record per file, ordered by package and then by path: SHA-384 of the path (package name
    first, parts joined by ``/``, UTF-8) and SHA-384 of the content. Records have one length, so no two trees collide.

    Raises:
        ConfigurationError: a package is not installed, is not one folder of files, or holds a link or a special file,
            which a digest could not pin down.
    """
    if isinstance(packages, str) or not packages:
        raise ConfigurationError(f"Expected packages={packages!r} to be a list of at least one package name")
    total = hashlib.sha384()
    for package in sorted(set(packages)):
        root = _folder(package)
        for path in _files(root):
            name = "/".join((package, *path.relative_to(root).parts))
            total.update(hashlib.sha384(name.encode("utf-8", "surrogateescape")).digest())
            total.update(_content_digest(path))
    return DIGEST_PREFIX + total.hexdigest()


def _folder(package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigurationError(f"Cannot measure package={package!r}: it is not installed; is its name right?")
    locations = [Path(location) for location in spec.submodule_search_locations or ()]
    # A namespace package may grow another folder while it runs, unmeasured.
    if spec.origin is None or len(locations) != 1 or not locations[0].is_dir():
        raise ConfigurationError(f"Cannot measure package={package!r}: it is not one folder with an __init__.py")
    return locations[0]


def _files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if name != _CACHE_FOLDER]
        for name in (*folders, *names):
            if (Path(folder) / name).is_symlink():
                raise ConfigurationError(
                    f"Cannot measure {Path(folder) / name}: it is a link; put the file itself there"
                )
        found.extend(Path(folder) / name for name in names)
    return sorted(found, key=lambda path: path.relative_to(root).parts)


def _content_digest(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigurationError(f"Cannot measure {path}: it is not a regular file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha384").digest()
    except OSError as error:
        raise ConfigurationError(f"Cannot measure {path}: {error.strerror}") from error


def _unreadable(error: OSError) -> None:
    raise ConfigurationError(f"Cannot measure {error.filename}: {error.strerror}") from error

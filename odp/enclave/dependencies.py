"""The libraries that an enclave may import: their files, and one digest over them.

``REQUIREMENTS`` and everything that these require, as installed, is what an enclave has beside the standard library and
its own packages. Each file is hashed and compared with the hash that its installer recorded (``RECORD``), so a library
that was edited after it was installed is not launched at all, and another version gives another measurement.

Files without a recorded hash, compiled caches, and scripts outside of the folders that Python imports from are neither
part of the measurement nor can an enclave import them.

Source: the binary distribution format of PyPA (RECORD), PEP 376.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path

from odp.errors import ConfigurationError

REQUIREMENTS: tuple[str, ...] = ("cryptography", "dp-accounting", "mpmath", "numpy", "protobuf", "scipy")
#: Used where they are installed, and then measured.
OPTIONAL: tuple[str, ...] = ("numba", "threadpoolctl")

_RECORDED = "sha256"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """Installed libraries, hashed.

    Attributes:
        versions: distribution name -> version.
        files: absolute paths that were hashed.
        folders: the folders that they are imported from.
        digest: 48 bytes over names, versions, relative paths and contents.
    """

    versions: dict[str, str]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    digest: bytes


def hash_dependencies(requirements: Sequence[str] = REQUIREMENTS, optional: Sequence[str] = OPTIONAL) -> Dependencies:
    """Hashes the distributions of ``requirements``, the installed ones of ``optional``, and their requirements.

    Raises:
        ConfigurationError: one is not installed, has no RECORD, or a file is not the one that was installed.
    """
    found = _closure(requirements, optional)
    total = hashlib.sha384()
    files: list[str] = []
    folders: set[str] = set()
    versions = {name: found[name].version for name in sorted(found)}
    for name, version in versions.items():
        distribution = found[name]
        total.update(hashlib.sha384(f"{name}=={version}".encode()).digest())
        folder = str(Path(str(distribution.locate_file(""))).resolve())
        folders.add(folder)
        for relative, recorded in _recorded_files(name, distribution):
            path = f"{folder}/{relative}"
            _check(path, recorded, name, version)
            total.update(hashlib.sha384(relative.encode()).digest() + recorded)
            files.append(path)
    return Dependencies(versions, tuple(files), tuple(sorted(folders)), total.digest())


def _closure(requirements: Sequence[str], optional: Sequence[str]) -> dict[str, importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    required = {_normal(name) for name in requirements}
    waiting = [*required, *(_normal(name) for name in optional)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # What is required only for other systems or versions of Python is not there, and then nobody imports it.
            if name in required:
                raise ConfigurationError(
                    f"Cannot measure {name!r}: it is not installed; run `pip install {name}`"
                ) from None
            continue
        found[name] = distribution
        for line in distribution.requires or ():
            requirement = _NAME.match(line)
            if requirement is not None and "extra ==" not in line:
                waiting.append(_normal(requirement.group()))
    return found


def _recorded_files(name: str, distribution: importlib.metadata.Distribution) -> list[tuple[str, bytes]]:
    """(path relative to the distribution's folder, recorded hash), sorted."""
    record = distribution.read_text("RECORD")
    if record is None:
        raise ConfigurationError(f"Cannot measure {name!r}: it has no RECORD; install it as a wheel")
    found = []
    for row in csv.reader(record.splitlines()):
        path, recorded = (*row, "", "")[:2]
        if not recorded or path.endswith(".pyc") or path.startswith("/") or ".." in path.split("/"):
            continue
        algorithm, _, value = recorded.partition("=")
        if algorithm != _RECORDED:
            raise ConfigurationError(f"Cannot measure {name!r}: its RECORD has hashes of kind {algorithm!r}")
        found.append((path, base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))))
    return sorted(found)


def _check(path: str, recorded: bytes, name: str, version: str) -> None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # thousands of files: a Path for each costs more than its hash
            present = hashlib.file_digest(file, _RECORDED).digest()
    except OSError as error:
        raise ConfigurationError(
            f"Cannot measure {path} of {name} {version}: {(error.strerror or 'error').lower()}"
        ) from None
    if present != recorded:
        raise ConfigurationError(f"{path} is not the file that {name} {version} installed: install it again")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

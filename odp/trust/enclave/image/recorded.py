"""Files of installed libraries, compared with the hashes that their installer recorded.

A library that was edited after it was installed gets into no image, and neither does a file that no library brought.

Source: the binary distribution format of PyPA (RECORD), PEP 376.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from odp.errors import ConfigurationError

#: What enclaves import beside the standard library and their own packages, with everything that these require.
REQUIREMENTS: tuple[str, ...] = ("cryptography", "dp-accounting", "mpmath", "numpy", "protobuf", "scipy")

_RECORDED = "sha256"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed(requirements: Sequence[str] = REQUIREMENTS) -> list[str]:
    """Name, version and folder of each library that is installed, one text per library."""
    texts = []
    for name in requirements:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            distribution = importlib.metadata.distribution(name)
            texts.append(f"{name} {distribution.version} {distribution.locate_file('')}")
    return texts


class Recorded:
    """The recorded files of installed libraries.

    Raises:
        ConfigurationError: a library is not installed, or has no RECORD of SHA-256 hashes.
    """

    def __init__(self, requirements: Sequence[str] = REQUIREMENTS) -> None:
        self._files: dict[str, tuple[str, str]] = {}
        folders, linked = set(), set()
        for name, distribution in sorted(_closure(requirements).items()):
            folder = Path(str(distribution.locate_file(""))).resolve()
            folders.add(str(folder))
            owner = f"{name} {distribution.version}"
            for relative, recorded in _listed(name, distribution):
                path = folder / relative
                self._files[str(path)] = (owner, recorded)
                if ".so" in path.name:  # the kernel names what a process has mapped by its path without links
                    self._files[str(path.resolve())] = (owner, recorded)
                    if path.parent.resolve() != path.parent:
                        linked.add(str(path.parent.resolve()))
        #: The folders that they are imported from.
        self.folders = tuple(sorted(folders))
        self._places = (*self.folders, *sorted(linked))

    def holds(self, path: Path) -> bool:
        """Whether a file lies where libraries are installed, also through links: then it has to be recorded."""
        return str(path) in self._files or any(path.is_relative_to(place) for place in self._places)

    def read(self, path: Path) -> bytes:
        """The bytes of a file.

        Raises:
            ConfigurationError: they are not those that were installed, or nothing has installed the file.
        """
        owner, recorded = self._files.get(str(path), ("", ""))
        if not owner:
            raise ConfigurationError(f"Cannot build an image with {path}: no library of an enclave installed it")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"Cannot read {path} of {owner}: {(error.strerror or 'error').lower()}") from None
        if hashlib.sha256(data).digest() != base64.urlsafe_b64decode(recorded + "=" * (-len(recorded) % 4)):
            raise ConfigurationError(f"{path} is not the file that {owner} installed: install it again")
        return data

    def owner(self, path: Path) -> str:
        """Name and version of the library that installed a file; empty if none did."""
        return self._files.get(str(path), ("", ""))[0]


def _closure(requirements: Sequence[str]) -> dict[str, importlib.metadata.Distribution]:
    distributions: dict[str, importlib.metadata.Distribution] = {}
    required = {_normal(name) for name in requirements}
    waiting = list(required)
    while waiting:
        if (name := waiting.pop()) in distributions:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # What is required only for other systems or versions of Python is not there, and then nobody imports it.
            if name in required:
                raise ConfigurationError(
                    f"Cannot build an image without {name!r}: it is not installed; run `pip install {name}`"
                ) from None
            continue
        distributions[name] = distribution
        for line in distribution.requires or ():
            if (requirement := _NAME.match(line)) is not None and "extra ==" not in line:
                waiting.append(_normal(requirement.group()))
    return distributions


def _listed(name: str, distribution: importlib.metadata.Distribution) -> list[tuple[str, str]]:
    """(path relative to the distribution's folder, recorded hash)."""
    if (record := distribution.read_text("RECORD")) is None:
        raise ConfigurationError(f"Cannot build an image with {name!r}: it has no RECORD; install it as a wheel")
    files = []
    for row in csv.reader(record.splitlines()):
        path, recorded = (*row, "", "")[:2]
        if not recorded or path.startswith("/") or ".." in path.split("/"):
            continue
        algorithm, _, value = recorded.partition("=")
        if algorithm != _RECORDED:
            raise ConfigurationError(
                f"Cannot build an image with {name!r}: its RECORD has hashes of kind {algorithm!r}"
            )
        files.append((path, value))
    return files


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def package_folder(package: str) -> Path:
    """The one folder of an import package.

    Raises:
        ConfigurationError: not installed, or not one folder with an ``__init__.py``.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigurationError(
            f"Cannot build an image with package={package!r}: it is not installed; is its name right?"
        )
    locations = [Path(location) for location in spec.submodule_search_locations or ()]
    if spec.origin is None or len(locations) != 1 or not locations[0].is_dir():
        raise ConfigurationError(
            f"Cannot build an image with package={package!r}: it is not one folder with an __init__.py"
        )
    return locations[0].resolve()

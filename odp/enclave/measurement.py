"""Measurement of an enclave: one digest over everything that its process runs, taken before it runs.

=================  ===================================================================================
``interpreter``    Python's binary and shared library, its version, its standard library
``dependencies``   every file of the libraries that an enclave may import (``odp.enclave.dependencies``)
``code``           every file of the import packages of this repository that the enclave may import
``entry``          the module that it starts with
=================  ===================================================================================

Two installations have one digest exactly if all four agree. Evidence carries the digest, and devices compare it with
the digests that they pin. The configuration (the policy) is measured apart from the code, in a runtime register.

Of a package, every regular file below its folder is measured, data files included, because code reads them.
``__pycache__`` is left out: an enclave compiles its packages from the source that was measured. Compiled caches of the
standard library and of dependencies are trusted as far as their sources are; the operating system below Python is not
measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from odp.enclave.dependencies import Dependencies, hash_dependencies
from odp.errors import ConfigurationError

AGGREGATOR_ENTRY = "trusted_aggregator.enclave.process"
DISTRIBUTOR_ENTRY = "distributor.enclave_process"

DIGEST_PREFIX = "sha384:"
COMPONENTS: tuple[str, ...] = ("interpreter", "dependencies", "code", "entry")
#: Parts of the standard library that are not measured, and that an enclave therefore cannot import.
UNMEASURED_STANDARD: frozenset[str] = frozenset(
    {"ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo", "site-packages", "dist-packages"}
)

_CACHE_FOLDER = "__pycache__"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The components of a measurement; public.

    Attributes:
        components: name -> ``"sha384:<hex>"``, one per name of ``COMPONENTS``.
        dependencies: the libraries behind the component of that name.
    """

    components: Mapping[str, str]
    dependencies: Dependencies

    @property
    def digest(self) -> str:
        """``"sha384:<96 hex digits>"`` over all components."""
        total = hashlib.sha384()
        for name in COMPONENTS:
            total.update(hashlib.sha384(f"{name}={self.components[name]}".encode("ascii")).digest())
        return DIGEST_PREFIX + total.hexdigest()


def packages_of(entry: str) -> tuple[str, ...]:
    """The default import packages of an enclave with this entry module: odp and the entry's own."""
    return tuple(sorted({"odp", entry.partition(".")[0]}))


def measure(entry: str, packages: Sequence[str] | None = None) -> Measurement:
    """Measures the enclave that starts with the module ``entry`` and imports ``packages`` (see ``packages_of``).

    Raises:
        ConfigurationError: something cannot be measured; see ``image_digest`` and ``hash_dependencies``.
    """
    return measure_all({entry: packages or packages_of(entry)})[entry]


def measure_all(enclaves: Mapping[str, Sequence[str]]) -> dict[str, Measurement]:
    """``measure`` for each entry module -> packages; shared parts are hashed once."""
    code = {entry: image_digest(packages) for entry, packages in enclaves.items()}
    dependencies = hash_dependencies()
    shared = {
        "interpreter": DIGEST_PREFIX + interpreter_digest().hex(),
        "dependencies": DIGEST_PREFIX + dependencies.digest.hex(),
    }
    return {
        entry: Measurement(
            {
                **shared,
                "code": code[entry],
                "entry": DIGEST_PREFIX + hashlib.sha384(entry.encode()).hexdigest(),
            },
            dependencies,
        )
        for entry in enclaves
    }


def interpreter_digest(
    binaries: Sequence[Path] | None = None, library: Path | None = None, version: str = sys.version
) -> bytes:
    """48 bytes over version, binaries and standard library; of the running Python by default.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    total = hashlib.sha384(hashlib.sha384(version.encode()).digest())
    for binary in binaries if binaries is not None else _binaries():
        total.update(_content_digest(binary))
    root = library if library is not None else standard_library()
    for path in _files(root, leave_out=UNMEASURED_STANDARD):
        name = "/".join(path.relative_to(root).parts)
        total.update(hashlib.sha384(name.encode("utf-8", "surrogateescape")).digest() + _content_digest(path))
    return total.digest()


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def _binaries() -> Iterator[Path]:
    yield Path(sys.executable).resolve()
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folder, name = (sysconfig.get_config_var(key) for key in ("LIBDIR", "INSTSONAME"))
        shared = Path(str(folder)) / str(name)
        if shared.exists():
            yield shared.resolve()


def image_digest(packages: Sequence[str]) -> str:
    """Digest ``"sha384:<96 hex digits>"`` of the files of ``packages``, in any order.

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
        root = package_folder(package)
        for path in _files(root):
            name = "/".join((package, *path.relative_to(root).parts))
            total.update(hashlib.sha384(name.encode("utf-8", "surrogateescape")).digest())
            total.update(_content_digest(path))
    return DIGEST_PREFIX + total.hexdigest()


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
        raise ConfigurationError(f"Cannot measure package={package!r}: it is not installed; is its name right?")
    locations = [Path(location) for location in spec.submodule_search_locations or ()]
    # A namespace package may grow another folder while it runs, unmeasured.
    if spec.origin is None or len(locations) != 1 or not locations[0].is_dir():
        raise ConfigurationError(f"Cannot measure package={package!r}: it is not one folder with an __init__.py")
    return locations[0]


def _files(root: Path, *, leave_out: frozenset[str] = frozenset()) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        here = leave_out if Path(folder) == root else frozenset()
        folders[:] = [name for name in folders if name != _CACHE_FOLDER and name not in here]
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

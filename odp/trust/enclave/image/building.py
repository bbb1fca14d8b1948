"""The image of an entry module: the same bytes wherever, whenever and however often it is built.

Modules are compiled from their sources under names without folders, and written in a form of marshal that does not
depend on what else the builder holds in memory (version 2). Native code is copied.

What each shared object needs, it says itself.

Source: System V ABI, dynamic section (DT_NEEDED, DT_SONAME).
"""

from __future__ import annotations

import io
import marshal
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from odp.errors import ConfigurationError
from odp.trust.enclave.image.contents import Contents, Installed, find
from odp.trust.enclave.image.parts import Blob
from odp.trust.enclave.image.recorded import Recorded, package_folder
from odp.trust.enclave.image.running import BOOTSTRAP

#: Read by the interpreter before its first instruction in Python, from the part ``start``.
_ENCODINGS: tuple[str, ...] = ("__init__", "aliases", "ascii", "latin_1", "utf_8")
_MARSHAL_VERSION = 2
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Builder:
    """Builds the image of one entry module.

    Args:
        entry: import name of the module that the image starts with.
        packages: import packages of the image's own code; all else is the standard library and ``REQUIREMENTS``.

    Raises:
        ConfigurationError: a package or library is not installed, or this is no Linux.
    """

    def __init__(self, entry: str, packages: Sequence[str]) -> None:
        if sys.platform != "linux":
            raise ConfigurationError("Enclaves run on Linux alone: run the services there; devices run anywhere")
        self._entry = entry
        self._recorded = Recorded()
        library = standard_library()
        self._standard = (str(library), str(Path(sysconfig.get_path("stdlib")) / "lib-dynload"))
        self._packages = {name: package_folder(name) for name in packages}
        installed = Installed(
            self._standard,
            self._recorded.folders,
            {name: str(folder.parent) for name, folder in self._packages.items()},
        )
        self._contents: Contents = find(entry, installed)
        program = Path(sys.executable).resolve()
        self._program = program
        extensions = [Path(path) for path in self._contents.extensions.values()]
        mapped = [Path(path) for path in self._contents.mapped if Path(path) != program]
        self._needed = needed([program, *extensions], mapped)

    @property
    def files(self) -> list[Path]:
        """Every file that the image has something of, and those of the builder."""
        loaded = [*self._contents.sources.values(), *self._contents.extensions.values()]
        native = [self._program, self._needed.loader, *self._needed.libraries.values()]
        return sorted({*map(Path, loaded), *native, *self._start_files().values(), *Path(__file__).parent.glob("*.py")})

    def blobs(self) -> Iterator[Blob]:
        """The parts.

        Raises:
            ConfigurationError: a file cannot be read, or is not what was installed.
        """
        packages = frozenset(self._contents.packages)
        for name, source in self._contents.sources.items():
            kind = "package" if name in packages else "module"
            component = "code" if name.partition(".")[0] in self._packages else "base"
            file = name.replace(".", "/") + ("/__init__.py" if kind == "package" else ".py")
            yield Blob(component, kind, name, compiled(self._read(name, Path(source)), file))
        for name in self._contents.namespaces:
            yield Blob("base", "package", name, compiled(b"", name))
        for name, path in self._contents.extensions.items():
            yield Blob("base", "extension", name, self._read(name, Path(path)))
        yield Blob("base", "dynamic-loader", "ld.so", _bytes(self._needed.loader))
        yield Blob("base", "program", "python", _bytes(self._program))
        for name, library in self._needed.libraries.items():
            read = self._recorded.read if self._recorded.holds(library) else _bytes
            yield Blob("base", "library", name, read(library))
        yield Blob("base", "start", "start.zip", self._start())
        yield Blob("base", "versions", "versions", self._versions())
        yield Blob("code", "entry", self._entry, b"")

    def _read(self, name: str, path: Path) -> bytes:
        """The file of a module, which has to lie where modules of that name come from."""
        if (folder := self._packages.get(name.partition(".")[0])) is not None:
            if not path.resolve().is_relative_to(folder):
                raise ConfigurationError(f"Cannot build an image with {path}: it lies outside of {folder}")
            return _bytes(path)
        # Where libraries lie inside of the standard library's folder, they are no part of it.
        standard = any(path.is_relative_to(folder) for folder in self._standard) and not self._recorded.holds(path)
        return _bytes(path) if standard else self._recorded.read(path)

    def _versions(self) -> bytes:
        owners = {self._recorded.owner(Path(path)) for path in self._contents.sources.values()} - {""}
        lines = [f"Python {sys.version.split()[0]}", *sorted(owners)]
        return ("\n".join(lines) + "\n").encode()

    def _start_files(self) -> dict[str, Path]:
        files = {f"encodings/{name}.py": standard_library() / "encodings" / f"{name}.py" for name in _ENCODINGS}
        files[f"{BOOTSTRAP}.py"] = Path(__file__).with_name("bootstrap.py")
        return files

    def _start(self) -> bytes:
        """A zip that the interpreter imports its encodings and the bootstrap from; stored, and without times."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, path in self._start_files().items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), _bytes(path))
            # Python 3.13 shows lines of a command in its tracebacks, and asks this module to keep them.
            archive.writestr(zipfile.ZipInfo("linecache.py", _EPOCH), b"def _register_code(*_): ...\n")
        return packed.getvalue()


def compiled(source: bytes, file: str) -> bytes:
    """The code of a module, whose tracebacks name ``file``."""
    try:
        return marshal.dumps(compile(source, file, "exec", dont_inherit=True, optimize=0), _MARSHAL_VERSION)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot build an image with {file} on Python {sys.version.split()[0]}: {error}; Python 3.11 to 3.13 can"
        ) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"Cannot build an image with {path}: {(error.strerror or 'error').lower()}") from None


_LOADER = re.compile(r"ld-linux[A-Za-z0-9_.-]*\.so\.\d+")


class Needed(NamedTuple):
    """The native code of an image beside its extensions: the dynamic loader, and soname -> library."""

    loader: Path
    libraries: dict[str, Path]


def needed(programs: Iterable[Path], mapped: Iterable[Path]) -> Needed:
    """Of the ``mapped`` libraries those that ``programs`` (executables and extensions) need, directly or not.

    Others may be there: a system can load what it likes into every process (``ld.so.preload``).

    Raises:
        ConfigurationError: a file is no shared object, or this system has no dynamic loader of the GNU C library.
    """
    described = {path: _dynamic(path) for path in mapped}
    by_name = {soname: path for path, (soname, _) in described.items()}
    libraries: dict[str, Path] = {}
    waiting = [name for path in programs for name in _dynamic(path)[1]]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in libraries:
            libraries[name] = by_name[name]
            waiting.extend(described[by_name[name]][1])
    loaders = [path for path in described if _LOADER.fullmatch(path.name)]
    if len(loaders) != 1:
        raise ConfigurationError("Cannot build an image: it needs the GNU C library, 2.34 or later, and its loader")
    return Needed(loaders[0], {name: path for name, path in sorted(libraries.items()) if path != loaders[0]})


def _dynamic(path: Path) -> tuple[str, list[str]]:
    """The soname of a shared object or its file's name, and the sonames that it needs."""
    try:
        with path.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".dynamic")
            tags = list(section.iter_tags()) if isinstance(section, DynamicSection) else []
    except (OSError, ELFError) as error:
        raise ConfigurationError(f"Cannot build an image: {path} is no shared object ({error})") from None
    # Each kind of tag has its text under a name of its own.
    names, needs = (
        [str(getattr(tag, name)) for tag in tags if tag.entry.d_tag == kind]
        for name, kind in (("soname", "DT_SONAME"), ("needed", "DT_NEEDED"))
    )
    return (names[0] if names else path.name), needs


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib")).resolve()

"""A developer's source files, read once into memory: the processes of its calls cannot read files."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from odp.errors import ConfigurationError

#: What is loaded for a service, beside the standard library. A library here runs in the process that all calls are
#: copied from: it is trusted not to keep data of one call for another.
LIBRARIES: tuple[str, ...] = ("numpy",)
#: Not loaded ahead: importing them does something, or they are no use without files, network or processes.
_NOT_LOADED = frozenset({"antigravity", "idlelib", "this", "tkinter", "turtle", "turtledemo", "lib2to3", "test"})

_MOST_FILES = 256
_MOST_BYTES = 2**21
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+\(?([\w, \t\n]+)", re.MULTILINE)


@dataclass(frozen=True)
class ServiceCode:
    """The modules of one service.

    Attributes:
      module: import name of the module with the class.
      name: of the class; None where the module has one only.
      sources: import name -> (text, whether it is a package).
    """

    module: str
    name: str | None
    sources: dict[str, tuple[str, bool]] = field(repr=False)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What may be loaded for it, beside the standard library."""
        return LIBRARIES

    @classmethod
    def load(cls, path: Path, *, name: str | None = None) -> ServiceCode:
        """Reads a module file, or the Python files of a package folder; links are not followed.

        Args:
          path: ``service.py``, or a folder with ``__init__.py``, which then has the class or imports it.
          name: of the class; default: the only subclass of ``IsolatedService`` that the module defines.

        Raises:
          ConfigurationError: there is no such module, its name is no import name, or it is too large.
        """
        if name is not None and not name.isidentifier():
            raise ConfigurationError(f"Expected name={name!r} to be the name of a class")
        module = path.stem if path.suffix == ".py" else path.name
        if not module.isidentifier() or module in sys.stdlib_module_names or module in {*LIBRARIES, "odp"}:
            raise ConfigurationError(f"Expected path={str(path)!r} to be a module with a name that no library has")
        if path.is_dir():
            files = sorted(module_file for module_file in path.rglob("*.py") if "__pycache__" not in module_file.parts)
            named = {file: (module, *file.relative_to(path).with_suffix("").parts) for file in files[: _MOST_FILES + 1]}
        else:
            named = {path: (module,)}
        if len(named) > _MOST_FILES:
            raise ConfigurationError(f"Expected {path} to have at most {_MOST_FILES} Python files")
        sources: dict[str, tuple[str, bool]] = {}
        left = _MOST_BYTES
        for file, parts in named.items():
            text = _text(file, left)
            left -= len(text)
            package = len(parts) > 1 and parts[-1] == "__init__"
            sources[".".join(parts[:-1] if package else parts)] = (text, package)
        if module not in sources:
            raise ConfigurationError(f"Expected the folder {path} to have a file __init__.py")
        return cls(module, name, sources)

    def imports(self) -> list[str]:
        """Modules of the standard library and of ``LIBRARIES`` that the source code seems to import.

        Names that only look like an import do no harm: they are loaded, and never used.
        """
        imported: set[str] = set()
        for text, _ in self.sources.values():
            for names in _IMPORT.findall(text):
                imported.update(part.split()[0] for part in names.split(",") if part.split())
            for origin, names in _FROM.findall(text):
                imported.add(origin)
                imported.update(f"{origin}.{part.split()[0]}" for part in names.split(",") if part.split())
        loadable = (sys.stdlib_module_names - _NOT_LOADED) | set(LIBRARIES)
        # A module of that name is a program: loading it runs it.
        return sorted(name for name in imported if name.partition(".")[0] in loadable and "__main__" not in name)


def _text(path: Path, most: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"cannot read the service's module {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"cannot read the service's module {path}: it is not a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ConfigurationError(f"Expected a service's modules to have at most {_MOST_BYTES} bytes, at {path}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read the service's module {path}: it is not UTF-8") from None

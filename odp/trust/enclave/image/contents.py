"""What an enclave loads: modules, extensions and libraries, as a fresh interpreter finds them.

Run as a program it is that interpreter. It has the standard library, the libraries that an enclave may use and the
packages of the enclave, and nothing else: no site folder, no environment, no ``.pth`` file. It imports the entry
module, lets it load what it imports late (``warm_up``), and prints where everything lies.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import subprocess
import sys
from _frozen_importlib_external import _NamespacePath  # type: ignore[attr-defined]
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

_SECONDS = 300.0
_PYTHON = ("-I", "-S", "-B", "-X", "utf8")
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Used by libraries where they are installed. An image is the same on every machine, and none of these is needed.
LEFT_OUT: tuple[str, ...] = ("_hashlib", "gmpy2", "llvmlite", "numba", "readline", "sitecustomize", "threadpoolctl")


@dataclass(frozen=True)
class Installed:
    """Where the contents may come from.

    Attributes:
        standard: folders of the standard library.
        folders: folders of libraries.
        packages: import package of the enclave's own code -> the folder that holds it.
    """

    standard: tuple[str, ...]
    folders: tuple[str, ...]
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Contents:
    """Files of an enclave by name.

    Attributes:
        sources: module -> file of its source.
        packages: those modules that are packages.
        namespaces: packages without a source.
        extensions: module -> shared object.
        mapped: the other files that the process has mapped to run them: libraries, the dynamic loader, the interpreter.
    """

    sources: dict[str, str]
    packages: tuple[str, ...]
    namespaces: tuple[str, ...]
    extensions: dict[str, str]
    mapped: tuple[str, ...]


def find(entry: str, installed: Installed) -> Contents:
    """The contents of the enclave that starts with ``entry``.

    Raises:
        ConfigurationError: a module cannot be imported from there.
    """
    from odp.errors import ConfigurationError  # this file is also a program that has no ``odp`` yet

    request = json.dumps({"entry": entry, "installed": asdict(installed)})
    program = [str(Path(sys.executable).resolve()), *_PYTHON, __file__]
    try:
        done = subprocess.run(  # this interpreter
            program, input=request, capture_output=True, text=True, timeout=_SECONDS, check=False, env=_ENVIRONMENT
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
            raise ConfigurationError(f"Cannot build the image of {entry}: {reason[0]}")
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        raise ConfigurationError(f"Cannot build the image of {entry}: {error}") from None
    return Contents(
        answer["sources"],
        tuple(answer["packages"]),
        tuple(answer["namespaces"]),
        answer["extensions"],
        tuple(answer["mapped"]),
    )


class _Finder:
    """A meta path finder of what is installed."""

    def __init__(self, installed: Installed) -> None:
        self._packages = installed.packages
        self._path = [*installed.standard, *installed.folders]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in LEFT_OUT:
            return None
        folders = [self._packages[name]] if name in self._packages else self._path
        return importlib.machinery.PathFinder.find_spec(name, folders if path is None else path, target)

    def invalidate_caches(self) -> None:
        """Nothing is installed meanwhile."""


def _loaded() -> Contents:
    """What this process has loaded."""
    sources: dict[str, str] = {}
    extensions: dict[str, str] = {}
    packages, namespaces = [], []
    for key, module in sorted(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None) or getattr(module, "__file__", None)
        name = getattr(spec, "name", None) or key  # os.path is posixpath
        if isinstance(getattr(module, "__path__", None), _NamespacePath):
            namespaces.append(name)
        if (replaced := _replaced(key, name)) is not None:
            sources[key] = replaced
        if path in (None, "built-in", "frozen") or name == "__main__":
            continue
        if path.endswith(".py"):
            sources[name] = path
            if path.endswith("/__init__.py"):
                packages.append(name)
        else:
            extensions[name] = path
    with Path("/proc/self/maps").open() as maps:
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if " r-xp " in line and "/" in line}
    return Contents(
        sources, tuple(packages), tuple(namespaces), extensions, tuple(sorted(mapped - set(extensions.values())))
    )


def _replaced(key: str, name: str) -> str | None:
    """The source of a module that put another one in its place, as ``collections.abc`` does from Python 3.13 on."""
    inside = getattr(sys.modules.get(key.rpartition(".")[0]), "__path__", None)
    if key == name or inside is None:
        return None
    spec = importlib.machinery.PathFinder.find_spec(key, inside)
    return spec.origin if spec is not None and (spec.origin or "").endswith(".py") else None


def _main() -> None:
    request = json.load(sys.stdin)
    installed = Installed(**request["installed"])
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, _Finder(installed)]
    # Read by namespace packages, which look there again whenever it changes.
    sys.path[:] = [*installed.standard, *installed.folders]
    entry = importlib.import_module(request["entry"])
    if hasattr(entry, "run"):  # an enclave's, which starts it
        importlib.import_module("odp.trust.enclave.boot")
    getattr(entry, "warm_up", lambda: None)()
    print(json.dumps(asdict(_loaded())))  # noqa: T201  # the answer


if __name__ == "__main__":
    _main()

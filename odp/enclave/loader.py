"""The first code of an enclave process: limits Python's imports to the measured files, then starts ``boot``.

Run by its path, in an interpreter that reads no environment, no site folder and no ``.pth`` file (``-I -S``). It stands
alone: until the import rules below hold, nothing but the standard library may be imported. The rules:

- packages of this repository come from the folders that were measured, always compiled from their source;
- libraries come from the files that were measured, by path;
- the standard library comes from its folder, without the parts that are not measured;
- everything else does not exist.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_LENGTH_BYTES = 4
_NUMBA_CACHE = "numba.core.caching"


class _FromSource(importlib.machinery.SourceFileLoader):
    """Compiles the source, and ignores caches, which are not measured."""

    def path_stats(self, path: str) -> dict[str, Any]:
        # Without the source's age Python neither reads nor writes a cache.
        raise OSError


class _WithoutMachineCodeCache(importlib.machinery.SourceFileLoader):
    """Numba, compiling every function anew: the machine code that it keeps in files was not measured."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.FunctionCache = lambda function: module.NullCache()  # type: ignore[attr-defined]


class MeasuredFinder:
    """A meta path finder for the rules of the module docstring.

    Args:
        packages: import package -> its folder.
        standard: folders of the standard library.
        standard_names: its top-level modules that may be imported.
        folders: where libraries lie.
        files: the files there that were measured.
    """

    def __init__(
        self,
        *,
        packages: dict[str, str],
        standard: Sequence[str],
        standard_names: frozenset[str],
        folders: Sequence[str],
        files: frozenset[str],
    ) -> None:
        self._packages = packages
        self._standard = list(standard)
        self._standard_names = standard_names
        self._folders = list(folders)
        self._files = files
        self.find_distributions = importlib.machinery.PathFinder.find_distributions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a measured module, or None if there is no such module."""
        top = name.partition(".")[0]
        if top in self._packages:
            return self._find_ours(name, path)
        # The build's settings, which sysconfig reads, have a name of the machine's own.
        if top in self._standard_names or top.startswith("_sysconfigdata_"):
            return importlib.machinery.PathFinder.find_spec(name, self._standard if path is None else path, target)
        found = importlib.machinery.PathFinder.find_spec(name, self._folders if path is None else path, target)
        if found is None or (found.origin is not None and found.origin not in self._files):
            return None
        if name == _NUMBA_CACHE and found.origin is not None:
            found.loader = _WithoutMachineCodeCache(name, found.origin)
        return found

    def _find_ours(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        for folder in [os.path.dirname(self._packages[name])] if path is None else path:  # noqa: PTH120
            finder = importlib.machinery.FileFinder(folder, (_FromSource, [".py"]))
            found = finder.find_spec(name)
            # A folder without __init__.py could grow another part somewhere else.
            if found is not None and found.loader is not None:
                return found
        return None

    def invalidate_caches(self) -> None:
        """What was measured does not change while the enclave runs."""


def main(channel: int, platform: int) -> None:
    """Reads the measured files from the platform, takes over the imports, and starts ``odp.enclave.boot``."""
    os.write(platform, _frame({"call": "image"}))
    image = json.loads(_read(platform, int.from_bytes(_read(platform, _LENGTH_BYTES), "big")))["ok"]
    names = frozenset(sys.stdlib_module_names) - frozenset(image["unmeasured_standard"])
    finder = MeasuredFinder(
        packages=image["packages"],
        standard=image["standard"],
        standard_names=names,
        folders=image["folders"],
        files=frozenset(image["files"]),
    )
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, finder]
    # Read by namespace packages, which look there again whenever it changes.
    sys.path[:] = [*image["standard"], *image["folders"]]

    from odp.enclave import boot

    boot.main(entry=image["entry"], channel=channel, platform=platform, debug=image["debug"])


def _frame(message: object) -> bytes:
    data = json.dumps(message).encode("ascii")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def _read(descriptor: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = os.read(descriptor, length - len(data))
        if not part:
            # The platform is gone: so is the enclave.
            os._exit(1)
        data += part
    return bytes(data)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

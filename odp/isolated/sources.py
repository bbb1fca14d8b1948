"""Imports of a developer's package from memory: its process cannot read files."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType


class SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of ``sources``, import name -> (text, whether it is a package), and nothing else."""

    def __init__(self, sources: Mapping[str, tuple[str, bool]]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As importlib has it."""
        if name not in self._sources:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=self._sources[name][1])

    def exec_module(self, module: ModuleType) -> None:
        """As importlib has it."""
        exec(compile(self._sources[module.__name__][0], f"<{module.__name__}>", "exec"), module.__dict__)


def only(sources: Mapping[str, tuple[str, bool]]) -> None:
    """Limits this process to modules that are loaded already, built-in ones, and these sources."""
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, SourceFinder(sources)]

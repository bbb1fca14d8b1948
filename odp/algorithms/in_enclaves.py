"""The part of algorithms that enclaves run: what a definition means, and what is summed. Imported late, from tables.

Neither what developers write, nor what servers, devices and simulations compute, is any of it.
"""

from __future__ import annotations

import importlib

from odp.algorithms.registry import TABLE, is_here, part_of
from odp.models.trained import load_kinds

_PARTS = ("query", "checks")


def load() -> None:
    """Imports it."""
    for training, entry in TABLE.items():
        if entry.local:
            continue
        shared = part_of(training, "algorithm").__name__.rpartition(".")[0]
        for package in {entry.package, shared}:
            for part in _PARTS:
                if is_here(f"{package}.{part}"):
                    importlib.import_module(f"{package}.{part}")
    load_kinds()

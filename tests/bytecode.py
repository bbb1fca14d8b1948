"""Compiles the modules of tests once for all workers.

Each worker collects all tests, and in a fresh checkout each would rewrite the assertions of all modules, at the same
time: half of what its collection takes. pytest keeps what it rewrote beside each module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def stale(folder: Path) -> Iterator[tuple[Path, Path]]:
    """(module, its bytecode) of every module of tests below ``folder`` whose bytecode is missing, or older than it."""
    for pattern in ("test_*.py", "conftest.py"):
        for module in sorted(folder.rglob(pattern)):
            bytecode = rewrite.get_cache_dir(module) / (module.stem + rewrite.PYC_TAIL)
            if not bytecode.exists() or bytecode.stat().st_mtime < module.stat().st_mtime:
                yield module, bytecode


def compile_tests(config: pytest.Config, folder: Path, *, processes: int) -> None:
    """Writes the bytecode that is missing; returns when ``processes`` copies of this process have written it."""
    if sys.dont_write_bytecode or not (modules := list(stale(folder))):
        return
    children = []
    for first in range(processes):
        if (child := os.fork()) == 0:
            try:  # whatever cannot be compiled, workers report
                for module, bytecode in modules[first::processes]:
                    bytecode.parent.mkdir(exist_ok=True)
                    source_hash, code = rewrite._rewrite_test(module, config)
                    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, bytecode)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)

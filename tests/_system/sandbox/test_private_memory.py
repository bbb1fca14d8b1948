"""A process that puts copies in the place of every page of a file that it has mapped, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Its libraries are moved while they run, so it tells what it computes before and after.
_PROGRAM = """
import hashlib, json, mmap, sys, tempfile
from pathlib import Path
import numpy as np
from odp._system.sandbox import private_memory

def computed():
    matrix = np.arange(40_000.0).reshape(200, 200) / 40_000 + np.eye(200)
    return [hashlib.sha256(matrix.tobytes()).hexdigest(), round(float(np.linalg.det(matrix)), 6), json.dumps([1])]

def of_files():
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.split()[4] != "0"]

shared = None
if "shared" in sys.argv:
    file = tempfile.TemporaryFile()
    file.write(bytes(4096))
    file.flush()
    shared = mmap.mmap(file.fileno(), 4096)
before, files = computed(), of_files()
alone = private_memory.no_shared_pages()
try:
    copied = private_memory.own_copies()
except OSError as error:
    copied = str(error)
print(json.dumps({
    "same": computed() == before, "files": len(files), "alone": alone, "copied": copied,
    "left": sorted({line.split()[1] for line in of_files()}),
}))
"""


def _run(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_computes_the_same_after_its_libraries_were_copied() -> None:
    found = _run()
    assert found["files"] > 20  # type: ignore[operator]
    # What is left of files are variables, every page of them a copy.
    assert found == {"same": True, "files": found["files"], "alone": True, "copied": True, "left": ["rw-p"]}


def test_memory_that_is_shared_for_writing_is_told_as_not_private() -> None:
    found = _run("shared")
    assert found["copied"] is False
    assert found["same"] is True

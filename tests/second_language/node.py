"""Runs the programs of this folder in node, and states the task that its tests share."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import odp
from odp.algorithms.dpam.config import RatingsData
from odp.protocol.terms import Cohort, UserLevelDP
from odp.tasks.task import Task

HERE = Path(__file__).resolve().parent


SECONDS = 120.0


NODE_DEVICES, PYTHON_DEVICES = 14, 8


ITEMS = 30


POPULATION = "second-language"


def node_program() -> str:
    """The path of node; the test is skipped where there is none of version 18 or newer."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node (version 18 or newer), which is not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    if not version.startswith("v") or int(version[1:].split(".")[0]) < 18:
        pytest.skip(f"needs node of version 18 or newer, found {version.strip()!r}")
    return node


def run_node(folder: Path, program: str, request: object) -> Any:
    """The JSON answer of a program of ``folder``; fails with what it wrote to stderr."""
    done = subprocess.run(
        [node_program(), str(folder / program)], input=json.dumps(request), capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def node_parts(*requests: Mapping[str, object]) -> list[Any]:
    """Answers of ``parts.mjs``, which needs no package."""
    answers = run_node(HERE, "parts.mjs", requests)
    assert len(answers) == len(requests)
    return list(answers)


def a_task() -> Task:
    return Task(
        name=POPULATION,
        model=odp.MatrixFactorization(items=ITEMS, rank=0),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8, delta=1e-5, max_items_per_user=6),
        training=odp.DPAM(slices_per_device=16),
        cohort=Cohort(minimum=20, goal=NODE_DEVICES + PYTHON_DEVICES, round_seconds=600),
    )

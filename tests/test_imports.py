"""What `import odp` brings with it: nothing that a developer would wait for, and nothing that a device lacks."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import odp

_OURS = ("odp", "server", "device_runtime", "distributor", "trusted_aggregator")
_HEAVY = ("tensorflow", "scipy", "dp_accounting", "matplotlib", "sqlalchemy", "numba")


@pytest.mark.parametrize(
    "code",
    [
        "import odp",
        "import odp; odp.Task, odp.DPAM, odp.MatrixFactorization",
        "import odp; odp.Statistics, odp.Histogram(bins=3), odp.Mean(low=0, high=1)",
        "import odp; odp.Device, odp.IsolatedService, odp.isolated",
        "import odp; odp.connect, odp.load, odp.data.synthetic_movielens, odp.load_task",
        "import odp; odp.IsolatedService",
        "import device_runtime, device_runtime.isolated",
    ],
)
def test_an_import_loads_no_heavy_library(code: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint([name for name in {_HEAVY!r} if name in sys.modules])"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout.strip()) == (0, "[]"), told.stderr


def test_the_check_would_see_a_heavy_library() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import odp, scipy, sys\nprint('scipy' in sys.modules)"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "True"


def test_odp_alone_loads_nothing_of_the_device() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import odp, sys\nprint([n for n in sys.modules if n.startswith('device_runtime')])"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "[]"


def test_the_commands_load_no_numbers_and_no_network_before_one_runs() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import odp.cli.main, sys\nprint([n for n in ('numpy', 'grpc') if n in sys.modules])"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "[]"


def test_type_checkers_and_the_docs_know_every_public_name() -> None:
    """They read the file, and cannot follow names that are loaded when first used."""
    tree = ast.parse(Path(odp.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(odp.__all__) - {alias.asname or alias.name for node in imports for alias in node.names} == set()


def test_what_tools_benchmarks_and_examples_import_exists() -> None:
    """No test runs most of them, and a name that goes would be missed once somebody draws a picture again."""
    missing = []
    for folder in ("tools", "benchmarks", "examples"):
        for path in (Path(odp.__file__).parents[1] / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in _OURS:
                    missing += [f"{path}: {node.module}.{name}" for name in _absent(node.module, node.names)]
    assert not missing


def _absent(module: str, names: list[ast.alias]) -> list[str]:
    held = importlib.import_module(module)
    return [
        alias.name
        for alias in names
        if not hasattr(held, alias.name) and importlib.util.find_spec(f"{module}.{alias.name}") is None
    ]

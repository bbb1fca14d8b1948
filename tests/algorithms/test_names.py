"""An algorithm is one package: nothing outside of it, and of the few files of ``NAMED``, names it.

What is searched is code: modules that are imported, names, attributes, keywords and string constants that are a whole
name or a module. Prose may name what it explains. ``implicit`` and ``statistics`` are English words, too: they count as
parts of ``odp.algorithms``, as fields of a definition, as arguments, and where something is compared with them.
"""

from __future__ import annotations

import ast
import functools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from odp.algorithms.registry import TABLE

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator")

#: Files that name algorithms, and why.
NAMED = {
    "odp/__init__.py": "the public API",
    "odp/items.py": "the public API",
    "odp/tasks/file.py": "names of the kinds in a task file",
    "odp/algorithms/registry.py": "the table",
    "odp/algorithms/factorization/": "what the trainings of a factorization share, their one message included",
    "odp/algorithms/federated/": "what federated trainings share, their one message included",
    "odp/cli/demo.py": "the demo is a task on ratings",
    "odp/cli/task_retrain.py": "a comparison of two trainings is an evaluation",
    "odp/research/interop/carried.py": "which trainings another platform has",
    "odp/operations/metrics.py": "a histogram of Prometheus has the name of one of ours",
    "odp/research/simulation/presets.py": "settings for data sets, written like a developer's task",
    "odp/research/simulation/labelled_check.py": "a task that fits a table, written like a developer's",
    "odp/research/simulation/methods.py": "a comparison of algorithms",
    "odp/research/simulation/tuning.py": "a search among the settings of one algorithm",
    "odp/research/reproductions/": "published experiments, written like a developer's tasks",
    "odp/research/simulation/fleet/fleet_task.py": "the task that the fleet trains",
}  # fmt: skip


ENGLISH = frozenset({"implicit", "statistics"})


@functools.cache
def _words() -> frozenset[str]:
    """Names of algorithms: their packages, trainings and fields of a definition, and their public and main classes."""
    words: set[str] = set()
    for training, entry in TABLE.items():
        words |= {training, entry.package.rpartition(".")[2], entry.training, entry.question}
        for path in (ROOT / Path(*entry.package.split("."))).glob("*.py"):
            tree = ast.parse(path.read_text())
            public = path.stem in ("config", "task", "data")
            stem = entry.package.rpartition(".")[2]
            classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
            words |= {name for name in classes if public or name.lower().startswith(stem)}
    return frozenset(words - {""})


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, part) for alias in names for part in _parts(alias.name))
            case ast.ImportFrom(module=str(module)):
                inside = module.startswith("odp.algorithms")
                yield from ((node.lineno, part) for part in _parts(module))
                yield from ((node.lineno, alias.name) for alias in node.names if inside or alias.name not in ENGLISH)
            case ast.Attribute(attr=name, value=base):
                if name not in ENGLISH or _is_definition(base):
                    yield node.lineno, name
            case ast.Name(id=name) if name not in ENGLISH:
                yield node.lineno, name
            case ast.keyword(arg=str(name)) if name not in ENGLISH:
                yield node.value.lineno, name
            case ast.Compare():
                for side in (node.left, *node.comparators):
                    yield from ((node.lineno, one.value) for one in ast.walk(side) if _is_text(one))
            case ast.MatchValue(value=value) if _is_text(value):
                yield node.lineno, value.value
            case ast.Call(args=arguments):
                yield from ((node.lineno, one.value) for one in arguments if _is_text(one))
            case ast.Constant(value=str(text)) if text not in ENGLISH:
                yield from ((node.lineno, part) for part in (_parts(text) if "odp.algorithms" in text else [text]))


def _parts(module: str) -> list[str]:
    """The parts of a module's name; an English word is one below ``odp.algorithms`` alone."""
    inside = module.startswith("odp.algorithms")
    return [part for part in module.split(".") if inside or part not in ENGLISH]


def _is_definition(base: ast.expr) -> bool:
    """Whether an expression reads as a task definition, or as the package of the algorithms."""
    name = base.func if isinstance(base, ast.Call) else base
    text = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    return text.endswith(("definition", "algorithm", "algorithms", "open_task"))


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def named(path: Path, words: frozenset[str]) -> list[str]:
    """Where a file names an algorithm."""
    text = path.read_text()
    # What a file does not spell, it does not name: Python reads letters of other forms as their plain ones.
    if words.isdisjoint(re.findall(r"\w+", unicodedata.normalize("NFKC", text))):
        return []
    tree = ast.parse(text, filename=str(path))
    return [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in _names(tree) if name in words]


def _files() -> Iterator[Path]:
    own = [Path(*entry.package.split(".")) for entry in TABLE.values()]
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if relative.is_relative_to("odp/v1") or any(relative.is_relative_to(package) for package in own):
                continue
            if not any(str(relative).startswith(allowed) for allowed in NAMED):
                yield path


def test_no_algorithm_is_named_outside_of_its_package() -> None:
    words = _words()
    assert {"dpam", "DPAM", "ImplicitDPAM", "statistics", "Statistics", "Histogram", "DpamServer"} <= words
    assert [where for path in _files() for where in named(path, words)] == []


@pytest.mark.parametrize("allowed", NAMED)
def test_the_exceptions_are_no_more_than_needed(allowed: str) -> None:
    target = ROOT / allowed
    files = target.rglob("*.py") if target.is_dir() else [target]
    assert any(named(path, _words()) for path in files), f"{allowed} names no algorithm: take it off the list"


@pytest.mark.parametrize(
    "code",
    [
        "definition.dpam.steps",
        "from odp.algorithms.dpam import server",
        "kind == 'statistics'",
        "Histogram()",
        "if definition.implicit: pass",
        "import odp.algorithms.dpam.server as server",
        "import odp.algorithms.statistics",
        "from odp.elsewhere.dpam import server",
        "open_task(task).dpam.steps",
        "task.definition().statistics",
        "definition.HasField('statistics')",
        "getattr(definition, 'implicit')",
        "match training:\n    case 'statistics': pass",
        "importlib.import_module('odp.algorithms.statistics.terms')",
        "TaskDefinition(quantiles=None)",
        "{'dpam': 1}",
    ],
)
def test_the_search_would_find_one(code: str) -> None:
    assert any(name in _words() for _, name in _names(ast.parse(code)))

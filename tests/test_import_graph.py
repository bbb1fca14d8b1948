"""Who imports whom: no circle among modules or folders, no service in another, services only where they are started.

Every import counts, those inside functions and under TYPE_CHECKING too: a circle that only a type checker walks is one
that a reader walks as well.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import statements

ROOT = Path(__file__).parents[1]
SERVICES = ("device_runtime", "distributor", "server", "trusted_aggregator")
PACKAGES = ("odp", *SERVICES, "benchmarks")
#: Folders of odp that start services, and its front door, which names `Device` for type checkers.
STARTERS = ("odp.cli", "odp.operations.local", "odp.research.simulation")
#: What draws noise from a seed, or measures a model on all data.
SIMULATED = ("odp.evaluation", "odp.research.simulation")
FRONT_DOOR = ("odp", "device_runtime.sdk")

Graph = dict[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(root: Path) -> Graph:
    """Module -> modules of these packages that it names in import statements, wherever they stand."""
    known = modules(root)
    return {
        name: {found for wanted in _named(path) if (found := _module(wanted, known)) is not None} - {name}
        for name, path in known.items()
    }


def _named(path: Path) -> Iterator[str]:
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this graph does not follow"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(wanted: str, known: dict[str, Path]) -> str | None:
    """The module that ``wanted`` is, or is a name in."""
    while wanted and wanted not in known:
        wanted = wanted.rpartition(".")[0]
    return wanted or None


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether ``module`` is one of ``packages``, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def folders(graph: Graph, root: Path) -> Graph:
    """The graph by folder; what stands at the root of a package is a node of its own."""
    known = modules(root)

    def folder(module: str) -> str:
        holder = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
        return module if holder in PACKAGES else holder

    found: Graph = {}
    for module, targets in graph.items():
        found.setdefault(folder(module), set()).update(map(folder, targets))
    return {name: targets - {name} for name, targets in found.items()}


def circle(graph: Graph) -> list[str] | None:
    """One circle, its first node again at the end; None where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return None


def foreign_services(graph: Graph) -> list[str]:
    """Imports of a service by another service, or by a part of odp that starts none."""
    return sorted(
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if within(target, SERVICES)
        and module.split(".")[0] not in (target.split(".")[0], "benchmarks")
        and not within(module, STARTERS)
        and (module, target) != FRONT_DOOR
    )


def reached(graph: Graph, package: str) -> set[str]:
    """The modules of ``package``, and all that they import, directly or not."""
    found: set[str] = set()
    waiting = [module for module in graph if within(module, (package,))]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(graph[module])
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    return imports(ROOT)


def test_modules_import_each_other_in_no_circle(graph: Graph) -> None:
    assert len(graph) > 300
    assert circle(graph) is None


def test_folders_import_each_other_in_no_circle(graph: Graph) -> None:
    assert circle(folders(graph, ROOT)) is None


def test_no_service_imports_another_and_odp_imports_services_only_where_it_starts_them(graph: Graph) -> None:
    assert foreign_services(graph) == []


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_reaches_the_seeded_noise_of_simulations(graph: Graph, service: str) -> None:
    assert [module for module in reached(graph, service) if within(module, SIMULATED)] == []
    assert any(within(module, SIMULATED) for module in reached(graph, "odp.cli"))


def plant(root: Path, **sources: str) -> Graph:
    """The graph of a tree with these modules, ``__`` in a name for a dot, each in packages with an ``__init__.py``."""
    for name, text in sources.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(root).parents[:-1]:
            (root / folder / "__init__.py").touch()
    return imports(root)


@pytest.mark.parametrize(
    "text",
    [
        "from odp.b import x",
        "import odp.b",
        "from odp import b",
        "def f():\n    from odp.b import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from odp.b import x",
    ],
)
def test_a_planted_circle_of_modules_is_found_wherever_the_import_stands(tmp_path: Path, text: str) -> None:
    graph = plant(tmp_path, odp__a=text, odp__b="import odp.c", odp__c="import odp.a")
    assert set(circle(graph) or ()) == {"odp.a", "odp.b", "odp.c"}


def test_a_planted_circle_of_folders_without_one_of_modules_is_found(tmp_path: Path) -> None:
    for package in ("odp", "trusted_aggregator"):
        x, y = f"{package}__x", f"{package}__y"
        sources = {f"{x}__a": f"import {package}.y.b", f"{y}__b": "", f"{y}__c": f"import {package}.x.d", f"{x}__d": ""}
        graph = plant(tmp_path / package, **sources)
        assert circle(graph) is None
        assert set(circle(folders(graph, tmp_path / package)) or ()) == {f"{package}.x", f"{package}.y"}


def test_a_planted_import_of_a_foreign_service_is_found(tmp_path: Path) -> None:
    graph = plant(
        tmp_path, server__a="import distributor.b", distributor__b="", odp__cli__c="import server.a",
        odp__client="import server.a", benchmarks__e="import server.a",
    )  # fmt: skip
    assert foreign_services(graph) == ["odp.client imports server.a", "server.a imports distributor.b"]

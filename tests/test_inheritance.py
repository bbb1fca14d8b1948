"""Parts of a whole are composed: no class inherits from another of its package that can be made itself.

A class can be made itself unless it is abstract (``abc.ABC``, a ``Protocol``, an abstract method), or private and
made nowhere in its module. Errors inherit as their callers catch them. A package is a service, or a folder of ``odp``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from syntax import no_collector

ROOT = Path(__file__).parents[1]
PACKAGES = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator")
GENERATED = "odp.v1"

#: Pairs that stay, by what makes them one thing with two forms.
JUSTIFIED: Mapping[str, frozenset[tuple[str, str]]] = {
    "a round is summed in one way, and each mode changes one step of it under the one lock": frozenset(
        {("MaskedRound", "EnclaveRound"), ("LeafRound", "EnclaveRound"), ("RootRound", "EnclaveRound")}
    ),
    "the intake of contributions, with one step of a mode changed": frozenset(
        {("MaskedHost", "EnclaveHost"), ("TreeHost", "EnclaveHost"), ("LeafHost", "EnclaveHost")}
    ),
    "a declared query of dense vectors, and what its sampled or streamed form declares besides": frozenset(
        {("SampledDenseQuery", "DenseQuery"), ("StreamedQuery", "DenseQuery")}
    ),
    "an algorithm that is another one with one step changed": frozenset(
        {
            ("Contributions", "Contributions"),
            ("DpamClient", "OwnItems"),
            ("ImplicitClient", "OwnItems"),
            ("ImplicitGradientClient", "OwnItems"),
            ("ImplicitGradientPopulation", "ImplicitPopulation"),
            ("ItemGradientClient", "DpamClient"),
            ("ItemGradientPopulation", "DpamPopulation"),
            ("PrivateClient", "FederatedClient"),
            ("PrivatePopulation", "FederatedPopulation"),
            ("ReportResults", "Results"),
            ("TaskAlgorithm", "TaskAlgorithm"),
        }
    ),
    "an event that is charged as the other, and says more": frozenset({("StreamRelease", "GaussianRelease")}),
    "a network on devices, and its two towers": frozenset({("TrainedTowers", "TrainedNetwork")}),
    "the steps of a seam that most of its forms share, and the form that changes some": frozenset(
        {
            ("EnclaveHost", "HostHalf"),
            ("MaskedVector", "DeviceHalf"),
            ("SecAggHost", "HostHalf"),
            ("Sessions", "Mode"),
            ("_TrainerCode", "ServiceCode"),
        }
    ),
    "a connection to the device's database, and its tables": frozenset({("Store", "Database")}),
}


class Kind(NamedTuple):
    """A class statement, and the module that it stands in."""

    module: str
    node: ast.ClassDef

    @property
    def package(self) -> str:
        """The service, or the folder of ``odp``."""
        return ".".join(self.module.split(".")[: 2 if self.module.startswith("odp.") else 1])


def classes(sources: Mapping[str, str]) -> Iterator[tuple[Kind, Kind]]:
    """(class, base) for every class whose base is concrete and of its package; ``sources`` by module name."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    kinds: dict[tuple[str, str], Kind] = {}
    imported: dict[tuple[str, str], tuple[str, str]] = {}
    made: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    kinds[name, node.name] = Kind(name, node)
                case ast.ImportFrom():
                    for alias in node.names:
                        imported[name, alias.asname or alias.name] = (node.module or "", alias.name)
                case ast.Call(func=ast.Name(id=called)):
                    made[name].add(called)
    for kind in kinds.values():
        for base in kind.node.bases:
            above = _resolved(kind.module, base, kinds, imported)
            if above is None or above.package != kind.package or _is_error(above, kinds, imported):
                continue
            if _is_concrete(above, made[above.module]):
                yield kind, above


def _resolved(
    module: str,
    base: ast.expr,
    kinds: Mapping[tuple[str, str], Kind],
    imported: Mapping[tuple[str, str], tuple[str, str]],
) -> Kind | None:
    named = base.value if isinstance(base, ast.Subscript) else base
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
        key = (".".join(imported.get((module, named.value.id), ("", ""))), named.attr)
    elif isinstance(named, ast.Name):
        key = (module, named.id)
    else:
        return None
    return kinds.get(key) or kinds.get(imported.get(key, ("", "")))


def _is_concrete(kind: Kind, made: Set[str]) -> bool:
    """``made`` are the names that its module calls, and so the classes that it makes."""
    node = kind.node
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    decorators = (ast.unparse(one) for member in node.body for one in getattr(member, "decorator_list", ()))
    if bases & {"ABC", "Protocol"} or any("abstractmethod" in one for one in decorators):
        return False
    return node.name in made or not node.name.startswith("_")


def _is_error(
    kind: Kind, kinds: Mapping[tuple[str, str], Kind], imported: Mapping[tuple[str, str], tuple[str, str]]
) -> bool:
    for base in kind.node.bases:
        above = _resolved(kind.module, base, kinds, imported)
        if (
            _is_error(above, kinds, imported)
            if above is not None
            else ast.unparse(base).endswith(("Exception", "Error"))
        ):
            return True
    return False


def product() -> dict[str, str]:
    """The text of every module of the product that nobody generated."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return {name: path.read_text() for name, path in zip(names, files, strict=True) if not name.startswith(GENERATED)}


def test_no_class_inherits_from_a_concrete_one_of_its_package() -> None:
    with no_collector():
        pairs = {(kind.node.name, base.node.name) for kind, base in classes(product())}
    assert pairs == {pair for some in JUSTIFIED.values() for pair in some}


def test_planted_inheritance_is_found_and_abstract_bases_are_not() -> None:
    first = "import abc\nclass Base: ...\nclass Seam(abc.ABC): ...\nclass _Shared: ...\nclass Fault(Exception): ..."
    second = (
        "from odp.planted.first import Base, Seam, Fault\nfrom odp.planted import first\n"
        "class One(Base): ...\nclass Two(first.Base): ...\nclass Three(Seam): ...\nclass Four(Fault): ..."
    )
    third = "from odp.planted.first import Base\nclass Five(Base): ..."
    shared = "class _Shared: ...\nclass _Made: ...\nclass Six(_Shared): ...\nclass Seven(_Made): ...\n_Made()"
    sources = {"odp.planted.first": first, "odp.planted.second": second, "odp.other.third": third, "server.it": shared}
    assert {kind.node.name for kind, _ in classes(sources)} == {"One", "Two", "Seven"}

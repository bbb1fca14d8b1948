"""A module has at most 700 lines, and a function or a constructor takes at most 8 arguments.

From 400 lines on, a test warns: such a module may have two ideas. A value object may have more arguments: a frozen
dataclass or a named tuple, whose fields are its meaning. Of a record that grows (a dataclass that is not frozen), only
what has to be given counts. Commands may have more, whose arguments are their options, and compiled kernels, which
take arrays one by one. Others that had more are in ``LARGE_FUNCTIONS``: none may grow, and none may come to it.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import statements

ROOT = Path(__file__).parents[1]
FOLDERS = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator", "benchmarks", "examples", "tools")
GENERATED = ROOT / "odp" / "v1"
MANY_LINES = 400
MOST_LINES = 700
MOST_ARGUMENTS = 8
COMMANDS = ROOT / "odp" / "cli"
#: Modules of functions that numba compiles.
KERNELS = ("kernels.py", "tiles.py")
#: Arguments of functions that take more, by module: what developers call with options by name, and what was there.
LARGE_FUNCTIONS = {
    "odp/algorithms/dpam/features.py": {"hybrid_rows": 9},
    "odp/algorithms/draw_and_discard/terms.py": {"resolved": 16},
    "odp/algorithms/model_evaluation/client.py": {"_personal_numbers": 9},
    "odp/datasets/drifting.py": {"drifting_ratings": 10},
    "odp/datasets/ratings.py": {"from_triples": 12, "from_dataframe": 12},
    "odp/trust/enclave/host.py": {"begin": 9},
    "odp/operations/local/log_setup.py": {"reference_values": 9},
    "odp/privacy/ledger.py": {"charge": 9},
    "odp/privacy/ledger_state.py": {"charge": 9},
    "odp/privacy/report.py": {"privacy_report": 12},
    "odp/research/simulation/comparing.py": {"compare": 14},
    "odp/research/simulation/engine.py": {"simulate": 9},
    "odp/research/simulation/fleet/run.py": {"run_fleet": 9},
    "odp/research/simulation/record.py": {"run_record": 13},
    "odp/research/simulation/retraining.py": {"retrain": 9},
    "odp/research/simulation/tuning.py": {"tune": 11},
    "odp/transport/service.py": {"serve": 9},
    "device_runtime/host/program.py": {"start": 9},
    "device_runtime/inference/candidates.py": {"recommend_candidates": 9},
    "trusted_aggregator/host/upgrading.py": {"upgrade": 12},
}


def modules() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if GENERATED not in path.parents]


def large_constructors(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(class, arguments of its constructor) of every class that takes too many."""
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            arguments = _arguments(node)
            if arguments > MOST_ARGUMENTS:
                yield node.name, arguments


def large_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(function, its arguments) of every function and method that takes too many, constructors apart."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            arguments = _taken(node)
            if arguments > MOST_ARGUMENTS:
                yield node.name, arguments


@functools.cache
def large_by_module() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Constructors and functions of each module that take too many arguments."""
    trees = ((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in modules())
    return {name: (dict(large_constructors(tree)), dict(large_functions(tree))) for name, tree in trees}


def _taken(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + len(node.args.kwonlyargs)


def _arguments(node: ast.ClassDef) -> int:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _taken(member)
    decorators = [ast.unparse(one) for one in node.decorator_list]
    if not any(one.partition("(")[0].endswith("dataclass") and "frozen=True" not in one for one in decorators):
        return 0
    return sum(isinstance(member, ast.AnnAssign) and member.value is None for member in node.body)


def test_no_module_is_longer_than_a_reader_holds() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
    for name, lines in lengths.items():
        if lines > MANY_LINES:
            warnings.warn(f"{name} has {lines} lines: does it have two ideas?", stacklevel=1)


def test_no_class_takes_more_arguments_than_a_caller_holds() -> None:
    assert {name: large for name, (large, _) in large_by_module().items() if large} == {}


def test_no_function_takes_more_arguments_than_a_caller_holds() -> None:
    """A function that takes fewer now is taken off the list."""
    exempt = {name for name in large_by_module() if COMMANDS in (ROOT / name).parents or name.endswith(KERNELS)}
    large = {name: functions for name, (_, functions) in large_by_module().items() if functions}
    assert {name: functions for name, functions in large.items() if name not in exempt} == LARGE_FUNCTIONS


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("def planted(a, b, c, d, e, f, *, g, h): ...", 0),
        ("def planted(a, b, c, d, e, f, *, g, h, i=None): ...", 9),
        ("class Planted:\n    def planted(self, a, b, c, d, e, f, g, h): ...", 0),
        ("class Planted:\n    def planted(self, a, b, c, d, e, f, g, h, i): ...", 9),
        ("def planted(self_like, a, b, c, d, e, f, g, h): ...", 9),
    ],
)
def test_a_planted_function_is_found(head: str, expected: int) -> None:
    assert dict(large_functions(ast.parse(head))) == ({"planted": expected} if expected else {})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def __init__(self, a, b, c, d, e, f, *, g, h): ...", 0),
        ("def __init__(self, a, b, c, d, e, f, *, g, h, i=None): ...", 9),
        ("; ".join(f"field_{number}: int" for number in range(9)), 9),
        ("; ".join(f"field_{number}: int = 0" for number in range(9)), 0),
    ],
)
def test_a_planted_constructor_is_found(body: str, expected: int) -> None:
    decorator = "" if body.startswith("def") else "@dataclasses.dataclass(kw_only=True)\n"
    found = dict(large_constructors(ast.parse(f"{decorator}class Planted:\n    {body}")))
    assert found == ({"Planted": expected} if expected else {})


def test_a_planted_value_object_may_have_any_number_of_fields() -> None:
    fields = "; ".join(f"field_{number}: int" for number in range(20))
    for head in ("@dataclass(frozen=True)\nclass Value:", "class Value(NamedTuple):"):
        assert not list(large_constructors(ast.parse(f"{head}\n    {fields}")))

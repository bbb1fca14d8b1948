"""A mode of aggregation is named in its own packages and in one table; everybody else asks the table's object.

What is searched is code: names and strings, but no docstring and no comment, which may name what they explain. The
aggregator has a test of its own (``tests/trusted_aggregator/test_mode_names.py``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp.errors import ConfigurationError
from odp.protocol.aggregation import MODES, mode_of
from odp.v1.common_pb2 import CohortTerms

ROOT = Path(__file__).parents[3]
PROGRAMS = ("odp", "device_runtime", "distributor", "server")
NAMES = re.compile(r"secagg|\bMASKED\b|\bmasked\b|masked_|AGGREGATION_")

#: Files and folders that name modes, and why.
NAMED = {
    "odp/protocol/aggregation.py": "the table, and what a task says of each mode",
    "odp/crypto/": "the cryptography of the modes, and domains of what they sign",
    "odp/algorithms/dense/shares.py": "the session of a round, which host and device make alike, and its noise",
    "odp/cli/device.py": "the roster of sessions",
    "odp/cli/services.py": "limits of sessions",
    "device_runtime/network/addresses.py": "the gRPC service of sessions",
    "device_runtime/network/services.py": "calls of that service",
    "device_runtime/round/": "what a device does in each mode",
    "device_runtime/modes.py": "the table of a device, and its halves",
    "device_runtime/host/fleet.py": "seats devices in sessions",
    "device_runtime/store/schema.py": "a table on the disks of devices",
}


def names_in(source: str) -> Iterator[str]:
    """Names of modes in the code of ``source``."""
    if not NAMES.search(source):
        return
    tree = ast.parse(source)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node) if id(node) not in prose else ():
            if isinstance(value, str) and NAMES.search(value):
                yield value


def _files() -> Iterator[str]:
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith("odp/v1/"):
                yield name


def test_no_code_outside_of_the_modes_names_one() -> None:
    files = [name for name in _files() if not name.startswith(tuple(NAMED))]
    found = {name: list(names_in((ROOT / name).read_text())) for name in files}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize("place", sorted(NAMED))
def test_what_may_name_a_mode_still_does(place: str) -> None:
    """An exception that nothing needs any more is taken off the list."""
    assert any(any(names_in((ROOT / name).read_text())) for name in _files() if name.startswith(place))


@pytest.mark.parametrize(
    "planted",
    [
        "if cohort.aggregation == CohortTerms.AGGREGATION_SECAGG: ...",
        "if task.cohort.aggregation == 'masked': ...",
        "import odp.algorithms.dense.secagg",
        "terms.secagg.sharers",
    ],
)
def test_a_planted_name_is_found(planted: str) -> None:
    assert list(names_in(planted))
    assert not list(names_in('"""What secagg+ and masked are."""\n# AGGREGATION_MASKED'))


def test_the_table_knows_every_number_and_refuses_others() -> None:
    numbers = set(CohortTerms.Aggregation.values())
    assert {mode.number for mode in MODES.values()} == numbers
    assert all(mode_of(CohortTerms(aggregation=mode.number)) is mode for mode in MODES.values())
    with pytest.raises(ConfigurationError, match="a mode that this version knows"):
        mode_of(CohortTerms(aggregation=max(numbers) + 1))  # type: ignore[arg-type]

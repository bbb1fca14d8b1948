"""A mode of aggregation is one package: the rest of the aggregator works with what every mode has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trusted_aggregator
from odp.v1.common_pb2 import CohortTerms
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.table import round_class

ROOT = Path(str(trusted_aggregator.__file__)).parent
MODES = ROOT / "modes"
NAMES = re.compile(r"secagg|sec_agg|mask(ed|ing)|AGGREGATION_", re.IGNORECASE)
#: Files outside of ``modes/`` that may name one: fields of messages, and a column on disks, keep their names.
ALLOWED = {
    "boundary/wire.py",
    "host/sqlite_storage.py",
    "host/postgresql_storage.py",
    "host/storage.py",
}


def _modules() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if MODES not in path.parents]


@pytest.mark.parametrize("module", sorted(set(_modules()) - ALLOWED))
def test_no_module_outside_of_the_modes_names_one(module: str) -> None:
    lines = (ROOT / module).read_text().splitlines()
    assert [line for line in lines if NAMES.search(line)] == []


def test_the_modes_that_may_be_named_elsewhere_still_are() -> None:
    """An exception that nothing needs any more is taken off the list."""
    assert all(NAMES.search((ROOT / module).read_text()) for module in ALLOWED)


def test_one_module_turns_the_number_of_a_mode_into_code_and_knows_all_of_them() -> None:
    named = {path.name for path in MODES.rglob("*.py") if "AGGREGATION_" in path.read_text()}
    assert named == {"table.py"}
    classes = {round_class_of(number) for number in CohortTerms.Aggregation.values()}
    assert len(classes) == len(CohortTerms.Aggregation.values())
    assert EnclaveRound in classes


def round_class_of(number: CohortTerms.Aggregation) -> type:
    from odp.v1.common_pb2 import TaskDefinition

    return round_class(TaskDefinition(cohort=CohortTerms(aggregation=number)))

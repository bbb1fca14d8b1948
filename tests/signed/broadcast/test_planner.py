from __future__ import annotations

import pytest

from odp.errors import ConfigurationError
from odp.signed.broadcast.config import DOWN_SECONDS_PER_BYTE, UP_SECONDS_PER_BYTE, TablePlan, plan_table, reasons

#: (rows, bytes per row), and what ``python -m benchmarks distributor`` measured for 50 keys: bytes up, bytes down and
#: seconds of all servers' processors (docs/partial-broadcast.md, section 7).
MEASURED = {
    (60_000, 128): {
        "enclave": (329, 6422, 0.0026),
        "all": (41, 7680032, 0.0061),
        "pir": (17576, 23366, 0.0092),
    },
    (60_000, 2240): {
        "enclave": (329, 112024, 0.0315),
        "all": (41, 134400516, 0.0925),
        "pir": (17576, 183878, 0.0665),
    },
    (2_000_000, 128): {
        "enclave": (329, 6422, 0.0504),
        "all": (41, 256000980, 0.1314),
        "pir": (29888, 32294, 0.1713),
    },
}


def cost(plan: TablePlan, method: str) -> float:
    return next(one.seconds for one in plan.costs if one.method == method)


@pytest.mark.parametrize(("rows", "row_bytes"), list(MEASURED))
def test_the_choice_is_the_best_of_what_was_measured(rows: int, row_bytes: int) -> None:
    plan = plan_table("items", rows=rows, row_bytes=row_bytes, keys=50, helper=True)
    measured = {
        method: up * UP_SECONDS_PER_BYTE + down * DOWN_SECONDS_PER_BYTE + cpu
        for method, (up, down, cpu) in MEASURED[rows, row_bytes].items()
    }
    assert set(measured) == {"enclave", "all", "pir"}
    assert measured[plan.chosen] <= 1.5 * min(measured.values())
    for method, seconds in measured.items():
        assert cost(plan, method) == pytest.approx(seconds, rel=0.25), method


def test_two_parties_are_eligible_with_a_helper_alone() -> None:
    for helper in (False, True):
        plan = plan_table("items", rows=60_000, row_bytes=128, keys=50, helper=helper)
        pir = next(one for one in plan.costs if one.method == "pir")
        assert bool(pir.excluded) != helper
        assert ("no helper is declared" in dict(reasons(plan))["pir"]) != helper


def test_a_tiny_table_is_cheaper_whole_than_asked_for() -> None:
    assert plan_table("items", rows=10, row_bytes=12, keys=10, helper=True).chosen == "all"


def test_more_keys_than_two_parties_answer_rule_them_out() -> None:
    plan = plan_table("items", rows=60_000, row_bytes=128, keys=513, helper=True)
    assert "more than 512" in dict(reasons(plan))["pir"]


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"row_bytes": 0}, {"keys": 0}])
def test_numbers_out_of_range_are_named(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name}="):
        plan_table("items", **{"rows": 10, "row_bytes": 4, "keys": 1, **wrong})

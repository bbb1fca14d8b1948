"""The distributor's benchmark asks a real distributor for rows that it checks, and leaves nothing running."""

from __future__ import annotations

import psutil
import pytest

from benchmarks import distributor, scanning
from benchmarks.distributor import Plan
from benchmarks.harness import BENCHMARKS
from benchmarks.methods import METHODS, planned
from benchmarks.scanning import Shape, scans, table
from benchmarks.served import KEYS
from odp.signed.broadcast.config import Cost


def test_scans_have_goals_at_full_size_only() -> None:
    shape = Shape(300, 16)
    for full in (True, False):
        figures = scans(table(shape), shape, keys=5, repeats=1, full=full)
        assert len({figure.name for figure in figures}) == len(figures) == 8
        assert sum(figure.goal is not None for figure in figures) == (4 if full else 0)
        assert all(figure.value > 0 for figure in figures)


def test_every_work_is_timed_in_turns_and_the_first_turn_only_warms() -> None:
    order: list[int] = []
    found = scanning.best([lambda: order.append(1), lambda: order.append(2)], repeats=2)
    assert order == [1, 2] * 3
    assert all(0 <= seconds < 1 for seconds in found)


def test_the_planners_choice_is_compared_with_the_best_that_was_measured() -> None:
    shape = Shape(60_000, 128)
    costs = {
        method: Cost(method, up=0, down=down, cpu=0.0, note="")
        for method, down in (("enclave", 30.0), ("all", 90.0), ("pir", 20.0))
    }
    found = planned(shape, costs)
    assert found.name == "60,000 x 128 B: cost of the planner's choice, enclave, over the best, pir"
    assert found.value == pytest.approx(1.5)
    assert str(found.goal) == "<= 1.5"


# A whole run of a benchmark: no promise rests on one.
@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.slow
def test_a_small_run_measures_every_way_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributor, "_DOWNLOADED", Shape(3_000, 128))
    figures = {figure.name: figure for figure in distributor.served(Plan((Shape(500, 8),), 0.1, 8, 1, full=False))}
    for method in METHODS:
        assert figures[f"500 x 8 B: bytes up per device, {method}"].value > 0
        down = figures[f"500 x 8 B: bytes down per device, {method}"]
        assert down.value > KEYS * 8
        assert down.limit is not None
        assert down.limit.value == 4000
    assert figures["500 x 8 B: bytes up per device, enclave"].value > KEYS * 4
    assert any("cost of the planner's choice" in name for name in figures)
    assert figures["whole downloads over bare gRPC streams"].goal is not None
    left = [child.cmdline() for child in psutil.Process().children(recursive=True) if "odp.cli.main" in child.cmdline()]
    assert left == []
    assert BENCHMARKS["distributor"][0] == "benchmarks.distributor"

"""The device's benchmark lets real devices take part, has goals, and leaves nothing running."""

from __future__ import annotations

import sys

import psutil
import pytest

from benchmarks import device
from benchmarks.device import Plan
from benchmarks.harness import BENCHMARKS


# A whole run of a benchmark: no promise rests on one.
@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.slow
def test_a_small_run_measures_a_participation_and_leaves_no_process() -> None:
    figures = {figure.name: figure for figure in device.participation(Plan(20, 20, full=False))}
    (cost,) = (figure for name, figure in figures.items() if name.endswith("ratings: processor time"))
    assert str(cost.goal) == "<= 10"
    assert 0.5 < cost.value < figures["first contact: processor time of the first participation of a process"].value
    assert (
        5 < figures["store of a device that never took part"].value < figures["store of a device after 3 rounds"].value
    )
    assert all(figure.value > 0 for figure in figures.values())
    left = [child.cmdline() for child in psutil.Process().children(recursive=True) if "odp.cli.main" in child.cmdline()]
    assert left == []


def test_the_benchmark_is_registered_with_goals_that_depend_on_size_at_full_size_only() -> None:
    assert BENCHMARKS["device"][0] == "benchmarks.device"
    assert (device.plan(True).full, device.plan(False).full) == (False, True)
    assert device.plan(False).devices == 10_000


# A whole run of a benchmark: no promise rests on one.
@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="services need Linux")
@pytest.mark.slow
def test_it_measures_the_calls_of_isolated_code_too() -> None:
    names = [figure.name for figure in device.isolated_calls(Plan(20, 20, full=False))]
    assert {"isolated code: call, p50", "isolated code: call, p99"} <= set(names)

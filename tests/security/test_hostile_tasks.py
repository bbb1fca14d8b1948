"""R350, R351: tasks made to be slow where a device holds what they look for tell nothing by time.

Devices that differ in private data alone take part in the same round, over real services and on a real clock. Their
whole transcripts are compared, times included: ``transcripts`` says how, ``transcript_times`` at which resolution and
rate of false alarms. ``transcript_trials.py`` compares every variant of data of every kind of task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from security.hostile_tasks import KINDS
from security.outside import Outside, tried

#: Kinds whose tasks have the shortest fixed time, and the data that take longest. CI compares one: all share the code
#: that waits for the fixed time (device_runtime/round), and `make proof` tries every kind.
FAST = (
    ("DPFedAvg", "caps full"),
    pytest.param("statistics", "ten times the caps", marks=pytest.mark.proof),
    pytest.param("local statistics", "ten times the caps", marks=pytest.mark.proof),
    pytest.param("ratings", "all items", marks=pytest.mark.proof),
)
OF_HOSTS = tuple(name for name, kind in KINDS.items() if kind.devices > 1)
WORST = ("caps full", "ten times the caps", "all items", "ten times the items", "none matches")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: Any) -> Iterator[Outside]:
    outside = Outside(tmp_path_factory.mktemp("outside"))
    yield outside
    outside.close()


@pytest.mark.parametrize(("kind", "data"), FAST)
@pytest.mark.slow
def test_r350_a_hostile_task_tells_nothing_of_the_data_by_time(outside: Outside, kind: str, data: str) -> None:
    difference = tried(outside, kind, data, most_fixed=0.25)
    assert difference is None, difference


@pytest.mark.slow
def test_r351_the_data_of_one_device_do_not_move_the_calls_of_the_others_of_its_host(outside: Outside) -> None:
    difference = tried(outside, "statistics, five devices", "ten times the caps", most_fixed=0.25)
    assert difference is None, difference


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "data"), [(name, data) for name, kind in KINDS.items() for data in WORST if data in kind.data]
)
def test_r350_no_kind_of_hostile_task_tells_the_data_that_take_longest(outside: Outside, kind: str, data: str) -> None:
    difference = tried(outside, kind, data, most_fixed=1.0)
    assert difference is None, difference

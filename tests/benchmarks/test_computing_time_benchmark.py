"""The benchmark of computing time has a case of every kind of task, and measures what a device computes."""

from __future__ import annotations

from benchmarks import computing_time
from benchmarks.harness import BENCHMARKS
from odp.algorithms.registry import TABLE, training_of


def test_every_kind_of_task_has_a_case_whose_caps_its_data_reach() -> None:
    assert BENCHMARKS["computing-time"][0] == "benchmarks.computing_time"
    kinds = {training_of(case.task.definition()) for case in computing_time._cases(1)}
    assert kinds == set(TABLE)


def test_what_a_device_computes_at_its_caps_is_within_the_model_and_its_safety() -> None:
    (case,) = (case for case in computing_time._cases(1) if case.name == "quantiles")
    measured = computing_time._measured(case)
    modelled = computing_time.worst_case_seconds(case.task.definition()) * computing_time.machine_speed()
    assert 0 < measured < computing_time.SAFETY * modelled

"""The campaign in its short form; ``python tests/faults/campaign.py --seed 1 --trials 200`` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from faults.campaign import CONFIGURATIONS
from faults.disk import library
from faults.verdicts import require_charged_as_counted, require_named_failure
from task_combinations import Combination

from trusted_aggregator.modes.secagg.rounds import _used_up, void


@pytest.mark.processes
@pytest.mark.proof
def test_r386_three_trials_of_the_campaign_hold(tmp_path: Path) -> None:
    library(tmp_path)  # skips where there is no C compiler
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), "--seed", "1", "--trials", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "3 of 3 trials hold: everything holds" in done.stdout


def test_every_configuration_is_a_task_that_can_be_made() -> None:
    assert len(CONFIGURATIONS) == 10
    for algorithm, aggregation, sampling, broadcast, _ in CONFIGURATIONS.values():
        combination = Combination(algorithm, aggregation, sampling, broadcast)
        assert combination.is_distinct
        assert combination.task("")


def test_r395_a_device_that_is_charged_for_less_or_more_than_it_counted_in_is_seen() -> None:
    require_charged_as_counted({"0": [0, 1], "1": [1, 0]}, [0, 1])
    for charged in ([], [0], [1], [0, 1, 1], [0, 1, 2]):
        with pytest.raises(AssertionError, match="1 is charged for"):
            require_charged_as_counted({"0": [0, 1], "1": charged}, [0, 1])


def test_r395_of_a_failed_task_the_round_without_a_sum_alone_may_cost_a_device_more_than_it_counted_in() -> None:
    require_charged_as_counted({"0": [0, 1], "1": [0]}, [0], without_sum=1)
    for charged in ([], [1], [0, 2], [0, 0], [0, 1, 1]):
        with pytest.raises(AssertionError, match="1 is charged for"):
            require_charged_as_counted({"0": [0, 1], "1": charged}, [0], without_sum=1)
    with pytest.raises(AssertionError, match="0 is charged for"):  # the enclave charged for it: its charge stays
        require_charged_as_counted({"0": [0]}, [0, 1], without_sum=1)


def test_r395_a_task_fails_for_a_named_reason_of_its_configuration_alone() -> None:
    used_up = _used_up(0, "too few devices came to it")
    require_named_failure("secagg+", used_up)
    require_named_failure("secagg+", str(void(1, "its session is gone")))
    for configuration, failure in (("enclave", used_up), ("secagg+", ""), ("secagg+", "internal error")):
        with pytest.raises(AssertionError, match="must not fail with"):
            require_named_failure(configuration, failure)

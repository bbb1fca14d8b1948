"""The campaign in its short form; ``python tests/faults/campaign.py --seed 1 --trials 200`` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from faults.campaign import CONFIGURATIONS, DEFAULT_KINDS, KINDS
from faults.disk import library
from task_combinations import Combination


@pytest.mark.processes
@pytest.mark.slow
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
    assert set(DEFAULT_KINDS) < set(KINDS)

"""The campaign in its short form; ``python tests/faults/campaign.py --seed 1 --trials 200`` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from faults.configurations import CONFIGURATIONS
from faults.disk import library
from faults.sessions import is_later_session
from faults.trials import released
from faults.verdicts import require_charged_as_counted, require_named_failure, require_spent

from odp.v1 import common_pb2, server_pb2
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
    assert len(CONFIGURATIONS) == 14
    for configuration in CONFIGURATIONS.values():
        assert configuration.data.is_distinct
        task = configuration.task("people")
        assert (task.name, task.population) == ("people", "people")


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


def test_r395_a_round_that_is_open_has_no_release() -> None:
    releases = (common_pb2.SignedRelease(release=b"r"), common_pb2.SignedRelease())  # as the server answers
    rounds = [server_pb2.RoundStatus(round=number, release=release) for number, release in enumerate(releases)]
    assert released(server_pb2.TaskStatus(rounds=rounds)) == [b"r"]


def test_r395_a_task_fails_for_a_named_reason_of_its_configuration_alone() -> None:
    used_up = _used_up(0, "too few devices came to it")
    require_named_failure("secagg+", used_up)
    require_named_failure("secagg+", f"could not read the state of a round at the aggregator: {used_up}")
    require_named_failure("secagg+", str(void(1, "its session is gone")))
    for configuration, failure in (("enclave", used_up), ("secagg+", ""), ("secagg+", "internal error")):
        with pytest.raises(AssertionError, match="must not fail with"):
            require_named_failure(configuration, failure)


def test_r395_a_round_without_a_sum_is_seen_where_every_device_could_still_contribute() -> None:
    require_spent({"0": [0, 1], "1": [0]}, 1)
    with pytest.raises(AssertionError, match="every device could still contribute to round 1"):
        require_spent({"0": [0], "1": [0]}, 1)


def test_r395_time_passes_for_a_session_after_the_first_alone() -> None:
    def log(*events: str) -> str:
        return "".join(f"2026-11-27T19:01:47.793Z info aggregator {event}\n" for event in events)

    first, second = (f"secagg_gathers task=2b round=0 attempt={attempt}" for attempt in (0, 1))
    assert not is_later_session("")
    assert not is_later_session(log("round_opened task=2b round=0", first))
    assert is_later_session(log(first, "secagg_void task=2b round=0 reason=late", second, "serving address=a"))
    for after in ("round_charged task=2b round=0", "round_opened task=3c round=0", "secagg_failed task=2b round=0"):
        assert not is_later_session(log(first, second, after))

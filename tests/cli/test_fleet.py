"""`odp fleet run` as a person runs it: real services, real processes; on one host, on two, and killed on the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from device_runtime import State, Store, store_path
from odp.cli.main import main
from odp.trust.enclave.reference_values import ReferenceValues

# One model to the byte is the promise: nothing of a fleet's hosts may come from one process.
pytestmark = pytest.mark.afresh

DEVICES, ROUNDS = 60, 3
SCENARIO = f"""
[data]
source = "synthetic:n_users={DEVICES},n_items=30,ratings_per_user=10,seed=7"
[task]
rank = 2
steps = 1
max_items_per_user = 10
minimum_cohort = 20
[faults]
drop_outs = 0.2
crashes = 0.1
malicious = 0.1
[network]
latency_ms = [20, 400]
kilobits_per_second = [500, 50000]
lost_answers = 0.1
[clocks]
skew_seconds = 120
jumps = 0.1
[conditions]
charging = true
"""


@dataclass(frozen=True)
class Run:
    """One finished run: its JSON, its stderr, and the folder that it left."""

    found: dict[str, Any]
    shown: str
    root: Path

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted((self.root / "logs").glob("devices-*.log")))


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "odp.cli.main", "fleet", "run", *arguments]


def fleet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=900, check=False)


def _given(scenario: Path, root: Path, hosts: int) -> list[str]:
    given = ["--scenario", str(scenario), "--seed", "5", "--test-noise", "--hosts", str(hosts)]
    return [*given, "--state", str(root), "--json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The same seed on one host and on two."""
    folder = tmp_path_factory.mktemp("fleet")
    scenario = folder / "scenario.toml"
    scenario.write_text(SCENARIO)
    done = []
    for hosts in (1, 2):
        root = folder / f"state-{hosts}"
        finished = fleet(*_given(scenario, root, hosts))
        assert finished.returncode == 0, finished.stderr
        done.append(Run(json.loads(finished.stdout.splitlines()[-1]), finished.stderr, root))
    return done


@pytest.mark.slow
def test_one_seed_gives_one_model_to_the_byte_however_many_hosts_run_the_devices(runs: list[Run]) -> None:
    one, two = (run.found for run in runs)
    assert one["model_sha256"] == two["model_sha256"]
    changing = {"seconds", "processor_seconds", "rests", "simulated_hours"}
    for first, second in zip(one["rounds"], two["rounds"], strict=True):
        assert {name: first[name] for name in first.keys() - changing} == {
            name: second[name] for name in second.keys() - changing
        }
    assert (one["hosts"], two["hosts"]) == (1, 2)


@pytest.mark.slow
def test_every_fault_of_the_plan_happened_and_every_honest_device_was_counted(runs: list[Run]) -> None:
    for entry in runs[1].found["rounds"]:
        injected = {
            name: count for name, count in entry["injected"].items() if name not in ("clock_jump", "lost_answer")
        }
        assert injected == {
            "crash": 6, "drop_out": 12, "malformed": 2, "out_of_bounds": 2, "replayed": 1, "wrong_round": 1,
        }  # fmt: skip
        refused = {"malformed": 2, "out_of_bounds": 2, "wrong_round": 1, "replay: already_contributed": 1}
        assert entry["refused"] == refused
        assert entry["counted"] == entry["devices_in"] == DEVICES - 12 - 5
        assert entry["bytes_up"] > 43 * 500
    total = Counter[str]()
    for entry in runs[1].found["rounds"]:
        total.update(entry["injected"])
    assert total["clock_jump"] > 3
    assert total["lost_answer"] > 3


@pytest.mark.slow
def test_the_devices_own_ledgers_agree_with_the_aggregator(runs: list[Run]) -> None:
    """Also of those that died, lost an answer, or whose clock jumped."""
    states = Counter[State]()
    for device in range(DEVICES):
        with Store.open(store_path(runs[0].root, device)) as store:
            states.update(line.state for line in store.ledger())
    counted = sum(entry["counted"] for entry in runs[0].found["rounds"])
    # Three of each five changed on their way: a refusal of other bytes than a device made proves nothing to it.
    assert states[State.SENT] == counted + 3 * ROUNDS
    assert states[State.REFUSED] == 2 * ROUNDS


@pytest.mark.slow
def test_every_line_about_a_fault_says_that_it_was_injected(runs: list[Run]) -> None:
    lines = runs[1].log().splitlines()
    about = [line for line in lines if re.search(r"fault|refused|replay|failed", line)]
    injected = sum(sum(entry["injected"].values()) for entry in runs[1].found["rounds"])
    assert len(about) > injected > 90
    assert all(" injected=true" in line for line in about)
    rest = [line for line in lines if line not in about]
    assert rest
    assert not any("injected" in line for line in rest)


@pytest.mark.slow
def test_the_log_of_a_seed_is_the_same_line_by_line(runs: list[Run]) -> None:
    """Simulated times included; but for the devices that close a round, of which each process has one."""
    first, second = (Counter(line for line in run.log().splitlines() if "injected_fault" in line) for run in runs)
    assert sum(((first - second) + (second - first)).values()) <= 2 * ROUNDS


@pytest.mark.slow
def test_test_noise_is_said_and_needs_reference_values_that_allow_it(runs: list[Run]) -> None:
    assert runs[0].shown.count("TEST NOISE") == 2
    assert "protects nobody" in runs[0].found["noise"]
    values = ReferenceValues.load(runs[0].root / "reference_values.json")
    assert values.allow_test_noise


# research/simulation/fleet has the journal that a host goes on with; CI kills hosts of devices and services in
# e2e/test_kill.py and e2e/test_soak.py.
@pytest.mark.proof
@pytest.mark.slow
def test_a_fleet_that_is_killed_goes_on_with_what_is_left_and_counts_the_same(runs: list[Run], tmp_path: Path) -> None:
    """First a service dies, then everything at once; the model is that of the run that nobody killed."""
    scenario, root = tmp_path / "scenario.toml", tmp_path / "state"
    scenario.write_text(SCENARIO)
    given = _given(scenario, root, 2)

    status, told = _killed(given, root, round=0, whom="aggregator")
    assert status == 1
    assert "aggregator ended by itself" in " ".join(told.split())
    before = _through(root)
    _killed(given, root, round=1, whom="")
    assert _through(root) > before

    refused = fleet(*given, "--seed", "6")
    assert refused.returncode == 1
    assert "holds one of seed=5 (got 6)" in " ".join(refused.stderr.split())

    finished = fleet(*given)
    assert finished.returncode == 0, finished.stderr
    resumed, whole = json.loads(finished.stdout.splitlines()[-1]), runs[1].found
    assert (resumed["resumed"], whole["resumed"]) == (True, False)
    assert resumed["model_sha256"] == whole["model_sha256"]
    for first, second in zip(resumed["rounds"], whole["rounds"], strict=True):
        for name in ("counted", "devices_in", "refused", "injected"):
            assert first[name] == second[name], name


def _killed(given: list[str], root: Path, *, round: int, whom: str) -> tuple[int, str]:
    """(exit code, stderr) of a fleet of which a program, or with "" the command, is killed in a round."""
    with subprocess.Popen(_command(*given), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        family = psutil.Process(running.pid)
        until = time.monotonic() + 120.0
        while len(found := [count for count in _through(root, round) if count >= 6]) < 2:
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < until, found
            time.sleep(0.02)
        below = family.children(recursive=True)
        if whom:
            next(one for one in below if any(part.endswith(f"/{whom}") for part in one.cmdline())).kill()
        else:
            running.kill()
        _, told = running.communicate(timeout=120.0)
    _, alive = psutil.wait_procs(below, timeout=60.0)
    assert not alive
    return running.returncode, told


def _through(root: Path, round: int | None = None) -> list[int]:
    """How many devices of each host are through, with a round or with all of them."""
    counts = []
    for file in sorted((root / "devices").glob("host-*/journal.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
        counts.append(sum(what == "done" and round in (None, number) for what, number, *_ in lines))
    return counts


@pytest.mark.slow
def test_what_cannot_run_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(SCENARIO)
    for arguments, message in (
        (("--devices", "9999"), "devices=9999 to be from 1 to 60"),
        (("--devices", "25"), "minimum_cohort=20 of 25 devices"),
        (("--state", str(tmp_path)), "to be empty"),
        (("--hosts", "0"), "hosts=0 to be from 1 to 12"),
    ):
        monkeypatch.setattr(sys, "argv", ["odp", "fleet", "run", "--scenario", str(scenario), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert message in " ".join(capsys.readouterr().err.split())

"""`odp demo`: from nothing to a private model, its figures and its receipts; and nothing is left running."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.cli import demo
from odp.datasets import load, random_split
from odp.errors import ConfigurationError
from odp.operations.local.processes import ODP
from odp.privacy.accounting import epsilon
from odp.privacy.ledger import Ledger
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder

pytestmark = pytest.mark.processes

DATA = "synthetic:n_users=104,n_items=30,ratings_per_user=12"


def _left(marker: str) -> list[psutil.Process]:
    """Processes with ``marker`` in their command line, but for this one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(marker in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.afresh
def test_a_demo_ends_with_a_model_its_charges_and_a_picture(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    done = subprocess.run(
        [*ODP, "demo", "--data", DATA, "--epsilon", "4", "--rank", "0", "--output", str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
    assert not _left(str(tmp_path)), "programs, by their state folder"
    assert not list(tmp_path.glob("odp-demo-*")), "their state"

    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert 0.3 < found["test_rmse"] < 1.5
    assert 3.99 < found["epsilon"] <= 4.0
    assert found["delta"] == 1e-6
    assert found["devices"] == 104
    assert 0 < found["seconds"] < 120
    assert len(found["rmse_by_round"]) == len(found["epsilon_by_round"]) == found["rounds"] + 1
    assert found["rmse_by_round"][-1] == found["test_rmse"]
    assert found["epsilon_by_round"] == sorted(found["epsilon_by_round"])
    assert found["rounds"] == 2
    assert len(found["recommendations"]) == 10
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == found

    errors = json.loads((tmp_path / "out" / "run.json").read_text())["standard_errors"]
    assert errors.keys() == found["baselines"].keys()
    assert all(0 < error < 0.2 for error in errors.values()), "104 people: the verdict of the page has to know"

    split = random_split(load(DATA), seed=1)
    definition = demo._task(split, epsilon=4.0, delta=1e-6, rank=0).definition()
    algorithm = algorithm_for(definition)
    planned = [charges_of(algorithm.query(number)) for number in range(found["rounds"])]
    assert len(algorithm.planned_releases()) == found["rounds"]
    expected = [{"round": number, **event.to_json()} for number, events in enumerate(planned) for event in events]
    assert found["charges"] == expected, "every release of the plan, and nothing else"

    ledger = Ledger.decode((tmp_path / "out" / "ledger.json").read_bytes())
    ledger.verify()
    task_id = ledger.entries[-1].task_id
    assert ledger.task_events(task_id) == tuple(event for events in planned for event in events)
    assert ledger.state.epsilon_of_task(task_id, delta=1e-6) == pytest.approx(found["epsilon"], rel=1e-9)
    assert math.isclose(epsilon(ledger.task_events(task_id), delta=1e-6), found["epsilon"], rel_tol=1e-9)

    shown = done.stderr
    parts = [
        shown.index(part) for part in ("what its operator sees", "starting the programs", "round 1/2: 104 devices")
    ]
    parts += [
        shown.index(part) for part in ("test error, lower is better", "lower RMSE is better", "audit passed", "next:")
    ]
    assert parts == sorted(parts), "the parties at once, the chart before the tables"

    picture = Path(found["picture"]).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    assert len(picture) > 20_000
    assert "1e-06" in (tmp_path / "out" / "privacy.txt").read_text(encoding="utf-8")
    assert "all programs stopped" in done.stderr

    assert "audit passed: 14 entries of the transparency log" in done.stderr
    assert "the attested enclave signed the ledger" in done.stderr
    pins = ReferenceValues.load(tmp_path / "out" / "reference_values.json")
    audited = audit(LogFolder(tmp_path / "out" / "log"), pins)
    assert found["log"]["entries"] == audited.counts
    assert audited.tasks[0].epsilon == pytest.approx(found["epsilon"], rel=1e-9)
    assert audited.tasks[0].contributions == (104, 104)


def test_the_default_data_have_as_many_users_as_devices_were_asked_for_and_the_rounds_that_were() -> None:
    split = random_split(load(demo._SYNTHETIC.format(devices=110)), seed=1)
    assert split.train.n_users == 110
    for rounds in (3, 4, 7):
        task = demo._task(split, epsilon=8.0, delta=1e-6, rank=None, rounds=rounds)
        assert demo._planned(task) == rounds


def test_rounds_that_a_model_cannot_have_are_refused() -> None:
    split = random_split(load(DATA), seed=1)
    with pytest.raises(ConfigurationError, match="rounds=2 to be at least 3"):
        demo._task(split, epsilon=8.0, delta=1e-6, rank=4, rounds=2)
    with pytest.raises(ConfigurationError, match="rounds=5 to be 2 for a model without factors"):
        demo._task(split, epsilon=8.0, delta=1e-6, rank=0, rounds=5)
    assert demo._planned(demo._task(split, epsilon=8.0, delta=1e-6, rank=0, rounds=2)) == 2


def test_a_demo_that_is_told_to_end_stops_its_programs_and_says_how_to_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [*ODP, "demo", "--data", DATA, "--output", str(tmp_path / "out"), "--state", str(state)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until, pause = time.monotonic() + 60, threading.Event()
        # In the middle of its start, where nothing waits for a signal.
        while len(_left(str(state / "distributor"))) < 1:
            assert time.monotonic() < until
            assert running.poll() is None
            pause.wait(0.02)
    finally:
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert f"interrupted; all programs stopped; the same command goes on from {state}" in err.replace("\n", "")
    # A program that was just being started ends by itself, with its parent's pipe.
    _gone, alive = psutil.wait_procs(_left(str(state)), timeout=20)
    assert not alive

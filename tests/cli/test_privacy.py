"""`odp privacy`: the report of a stored ledger and of a running task, and plans."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed
from e2e.world import World, small_task

import odp as package
from odp.errors import AttestationError, ConfigurationError, PrivacyError, StateError
from odp.privacy import composition
from odp.privacy.events import GaussianRelease, LocalReport
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget

Odp = Callable[..., Printed]
TASK = "ab" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    found = Ledger("films")
    for number in range(2):
        found = found.charge(
            task_id=TASK, round=number, events=(GaussianRelease("counts", 2.0, 20.0, 12),), contributions=120 + number,
            population_size=130, id_set_sha256=bytes(32), task_budget=Budget(8.0, 1e-6),
            population_budget=Budget(20.0, 1e-5),
        )  # fmt: skip
    path = tmp_path / "ledger.json"
    path.write_bytes(found.encode())
    return path


def test_the_report_of_a_stored_ledger_as_text_json_and_page(odp: Odp, ledger: Path, tmp_path: Path) -> None:
    text = odp("privacy", "report", "abab", "--ledger", ledger).out
    found = odp("privacy", "report", "abab", "--ledger", ledger, "--json", "--html", tmp_path / "page.html").json
    page = (tmp_path / "page.html").read_text()
    digits = f"{found['epsilon']['at_delta']:.4f}"
    for part in (
        digits,
        found["hashes"]["ledger_head"],
        "120 to 121 uploads",
        f"RDP {found['cross_check']['rdp']:.4f}",
    ):
        assert part in text
    for part in (digits, found["hashes"]["ledger_head"]):
        assert part in page
    assert odp("privacy", "report", "ab", "--ledger", ledger, "--json", "--no-cross-check").json["cross_check"] is None


def test_a_changed_ledger_an_unknown_task_and_a_missing_file_are_refused(odp: Odp, ledger: Path) -> None:
    with pytest.raises(ConfigurationError, match="its tasks: abab"):
        odp("privacy", "report", "cd", "--ledger", ledger)
    with pytest.raises(ConfigurationError, match="check the path"):
        odp("privacy", "report", "ab", "--ledger", ledger.with_name("none.json"))
    ledger.write_bytes(ledger.read_bytes().replace(b'"noise_std":20.0', b'"noise_std":40.0'))
    with pytest.raises(StateError):
        odp("privacy", "report", "ab", "--ledger", ledger)


@pytest.mark.slow
def test_a_sampled_task_runs_on_devices_and_its_report_is_the_enclaves(
    odp: Odp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty devices upload in each round, half of them count; the report is checked against pinned reference values."""
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)  # all in this process, and quick
    ratings = package.synthetic_movielens(n_users=40, n_items=20, ratings_per_user=8, seed=3)
    task = small_task(ratings)
    cohort = package.Cohort(
        minimum=20, goal=40, round_seconds=600, sampling="enclave_poisson", sampling_probability=0.5,
        most_contributions=60,
    )  # fmt: skip
    task = package.Task(
        name=task.name, model=task.model, data=task.data, privacy=task.privacy, training=task.training, cohort=cohort
    )
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world").start(stack)
        at = ("--server", world.server.address, "--state", world.root)
        handle = world.connection.submit(task)
        before = odp("privacy", "report", handle.task_sha256.hex()[:8], *at, "--json", "--no-cross-check").json
        assert before["status"] == "planned"
        world.finish(handle, world.devices(ratings))
        found = odp("privacy", "report", handle.task_sha256.hex()[:8], *at, "--json", "--no-cross-check").json
        pinned = world.reference_values.read_text()
        world.reference_values.write_text(pinned.replace("sha384:", "sha384:00", 1)[: len(pinned) + 2])
        with pytest.raises((AttestationError, ConfigurationError)):
            odp("privacy", "report", handle.task_sha256.hex()[:8], *at)
    assert (found["status"], found["enclaves"], found["minimum_cohort"]) == ("spent", "emulated", 20)
    assert found["sampling"]["mode"] == "enclave_poisson"
    assert [entry["uploads"] for entry in found["cohorts"]] == [40, 40]
    assert [entry["expected_drawn"] for entry in found["cohorts"]] == [20.0, 20.0]
    assert found["rounds"] == {"planned": 2, "charged": 2, "released": 2, "void": 0, "unreleased": 0}
    assert 7.9 < found["epsilon"]["at_delta"] <= 8.0
    assert found["hashes"]["code"].startswith("sha384:")


def test_a_plan_as_table_and_json(odp: Odp) -> None:
    asked = ("privacy", "plan", "--epsilon", "2", "--rounds", "10", "--population", "1000")
    assert "> sigma" in odp(*asked).out
    found = odp(*asked, "--json").json
    assert found["solved_for"] == "sigma"
    assert found["possible"]
    hopeless = odp(*asked, "--dimension", "10000000")
    assert "cannot be done" in hopeless.out
    assert "it would take: a population of" in hopeless.out
    with pytest.raises(ConfigurationError, match="missing: sigma, rounds"):
        odp("privacy", "plan", "--epsilon", "2", "--population", "1000")


def test_a_plan_of_a_task_file(odp: Odp, task_file: Path) -> None:
    text = odp("privacy", "plan", "--task", task_file).out
    for name in ("counts", "mass", "sums", "gram", "targets", "clear from"):
        assert name in text
    assert not odp("privacy", "plan", "--task", task_file, "--population", "5", "--json").json["possible"]
    with pytest.raises(ConfigurationError, match="--rounds is the task file's own"):
        odp("privacy", "plan", "--task", task_file, "--rounds", "3")


def test_a_certificate_against_reconstruction_as_text_and_json(odp: Odp, tmp_path: Path) -> None:
    asked = ("privacy", "reconstruction", "--dimension", 100, "--correlation", 0.5)
    assert odp(*asked, "--epsilon", 4, "--json").json["probability"] == pytest.approx(2.778e-6, rel=5e-4)
    twice = odp(*asked, "--epsilon", 2, "--participations", 2)
    assert "2.778e-06 after every possible report" in twice.out
    assert "uniform on the sphere" in twice.out
    assert "no protection" in odp(*asked, "--epsilon", 50).out
    words = tmp_path / "words.txt"
    words.write_text("0.5\n0.25\n0.01\n")
    exact = odp(
        "privacy", "reconstruction", "--epsilon", 1, "--dictionary", words, "--recall", 1, "--precision", 1, "--json"
    )
    assert exact.json["prior_probability"] == pytest.approx(0.5 * 0.75 * 0.99)


def test_a_certificate_counts_every_round_of_a_ledger_and_is_refused_for_gaussian_noise(
    odp: Odp, ledger: Path, tmp_path: Path
) -> None:
    found = Ledger("phones")
    for number in range(2):
        found = found.charge(
            task_id=TASK, round=number, events=(LocalReport("direction", 1.5),), contributions=120, population_size=130,
            id_set_sha256=bytes(32), task_budget=Budget(8.0, 1e-6), population_budget=Budget(20.0, 1e-5),
        )  # fmt: skip
    path = tmp_path / "local.json"
    path.write_bytes(found.encode())
    asked = ("privacy", "reconstruction", "--dimension", 100, "--correlation", 0.5)
    assert odp(*asked, "--ledger", path, "--task", "abab", "--json").json["epsilon"] == 3.0
    with pytest.raises(PrivacyError, match="counts is not a report with pure epsilon"):
        odp(*asked, "--ledger", ledger)
    with pytest.raises(PrivacyError, match="delta=1e-06 is not pure epsilon"):
        odp(*asked, "--epsilon", 4, "--delta", 1e-6)
    with pytest.raises(ConfigurationError, match="exactly one of --dimension and --dictionary"):
        odp("privacy", "reconstruction", "--epsilon", 4)
    with pytest.raises(ConfigurationError, match="exactly one of --epsilon and --ledger"):
        odp(*asked)
    with pytest.raises(ConfigurationError, match="No task of the ledger"):
        odp(*asked, "--ledger", path, "--task", "cd")
    with pytest.raises(ConfigurationError, match="one number per line"):
        odp("privacy", "reconstruction", "--epsilon", 4, "--dictionary", tmp_path / "none.txt")

"""The tutorials run from an empty folder: every file, every line of Python and every command, in order."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from documentation import running
from documentation.code_blocks import ROOT, Block, blocks_of

import odp

TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_every_tutorial_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for page in TUTORIALS.glob("*.md"):
        assert page.stem == "README" or f'run_page("{page.stem}")' in source, page.name


# `labelled-data` is the tutorial of a simulation that CI runs.
@pytest.mark.proof
@pytest.mark.processes
def test_the_first_model_runs(folder: Path) -> None:
    names = run_page("first-model")
    assert names["errors"][0.5] > names["errors"][2] > names["errors"][8]
    assert (folder / "first-model.svg").stat().st_size > 1000
    assert "films" in (folder / "run" / "report.html").read_text(encoding="utf-8")


# As above; tests/cli has each command of this page.
@pytest.mark.proof
@pytest.mark.processes
def test_own_data_runs(folder: Path) -> None:
    run_page("your-own-data")
    assert (folder / "run" / "report.html").is_file()
    assert (folder / "comparison" / "comparison.json").is_file()


@pytest.mark.processes
def test_a_labelled_table_becomes_a_classifier(folder: Path) -> None:
    names = run_page("labelled-data")
    assert names["classifier"].classes == ("ham", "spam")
    assert float(names["classifier"].facts["epsilon"]) <= 1
    record = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["test_examples"]["accuracy"] > 0.8


@pytest.mark.processes
def test_a_device_in_an_app_runs(folder: Path) -> None:
    names = run_page("device-in-your-app")
    assert 0.49 < names["spent"] <= 0.5


@pytest.mark.processes
def test_an_audited_task_runs(folder: Path) -> None:
    run_page("audited-task")
    assert (folder / "odp-state" / "reference_values.json").is_file()


# Two trainings on real services. CI runs `audited-task` on them; `odp init` of a table, its app and its catalogue are
# in cli/test_init.py and e2e/test_catalogues.py.
@pytest.mark.proof
@pytest.mark.processes
def test_recommendations_on_devices_run(folder: Path) -> None:
    run_page("recommend-on-devices")
    for project in ("shop", "player"):
        task = odp.load_task(folder / project / "task.toml")
        assert task.factorization.catalogue == odp.items.Catalogue.load(folder / project / "items.catalogue")


# Only where TensorFlow is: `make test-keras` has this file on its list.
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: make test-keras"
)
def test_a_federated_keras_network_is_trained(folder: Path) -> None:
    assert run_page("federated-keras")["accuracy"] > 0.8


def test_own_data_takes_at_most_ten_commands() -> None:
    commands = [line for block in _blocks("your-own-data", "bash") for line in block.text.splitlines()]
    assert len(commands) + len(_blocks("your-own-data", "python")) <= 10


def test_a_private_classifier_takes_three_commands() -> None:
    """Without the invented table: two commands, and Python that names classes."""
    commands = [line for block in _blocks("labelled-data", "bash") for line in block.text.splitlines()]
    blocks = _blocks("labelled-data", "python")
    assert [line.split()[:2] for line in commands if line.startswith("odp")] == [["odp", "data"], ["odp", "simulate"]]
    assert len(blocks) == 2
    assert len(blocks[1].text.splitlines()) <= 5


def test_a_table_becomes_recommendations_in_at_most_six_commands() -> None:
    commands = [line for block in _blocks("recommend-on-devices", "bash") for line in block.text.splitlines()]
    shop = [line for line in commands if "player" not in line and "pip" not in line]
    assert len(shop) <= 6
    assert len(commands) - 1 - len(shop) + 1 <= 6  # the services run already


def test_an_app_with_a_device_takes_at_most_forty_lines() -> None:
    """The service and the app of the tutorial together, all of its four steps."""
    blocks = _blocks("device-in-your-app", "python")
    assert sum(bool(line.strip()) for block in blocks for line in block.text.splitlines()) <= 40


def _blocks(name: str, language: str) -> list[Block]:
    return [block for block in blocks_of(TUTORIALS / f"{name}.md") if block.language == language]


def run_page(name: str) -> dict[str, Any]:
    """Runs the page in the working folder; returns the names that its Python has defined."""
    return running.run_page(TUTORIALS / f"{name}.md")

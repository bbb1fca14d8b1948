"""`odp init` makes a project whose own tests and commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import odp
from odp.cli.projects import make_project
from odp.datasets import synthetic_movielens
from odp.errors import ConfigurationError
from odp.operations.local.processes import ODP

SMALL = "synthetic:n_users=120,n_items=20,ratings_per_user=8"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if tuple(command[: len(ODP)]) != ODP:  # the project's own code
        environment |= {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=600, cwd=folder, env=environment, check=False
    )


@pytest.mark.processes
def test_the_project_passes_its_own_tests_and_its_first_commands_run(tmp_path: Path) -> None:
    made = _run([*ODP, "init", "my-app", "--data", SMALL], tmp_path)
    assert made.returncode == 0, made.stderr
    project = tmp_path / "my-app"
    assert sorted(path.name for path in project.iterdir()) == [
        ".gitignore", "README.md", "app.py", "items.catalogue", "task.toml", "test_app.py",
    ]  # fmt: skip
    tested = _run([sys.executable, "-m", "unittest"], project)
    assert tested.returncode == 0, tested.stderr
    assert "Ran 2 tests" in tested.stderr
    assert "<simulation of task 'my-app': " in tested.stdout
    simulated = _run([*ODP, "simulate", "task.toml", "--data", SMALL, "--no-baselines", "--json"], project)
    assert simulated.returncode == 0, simulated.stderr
    summary = json.loads(simulated.stdout.splitlines()[-1])
    assert (summary["task"], 0 < summary["epsilon"] <= 8) == ("my-app", True)
    key = odp.items.Catalogue.load(project / "items.catalogue").keys[3]
    rated = _run([sys.executable, "app.py", "rate", key, "5"], project)
    assert (rated.returncode, rated.stdout) == (0, f"kept on this device: {key} has 5; it was sent to nobody\n")
    assert _run([sys.executable, "app.py", "privacy"], project).returncode == 0
    wrong = _run([sys.executable, "app.py", "rate", "3", "5"], project)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "Expected item='3' to be in version 1 of the catalogue of 'my-app'" in wrong.stderr
    assert "is no state folder of `odp up`" in _run([sys.executable, "app.py", "recommend"], project).stderr
    alone = _run([sys.executable, "app.py", "learn"], project)
    assert alone.returncode == 1
    assert re.fullmatch(r"app: .* is no state folder of `odp up`; start it first, .*\n", alone.stderr)
    # What the device keeps belongs into no repository.
    assert (project / "device" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_own_data_are_named_by_their_path_and_fit_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratings = synthetic_movielens(n_users=130, n_items=25, ratings_per_user=6)
    ratings.save(tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    task = make_project(Path("films"), data="mine.npz").task
    assert odp.load_task(tmp_path / "films" / "task.toml") == task
    assert (task.name, task.population, task.factorization.items, task.cohort.goal) == ("films", "films", 25, 130)
    text = (tmp_path / "films" / "app.py").read_text(encoding="utf-8")
    assert f"DATA, COLUMNS, TITLES = {str(tmp_path / 'mine.npz')!r}, {{}}, None\n" in text
    compile(text, "app.py", "exec")
    readme = (tmp_path / "films" / "README.md").read_text(encoding="utf-8")
    assert "--devices 129 " in readme
    assert "$" not in readme


def test_the_app_of_a_project_is_short(tmp_path: Path) -> None:
    make_project(tmp_path / "app", data=SMALL)
    assert len((tmp_path / "app" / "app.py").read_text(encoding="utf-8").splitlines()) <= 50


def test_a_folder_that_holds_something_or_has_no_name_of_a_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"full is not empty; give the name of a new folder"):
        make_project(tmp_path / "full")
    with pytest.raises(ConfigurationError, match=r"mine.txt is a file"):
        make_project(tmp_path / "full" / "mine.txt")
    for name in ("My App", "ünder", "-x", "a" * 65):
        with pytest.raises(ConfigurationError, match=r"Expected project=.* to be 1 to 64 characters"):
            make_project(tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(odp.errors.DataError, match="nowhere"):
        make_project(tmp_path / "new", data="nowhere")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.processes
def test_a_table_of_ones_own_is_read_by_its_columns_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odp-platform[data]'")
    ratings = synthetic_movielens(n_users=120, n_items=20, ratings_per_user=8)
    rows = zip(ratings.users().tolist(), ratings.items.tolist(), ratings.values.tolist(), strict=True)
    lines = ["who,what,stars", *(f"user {user},film {item},{value:g}" for user, item, value in rows)]
    (tmp_path / "my films.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--user", "who", "--item", "what", "--value", "stars", "--low", "1", "--high", "5"]
    made = _run([*ODP, "init", "films", "--data", "my films.csv", *options], tmp_path)
    assert made.returncode == 0, made.stderr
    project = tmp_path / "films"
    tested = _run([sys.executable, "-m", "unittest"], project)
    assert tested.returncode == 0, tested.stderr
    # The printed command is the one that works.
    (command,) = re.findall(r"^  odp (simulate .*)$", made.stdout, re.MULTILINE)
    assert command in (project / "README.md").read_text(encoding="utf-8")
    simulated = _run([*ODP, *shlex.split(command), "--no-baselines", "--json"], project)
    assert simulated.returncode == 0, simulated.stderr
    assert json.loads(simulated.stdout.splitlines()[-1])["task"] == "films"

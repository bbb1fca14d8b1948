"""What was guessed of a table, and how many rows were left out, stands beside every result of that table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import device_runtime
import odp as platform
from device_runtime.host.provision import provision

GUESSED = "guessed: ratings in 'stars' are from 1 to 10"
SKIPPED = "2 bad rows were left out"
REPEATED = "3 rows name a user and an item again: the newest row of each pair counts"
PEOPLE = 120
PRIVACY = """\
[privacy]
epsilon = 8.0
delta = 1e-4
[cohort]
minimum = 20
goal = 120
"""
TASK = f"""\
name = "club"
[model]
items = 12
rank = 1
[data]
low = 1
high = 10
{PRIVACY}"""
QUESTION = f"""\
name = "club"
[queries.stars]
kind = "mean"
low = 1
high = 10
{PRIVACY}"""
COLUMNS = ("--user", "member", "--item", "film", "--value", "stars", "--on-error", "skip")
NAMES = {"user": "member", "item": "film", "value": "stars", "on_error": "skip"}


@pytest.fixture
def club(tmp_path: Path) -> Path:
    """A table of 120 members, 12 films and ten stars, with two bad rows, three repeated ones and no declared scale."""
    chance = np.random.default_rng(2)
    lines = ["member,film,stars"]
    for member in range(PEOPLE):
        for film in chance.choice(12, size=8, replace=False).tolist():
            stars = int(np.clip(round(float(chance.normal(4 + film % 5, 1.5))), 1, 10))
            lines.append(f"m{member},film {film},{stars}")
    lines += [*lines[1:4], "m1,film 1,many", "m2,film 2"]
    file = tmp_path / "club.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`odp device run` fills its stores, and ends."""

    class Ended:
        def join(self, timeout: float) -> bool:
            return True

    def start(config: Any, *, ratings: Any, examples: Any) -> Ended:
        provision(tmp_path / "devices", ratings)
        return Ended()

    monkeypatch.setattr(device_runtime, "start", start)


def commands(club: Path, folder: Path) -> dict[str, tuple[object, ...]]:
    task, question = folder / "task.toml", folder / "question.toml"
    task.write_text(TASK)
    question.write_text(QUESTION)
    budget = ("--lifetime-epsilon", "8", "--delta", "1e-4")
    return {
        "simulate": ("simulate", task, "--data", club, "--no-baselines", "--json"),
        "ask": ("simulate", question, "--data", club, "--json"),
        "compare": ("compare", "--data", club, "--epsilons", "8", "--delta", "1e-4", "--seeds", "1", "--json"),
        "tune": ("tune", "--proxy", club, "--delta", "1e-4", "--trials", "1", "--json"),
        "retrain": ("retrain", club, *budget, "--horizon", "1w", "--no-scratch", "--json"),
        "run": ("device", "run", "--population", "club", "--data", club),
        "info": ("data", "info", club, "--json"),
        "check": ("data", "check", club, "--json"),
        "init": ("init", folder / "project", "--data", club),
    }


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("name", ["simulate", "ask", "compare", "tune", "retrain", "run", "info", "check", "init"])
@pytest.mark.slow
def test_every_command_says_what_it_guessed_and_left_out(
    odp: Callable[..., Any], club: Path, tmp_path: Path, name: str
) -> None:
    command = commands(club, tmp_path)[name]
    printed = odp(*command, *COLUMNS)
    # Neither a question nor a device needs a scale.
    guess = name not in ("ask", "run")
    told = " ".join((printed.out + printed.err).split())
    assert SKIPPED in told
    assert REPEATED in told
    assert (GUESSED in told) == guess
    if "--json" in command:
        notes = " ".join(printed.json["notes"])
        assert SKIPPED in notes
        assert REPEATED in notes
        assert (GUESSED in notes) == guess


def test_results_in_python_say_it_too(club: Path, tmp_path: Path) -> None:
    table = platform.load(club, **NAMES)
    commands(club, tmp_path)
    results: list[Any] = [
        platform.simulate(platform.load_task(tmp_path / "task.toml"), table),  # type: ignore[arg-type]
        platform.simulate(platform.load_task(tmp_path / "question.toml"), table),  # type: ignore[arg-type]
        platform.compare(table, epsilons=(8,), delta=1e-4, seeds=(1,), methods=("user mean",)),
        platform.tune(table, private=False, delta=1e-4, trials=1),
    ]
    for found in results:
        assert found.notes == table.notes
        assert len(table.notes) == 3
        assert found.to_json()["notes"] == list(table.notes)
        assert SKIPPED in repr(found)
        assert REPEATED in repr(found)
        assert GUESSED in repr(found)


def test_pages_say_it_too(club: Path, tmp_path: Path) -> None:
    table = platform.load(club, **NAMES)
    found = platform.compare(table, epsilons=(8,), delta=1e-4, seeds=(1,), methods=("user mean",))
    assert SKIPPED in found.report(tmp_path / "comparison.html").read_text()
    searched = platform.tune(table, private=False, delta=1e-4, trials=1)
    assert SKIPPED in searched.report(tmp_path / "search.html").read_text()


def test_a_guess_outlives_the_file_that_it_was_saved_to(club: Path, tmp_path: Path) -> None:
    platform.load(club, **NAMES).save(tmp_path / "club.npz")
    assert "guessed" in platform.load(tmp_path / "club.npz").notes[0]
    platform.load(club, **NAMES, low=1, high=10).save(tmp_path / "declared.npz")
    assert platform.load(tmp_path / "declared.npz").notes == (
        "3 rows name a user and an item again: each pair counts once",
    )
    platform.load(tmp_path / "declared.npz").save_folder(tmp_path / "declared")
    assert platform.Ratings.open_folder(tmp_path / "declared").notes == platform.load(tmp_path / "declared.npz").notes


def test_a_retraining_takes_the_columns_of_its_tables_and_of_no_invented_ratings(odp: Callable[..., Any]) -> None:
    with pytest.raises(platform.errors.ConfigurationError, match="--on-error is for tables"):
        odp("retrain", "--on-error", "skip")

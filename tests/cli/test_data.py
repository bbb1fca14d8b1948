"""`odp data`: sizes of data sets, and digests as given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Printed

import odp as library
from odp.cli.data import _digests
from odp.errors import ConfigurationError, DataError

Odp = Callable[..., Printed]


def test_info_prints_sizes_and_no_ratings(odp: Odp) -> None:
    data = "synthetic:n_users=130,n_items=30,ratings_per_user=12"
    found = odp("data", "info", data, "--json").json
    assert (found["users"], found["items"], found["low"], found["high"]) == (130, 30, 1.0, 5.0)
    assert found["density"] == pytest.approx(found["ratings"] / 3900)
    assert "users      130\n" in odp("data", "info", data).out


def test_list_names_what_can_be_fetched(odp: Odp) -> None:
    assert "ml-1m" in odp("data", "list").out


def test_digests_are_one_or_one_per_file() -> None:
    assert _digests([]) is None
    assert _digests(["ab"]) == "ab"
    assert _digests(["a.csv=ab", "b.csv=cd"]) == {"a.csv": "ab", "b.csv": "cd"}
    for mixed in (["ab", "cd"], ["ab", "b.csv=cd"]):
        with pytest.raises(ConfigurationError, match="one --sha256 DIGEST, or --sha256 FILE=DIGEST for each file"):
            _digests(mixed)


@pytest.fixture
def club(tmp_path: Path) -> Path:
    """A table of 200 members, 30 films and ten stars."""
    chance = np.random.Generator(np.random.PCG64(2))
    lines = ["member,film,stars,when"]
    for member in range(200):
        for film in chance.choice(30, size=12, replace=False).tolist():
            stars = int(np.clip(round(float(chance.normal(4 + film % 5, 1.5))), 1, 10))
            lines.append(f"m{member},film {film},{stars},2024-01-{1 + film % 28:02d}")
    file = tmp_path / "club.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


COLUMNS = ("--user", "member", "--item", "film", "--value", "stars", "--time", "when")


def test_check_says_what_a_table_holds_and_what_fits(odp: Odp, club: Path, tmp_path: Path) -> None:
    found = odp("data", "check", str(club), *COLUMNS, "--output", str(tmp_path / "check"))
    for part in (
        "rows        2,400, of which 0 are bad",
        "users       200",
        "ratings from 1 to 10",
        "by time",
        "next:",
    ):
        assert part in found.out
    assert (tmp_path / "check" / "check.svg").read_text().startswith("<?xml")
    task = library.load_task(tmp_path / "check" / "task.toml")
    assert isinstance(task, library.Task)
    assert (task.name, task.factorization.items, task.data.high) == ("club", 30, 10.0)  # type: ignore[union-attr]
    paths = [str(tmp_path / "check" / "task.toml"), "--data", str(club), "--output", str(tmp_path / "run")]
    assert odp("simulate", *paths, *COLUMNS, "--json").json["rounds"]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["task"]["model"]["catalogue"] == "version 1 of the catalogue of 'club': 30 items"


def test_check_counts_bad_rows_and_exits_with_1(odp: Odp, club: Path) -> None:
    with club.open("a") as file:
        file.write("x,y,many,2024-01-01\nx,y\n")
    found = odp("data", "check", str(club), *COLUMNS, code=1)
    assert "2,402, of which 2 are bad" in found.out
    assert "line 2402" in found.out
    assert "--on-error skip" in found.out
    skipped = odp("data", "check", str(club), *COLUMNS, "--on-error", "skip", "--json").json
    assert skipped["bad_rows"] == 2
    assert skipped["positions_are"] == "line"
    assert skipped["users"] == 200


def test_every_command_with_data_takes_a_table(odp: Odp, club: Path, tmp_path: Path) -> None:
    compared = odp("compare", "--data", str(club), *COLUMNS, "--epsilons", "8", "--seeds", "1", "--json").json
    assert compared["data"] == "club"
    assert odp("data", "info", str(club), *COLUMNS, "--json").json["name"] == "club"
    with pytest.raises(DataError, match=r"no column of users was recognised; name one with user=.. \(--user"):
        odp("simulate", "--preset", "auto", "--data", str(club))
    implicit = odp("data", "info", str(club), *COLUMNS, "--implicit", "--json").json
    assert implicit["implicit"] is True

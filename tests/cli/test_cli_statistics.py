"""Statistics as a person asks for them: `odp task new --statistics`, `show`, `simulate`, `submit`, `results`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import TASK, Printed
from e2e.world import World

from odp.datasets import load
from odp.errors import ConfigurationError, DataError
from odp.tasks.file import load_task, parse_task

Odp = Callable[..., Printed]

DATA = "synthetic:n_users=60,n_items=12,ratings_per_user=6,seed=3"
ASKED = """\
name = "films"
[queries.items]
bins = 12
[queries.stars]
kind = "mean"
low = 1.0
high = 5.0
[privacy]
epsilon = 2.0
delta = 1e-5
[cohort]
minimum = 20
goal = 60
"""


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    path.write_text(ASKED)
    return path


def test_the_file_to_start_from_and_what_show_prints_are_the_same_task(odp: Odp, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    odp("task", "new", path, "--statistics")
    shown = odp("task", "show", path).out
    assert parse_task(shown) == load_task(path)
    assert "# 1 rounds; planned epsilon 1.000000" in shown
    assert "# round 0: statistics: sensitivity 1, noise std " in shown
    assert "# grid_bits = " in shown
    assert odp("task", "show", path, "--json").json["definition"]["statistics"]["queries"][0]["name"] == "hours"


def test_a_simulation_shows_the_answer_beside_what_was_there(odp: Odp, asked: Path, tmp_path: Path) -> None:
    printed = odp("simulate", asked, "--data", DATA, "--output", tmp_path / "out", "--json")
    assert "without noise" in printed.err
    assert (tmp_path / "out" / "statistics.png").read_bytes().startswith(b"\x89PNG")
    found = printed.json
    assert 1.999 < found["epsilon"] <= 2.0
    assert [event["name"] for event in found["charges"]] == ["statistics"]
    exact = found["exact"]["queries"]["items"]["counts"]
    ratings = load(DATA)
    assert sum(exact) == pytest.approx(ratings.n_ratings, rel=1e-3)
    assert found["statistics"]["queries"]["items"]["counts"] != exact
    silent = odp("simulate", asked, "--data", DATA, "--no-noise", "--json").json
    assert (silent["epsilon"], silent["charges"]) == (None, [])
    assert silent["statistics"] == silent["exact"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "2"), "--epsilon goes with --preset"),
        (("--held-out", "5"), "--held-out is for models"),
        (("--features", "data"), "--features is for models"),
        (("--data", "synthetic:n_users=500"), "Expected 1 to 120 users"),
    ],
)
def test_what_makes_no_sense_for_statistics_is_one_line(
    odp: Odp, asked: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        odp("simulate", asked, "--data", DATA, *arguments)


@pytest.mark.slow
def test_results_are_printed_and_drawn_once_the_round_is_released(odp: Odp, asked: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world").start(stack)
        at = ("--server", world.server.address, "--state", world.root)
        identifier = odp("task", "submit", asked, *at).out.strip()
        with pytest.raises(ConfigurationError, match="has released nothing yet"):
            odp("task", "results", identifier, *at)
        devices = world.devices(load(DATA), until_finished=True)
        stack.callback(devices.stop)
        assert devices.join(600)
        picture = tmp_path / "picture.svg"
        printed = odp("task", "results", identifier[:9], *at, "--picture", picture, "--confidence", "0.5", "--json")
        assert "items: users per bin" in printed.err
        assert "stars: mean " in printed.err
        assert picture.read_text().lstrip().startswith("<?xml")
        found = printed.json
        assert (found["contributions"], found["confidence"]) == (60, 0.5)
        bars = found["queries"]["items"]
        assert all(
            low < count < high for low, count, high in zip(bars["low"], bars["counts"], bars["high"], strict=True)
        )
        with pytest.raises(DataError, match="cannot draw"):
            odp("task", "results", identifier, *at, "--picture", tmp_path / "picture.txt")
        model = tmp_path / "model.toml"
        model.write_text(TASK)
        other = odp("task", "submit", model, *at).out.strip()
        with pytest.raises(ConfigurationError, match="trains a model"):
            odp("task", "results", other, *at)


def test_show_of_a_task_with_noise_in_shares_names_its_graph_and_its_sharers(odp: Odp, asked: Path) -> None:
    asked.write_text(ASKED + 'aggregation = "secagg+"\nthreat = "semi-honest"\ncorrupt_fraction = 0.2\n')
    shown = odp("task", "show", asked).out
    assert parse_task(shown) == load_task(asked)
    terms = load_task(asked).definition().cohort.secagg
    assert f"# 60 devices: each masks with {terms.neighbours} neighbours, {terms.threshold} shares rebuild" in shown
    assert f"variance v / {terms.sharers}, the fewest honest devices in any sum" in shown
    assert terms.sharers < 20
    found = odp("task", "show", asked, "--json").json
    assert 1.99 < found["planned_epsilon"] <= 2.0
    assert found["definition"]["cohort"]["secagg"]["sharers"] == terms.sharers


@pytest.mark.parametrize("roster", [False, True])
def test_show_says_what_the_noise_of_a_session_rests_on(odp: Odp, asked: Path, roster: bool) -> None:
    """With a roster, a number of its devices; without one, an assumption; and which epsilon holds where it is wrong."""
    named = f'roster_size = 200\nroster_sha256 = "{"ab" * 32}"\n' if roster else ""
    asked.write_text(ASKED + f'aggregation = "secagg+"\n{named}corrupt_fraction = 0.04\n')
    shown = odp("task", "show", asked).out
    alone = odp("task", "show", asked, "--json").json["epsilon_if_alone"]
    assert alone > 5
    (line,) = [line for line in shown.splitlines() if line.startswith("# assumed: ")]
    if roster:
        assert "at most 8 of the 200 devices on the roster work for the server, in any session" in line
    else:
        assert "an assumption about whoever the host lets in, since the task names no roster" in line
    assert line.endswith(f"if all others did, epsilon would be {alone:.4f}")


def test_simulated_statistics_with_noise_in_shares_charge_their_event(odp: Odp, asked: Path) -> None:
    asked.write_text(ASKED + 'aggregation = "secagg+"\n')
    found = odp("simulate", asked, "--data", DATA, "--json").json
    (charge,) = found["charges"]
    assert charge["mechanism"] == "distributed_discrete_gaussian"
    assert 1.99 < found["epsilon"] <= 2.0


def test_results_by_label_of_an_own_table_name_the_bins_in_csv_and_on_screen(odp: Odp, tmp_path: Path) -> None:
    table, task = tmp_path / "drinks.csv", tmp_path / "drinks.toml"
    names = ("tea", "SKU 7", "[b]café")
    rows = [f"u{user},{names[user % 3]}" for user in range(60)]
    table.write_text("\n".join(["user,item", *rows]) + "\n")
    task.write_text(ASKED.replace("bins = 12", 'labels = ["tea", "SKU 7", "[b]café"]').replace("films", "drinks"))
    stars = task.read_text().replace('[queries.stars]\nkind = "mean"\nlow = 1.0\nhigh = 5.0\n', "")
    task.write_text(stars)
    printed = odp("simulate", task, "--data", table, "--csv")
    assert "queries.items.labels" in printed.out.splitlines()[0]
    assert '""tea"", ""SKU 7""' in printed.out
    assert all(name in printed.err for name in names)
    table.write_text(table.read_text() + "u0,milk\n")
    with pytest.raises(
        DataError, match=r"has bins 'tea', 'SKU 7', .*: 1 of 4 items of data set 'drinks' have no bin: 'milk'"
    ):
        odp("simulate", task, "--data", table)

"""From a labelled table to a task, a simulation and devices: `odp data check`, `odp simulate` and `odp device run`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError, DataError
from odp.research.simulation.labelled_check import usable_rows

HEADER = ("reader", "Length", "has link", "Topic", "note", "Verdict")


def people(users: int = 60, *, rows: int = 6) -> list[list[Any]]:
    """Mails of readers; the label follows from the length, the link and the topic, nearly always."""
    generator = np.random.default_rng(3)
    found = []
    for user in range(users):
        for _ in range(rows):
            length, link = int(generator.integers(5, 900)), bool(generator.random() < 0.4)
            topic = str(generator.choice(["family", "news", "shop", "work"]))
            score = (length / 900 - 0.5) * 3 + 2.5 * link + 2 * (topic == "shop") - 1.5 - (topic == "family")
            verdict = "spam" if score + generator.normal() > 0 else "ham"
            found.append([f"r{user}", length, str(link).lower(), topic, f"text {len(found)}", verdict])
    return found


def write(path: Path, rows: Iterable[Iterable[Any]], header: Iterable[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


Run = Callable[..., Any]


@pytest.fixture(name="run")
def command(request: pytest.FixtureRequest) -> Run:
    """As the fixture ``odp``, whose name is that of the package."""
    found: Run = request.getfixturevalue("odp")
    return found


def check(run: Run, *arguments: object, code: int = 0) -> str:
    return str(run("data", "check", *arguments, code=code).out)


def test_a_labelled_table_becomes_a_task_and_a_classifier_with_its_class_names(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", people(150, rows=12))
    out = check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
    for told in ("numbers from 0 to 1000, guessed", "4 categories, guessed: family, news, shop, work", "free text",
                 "2 classes, guessed", "fits        ε = 2", "public once the task is"):  # fmt: skip
        assert told in out
    task = odp.load_task(tmp_path / "check" / "task.toml")
    assert isinstance(task, odp.Task)
    assert isinstance(task.data, odp.Examples)
    assert task.data.classes == ("ham", "spam")
    assert task.data.features["length"] == odp.Tensor((), 0, 1000, scale=1 / 1000)
    assert "# numbers from 0 to 1000, guessed\n" in (tmp_path / "check" / "task.toml").read_text(encoding="utf-8")
    summary = run("simulate", tmp_path / "check" / "task.toml", "--data", table, "--user", "reader", "--json").json
    assert summary["test_accuracy"] > 0.75
    assert summary["epsilon"] <= 2
    trained = odp.simulate(task, odp.data.load_examples(table, user="reader", label="Verdict"))
    assert isinstance(trained, odp.RunResult)
    assert trained.metrics["test_accuracy"] == pytest.approx(summary["test_accuracy"])
    mails = {"length": [800, 10], "has_link": [1, 0], "topic": ["shop", "family"]}
    assert trained.classify(mails).tolist() == ["spam", "ham"]


def test_what_few_people_have_is_in_no_proposed_task(run: Run, tmp_path: Path) -> None:
    """A task is public: a category or a class that one person has would tell of that person."""
    rows = people()
    rows[7][3], rows[8][5] = "my rare disease", "blackmail"
    table = write(tmp_path / "mail.csv", rows)
    out = check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
    written = (tmp_path / "check" / "task.toml").read_text(encoding="utf-8")
    assert "rare disease" not in written + out
    assert "blackmail" not in written
    assert "1 others, of fewer than 10 users each, are left out" in out
    assert "1 other labels, of fewer than 10 users each, are no class" in out
    with pytest.raises(DataError, match="have a label 'verdict' that the model does not take"):
        run("simulate", tmp_path / "check" / "task.toml", "--data", table, "--user", "reader")


@pytest.mark.parametrize("extreme", [901.0, 912.5, 999.0])
def test_a_proposed_range_follows_from_no_extreme_of_one_person(run: Run, tmp_path: Path, extreme: float) -> None:
    rows = people()
    for value in (extreme, extreme * 1000):
        rows[5][1] = value
        table = write(tmp_path / "mail.csv", rows)
        check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
        task = odp.load_task(tmp_path / "check" / "task.toml")
        assert isinstance(task, odp.Task)
        assert isinstance(task.data, odp.Examples)
        assert task.data.features["length"] == odp.Tensor((), 0, 1000, scale=1 / 1000)


def test_usable_rows_are_counted_before_a_task_is_submitted(run: Run, tmp_path: Path) -> None:
    rows = people()
    table = write(tmp_path / "mail.csv", rows)
    check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
    for place in range(6):
        rows[place][1] = ""  # all rows of one reader
    rows[10][3], rows[11][5] = "sport", ""
    rows[20][1] = "long"
    holed = write(tmp_path / "holed.csv", rows)
    task = tmp_path / "check" / "task.toml"
    out = check(run, holed, "--user", "reader", "--task", task, code=1)
    for told in (
        "rows        360, of which 1 are bad", "usable      351 of 359 rows, of 59 of 60 users",
        "left out    6 whose 'length' is not a number", "left out    1 whose 'topic' is none of its 4 categories",
        "left out    1 without a label 'verdict'", "no number as a value (column 'Length'): line 22",
    ):  # fmt: skip
        assert told in out, told
    found = json.loads(check(run, holed, "--user", "reader", "--task", task, "--on-error", "skip", "--json"))
    assert found["usable"]["used"] == 351
    assert found["usable"]["clamped"] == {}
    assert (found["usable"]["users"], found["usable"]["all_users"]) == (59, 60)


def test_numbers_beyond_a_declared_range_are_counted(run: Run, tmp_path: Path) -> None:
    """Of a range in other units all rows were one number, and all were usable without a word."""
    check(run, write(tmp_path / "mail.csv", people()), "--user", "reader", "--label", "Verdict", "--output", tmp_path)
    longer = [[row[0], row[1] * 60 + 1000, *row[2:]] for row in people()]
    table = write(tmp_path / "seconds.csv", longer)
    out = check(run, table, "--user", "reader", "--task", tmp_path / "task.toml")
    assert "usable      360 of 360 rows" in out
    assert "clamped     360 whose 'length' is beyond its range, and counts as its end" in out


def test_one_class_in_two_forms_of_unicode_is_one(run: Run, tmp_path: Path) -> None:
    labels = {"ham": ["caf\u00e9", "cafe\u0301"], "spam": ["bar", "bar"]}
    rows = [[*row[:-1], labels[row[-1]][place % 2]] for place, row in enumerate(people())]
    out = check(run, write(tmp_path / "mail.csv", rows), "--user", "reader", "--label", "Verdict", "--output", tmp_path)
    assert "2 classes, guessed" in out
    assert 'classes = ["bar", "caf\u00e9"]' in (tmp_path / "task.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("scale", "told"),
    [
        (1e-6, "numbers from 0 to 0.001"), (1e-3, "numbers from 0 to 1"), (1e300, "numbers beyond 1e+09"),
        (float("nan"), "no numbers"),
    ],
)  # fmt: skip
def test_a_range_is_as_small_as_the_numbers_are(run: Run, tmp_path: Path, scale: float, told: str) -> None:
    """Numbers of a millionth had a range to 1, in which no noise leaves anything of them."""
    rows = [[row[0], "" if scale != scale else row[1] * scale, *row[2:]] for row in people()]
    out = check(run, write(tmp_path / "mail.csv", rows), "--user", "reader", "--label", "Verdict")
    assert f"length    {told}" in out


def test_a_table_without_labels_says_so(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", [[*row[:-1], "NA"] for row in people()])
    with pytest.raises(DataError, match=r"missing \(360\); no row has a label"):
        check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "out")


def test_labels_that_a_task_does_not_take_are_named_before_it_is_submitted(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", people())
    check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
    other = write(tmp_path / "other.csv", [[*row[:-1], {"ham": "0", "spam": "1"}[row[-1]]] for row in people()])
    with pytest.raises(DataError, match="the model takes 'ham', 'spam'"):
        check(run, other, "--user", "reader", "--task", tmp_path / "check" / "task.toml")


def test_usable_rows_of_draw_and_discard_are_counted(tmp_path: Path) -> None:
    task = odp.DrawAndDiscard(
        name="mail", features={"length": odp.Number(low=0, high=1000), "has_link": odp.Boolean()}, epsilon=2.0,
        label="verdict",
    )  # fmt: skip
    rows = [[*row[:-1], {"ham": 0, "spam": 1}[row[-1]]] for row in people()]
    rows[3][1], rows[4][1] = 5000, ""
    found = usable_rows(task, odp.data.load_examples(write(tmp_path / "t.csv", rows), user="reader", label="Verdict"))
    assert (found.rows.used, found.rows.total, found.users) == (358, 360, 60)


def test_usable_ratings_are_counted_or_the_table_is_refused(run: Run, tmp_path: Path) -> None:
    ratings = odp.data.synthetic_movielens(n_users=120, n_items=30, ratings_per_user=8, seed=2)
    rows = [(user, item, value) for user in range(120) for item, value in zip(*ratings.user(user), strict=True)]
    table = write(tmp_path / "r.csv", rows, ("user", "item", "rating"))
    scale = ("--low", "1", "--high", "5")
    check(run, table, *scale, "--output", tmp_path / "check")
    out = check(run, table, *scale, "--task", tmp_path / "check" / "task.toml")
    assert f"usable      all {ratings.n_ratings:,} ratings, of 120 users" in out
    other = write(tmp_path / "more.csv", [*rows, (0, 99, 3)], ("user", "item", "rating"))
    with pytest.raises(DataError, match="31 items, the task's model items=30"):
        check(run, other, *scale, "--task", tmp_path / "check" / "task.toml")


def test_a_labelled_table_without_a_task_names_the_way_to_one(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", people())
    with pytest.raises(ConfigurationError, match="writes its file"):
        run("simulate", "--data", table, "--label", "Verdict")


def test_a_table_without_items_names_the_option_of_labels(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", people())
    with pytest.raises(DataError, match="--label"):
        check(run, table, "--user", "reader")


def test_devices_get_the_rows_that_a_simulation_reads(tmp_path: Path) -> None:
    from device_runtime.host.provision import provision
    from device_runtime.store.store import Store, store_path
    from odp.cli.device import people_of

    table = write(tmp_path / "mail.csv", people(3))
    given = people_of(str(table), None, None, None, {"user": "reader", "label": "Verdict"})
    assert isinstance(given, odp.data.ExampleColumns)
    assert provision(tmp_path / "devices", given, clock=lambda: 0.0) == 3
    data = odp.Examples(
        {"length": odp.Tensor((), 0, 1000), "topic": odp.Category(("family", "news", "shop", "work"))},
        label="verdict", classes=("ham", "spam"),
    )  # fmt: skip
    simulated = given.users_examples(data)
    with Store.open(store_path(tmp_path / "devices", 1)) as store:
        own = store.examples("examples").read(data.features, label="verdict", classes=("ham", "spam"), most=100)
    np.testing.assert_array_equal(own.features["length"], simulated.of(1)[0][:, 0])
    np.testing.assert_array_equal(np.array(["ham", "spam"])[own.values.astype(int)], simulated.of(1)[1])


def test_devices_are_given_nothing_of_a_table_with_bad_rows(tmp_path: Path) -> None:
    from odp.cli.device import people_of

    rows = people(3)
    rows[4][1] = "long"
    table = write(tmp_path / "mail.csv", rows)
    with pytest.raises(DataError, match="line 6"):
        people_of(str(table), None, None, None, {"user": "reader", "label": "Verdict"})


def test_a_label_of_many_numbers_becomes_a_range(run: Run, tmp_path: Path) -> None:
    rows = [[*row[:-1], row[1] * 0.01] for row in people(150)]
    table = write(tmp_path / "mail.csv", rows)
    out = check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "check")
    assert "label       numbers from 0 to 10, guessed" in out
    simulate = ("simulate", tmp_path / "check" / "task.toml", "--data", table, "--user", "reader", "--json")
    assert run(*simulate).json["test_loss"] < 10
    with pytest.raises(
        ConfigurationError, match="predicts classes, which a classifier names: this one predicts numbers"
    ):
        run(*simulate, "--export", tmp_path / "numbers.npz", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ranges_are_the_smallest_round_ones_that_hold_nearly_all(run: Run, tmp_path: Path) -> None:
    """A range that is too wide makes the feature too small beside the noise."""
    draws = np.random.default_rng(4).normal(size=(1600, 2))
    rows = [[f"u{row // 8}", *pair, 1 if sum(pair) > 0 else -1] for row, pair in enumerate(draws.tolist())]
    table = write(tmp_path / "table.csv", rows, ("user", "x", "y", "label"))
    assert "feature     x  numbers from -5 to 5, guessed" in check(run, table, "--label", "label")


def test_a_label_of_one_value_is_refused_by_its_name(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "mail.csv", [[*row[:-1], "ham"] for row in people()])
    told = r"label 'Verdict': 'ham' \(360\); one label in all rows, and nothing to learn"
    with pytest.raises(DataError, match=told):
        check(run, table, "--user", "reader", "--label", "Verdict", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()

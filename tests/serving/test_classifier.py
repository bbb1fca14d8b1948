"""A trained classifier as a file: it names classes as its task does, and says what is known of its privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import odp
from odp.errors import ConfigurationError, DataError
from odp.serving.export import SIMULATED

DATA = odp.Examples(
    {"x": odp.Tensor((2,), -1, 1), "day": odp.Category(("mon", "tue"))}, label="kind", classes=("low", "mid", "top")
)


def columns(count: int) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (count, 2))
    kinds = np.array(["low", "mid", "top"])[np.digitize(x[:, 0], [-0.3, 0.3])]
    return {"x": x, "day": generator.choice(["mon", "tue"], count), "kind": kinds}


@pytest.fixture(scope="module")
def run() -> odp.RunResult:
    task = odp.Task(
        name="kinds", model=odp.Glm("multinomial", 4, 3), data=DATA, privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        training=odp.DPFedAvg(rounds=4, rate=1.0, clip=1.0), cohort=odp.Cohort(minimum=10, goal=200),
    )  # fmt: skip
    people = odp.data.ExampleColumns.of_users(columns(2000), np.arange(2000) % 200)
    found = odp.simulate(task, people)
    assert isinstance(found, odp.RunResult)
    return found


def test_a_file_names_the_classes_that_the_run_names(run: odp.RunResult, tmp_path: Path) -> None:
    given = columns(50)
    written = odp.items.export_classifier(run, tmp_path / "kinds.npz")
    read = odp.items.Classifier.load(tmp_path / "kinds.npz")
    assert read.classes == ("low", "mid", "top")
    named = read.classify({name: given[name] for name in ("x", "day")})
    np.testing.assert_array_equal(named, run.classify(given))
    assert (named == given["kind"]).mean() > 0.6
    assert read.facts == written.facts
    assert (float(read.facts["epsilon"]), read.facts["signature"]) == (run.epsilon, SIMULATED)
    assert repr(read) == "<classifier of task 'kinds': low, mid, top>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"day": None}, "a column 'day'"), ({"day": ["mon", "sun"]}, "1 whose 'day' is none of its 2 categories"),
        ({"x": np.zeros((2, 3))}, r"'x' to hold numbers of shape \[2\]"),
        ({"x": [[0.0, np.nan], [0.0, 0.0]]}, "1 whose 'x' is not a number"),
    ],
)  # fmt: skip
def test_examples_that_cannot_be_used_are_named(run: odp.RunResult, change: dict[str, Any], message: str) -> None:
    given = {"x": np.zeros((2, 2)), "day": ["mon", "tue"], **change}
    with pytest.raises(DataError, match=message):
        odp.items.export_classifier(run).classify({name: one for name, one in given.items() if one is not None})


def test_frames_and_tables_are_classified_as_columns_are(tmp_path: Path) -> None:
    """A column of text of a frame was refused as no text, and what load_examples gives ended in an AttributeError."""
    task = odp.Task(
        name="mail", model=odp.Glm("logistic", 3), privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        data=odp.Examples(
            {"mail_length": odp.Tensor((), 0, 9), "topic": odp.Category(("a", "b"))}, label="label",
            classes=("no", "yes"),
        ),
        training=odp.DPFedAvg(rounds=1, clip=1.0), cohort=odp.Cohort(minimum=2, goal=2),
    )  # fmt: skip
    frame = pd.DataFrame(
        {"user": ["u", "v"], "Mail length": [1, 9], "Topic": ["a", "b"], "Label": ["no", "yes"], "on": [object()] * 2}
    )
    table = frame.drop(columns="on")
    run = odp.simulate(task, odp.data.load_examples(pd.concat([table] * 40)))
    classifier = odp.items.export_classifier(run)  # type: ignore[arg-type]
    expected = classifier.classify({"mail_length": [1, 9], "topic": ["a", "b"]}).tolist()
    polars, arrow = pl.from_pandas(table), pa.Table.from_pandas(table)
    categories = table.astype({"Topic": "category", "Mail length": "Int64"})
    for source in (frame, table, polars, arrow, categories, odp.data.load_examples(table), dict(frame)):
        assert classifier.classify(source).tolist() == expected
    for missing, why in ({"Topic": [None, "b"]}, "'topic' is none of its 2"), (
        {"Mail length": pd.array([None, 9], "Int64")}, "'mail_length' is not a number",
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"1 whose {why}"):
            classifier.classify(table.assign(**missing))
    with pytest.raises(DataError, match=r"Expected one column 'topic', as the task reads it .got Topic, TOPIC."):
        classifier.classify(table.assign(TOPIC="a"))
    with pytest.raises(DataError, match=r"by name, or a data frame .got a list."):
        classifier.classify([1, 2])


@pytest.mark.parametrize("broken", ["format", "definition", "parameters", "facts", "no numbers", "no json", "bytes"])
def test_a_damaged_file_is_one_clear_error(run: odp.RunResult, tmp_path: Path, broken: str) -> None:
    path = tmp_path / "kinds.npz"
    odp.items.export_classifier(run, path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != broken}
    match broken:
        case "no numbers":
            arrays["parameters"] = arrays["parameters"] * np.nan
        case "no json":
            arrays["facts"] = np.array("{")
        case "bytes":
            arrays["definition"] = arrays["definition"][::-1].copy()
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=r"kinds\.npz: (a damaged file|not a file) of a classifier"):
        odp.items.Classifier.load(path)


def test_what_is_no_classifier_is_refused(run: odp.RunResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"end in \.npz"):
        odp.items.export_classifier(run, tmp_path / "kinds.csv")
    with pytest.raises(ConfigurationError, match="handle of a task"):
        odp.items.export_classifier("kinds")  # type: ignore[arg-type]
    ratings = odp.data.synthetic_movielens(n_users=120, n_items=20, ratings_per_user=8)
    task = odp.Task(
        name="films", model=odp.MatrixFactorization(items=20, rank=2), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4), cohort=odp.Cohort(minimum=10, goal=120),
    )  # fmt: skip
    films = odp.simulate(task, ratings)
    assert isinstance(films, odp.RunResult)
    with pytest.raises(ConfigurationError, match="labelled examples"):
        odp.items.export_classifier(films)
    with pytest.raises(DataError, match="no such file"):
        odp.items.Classifier.load(tmp_path / "none.npz")

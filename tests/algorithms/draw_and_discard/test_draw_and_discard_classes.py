"""Classes of a response by their names: in simulations, on devices, in task files and in what a model predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, DataError
from odp.models.named_numbers import places_of
from odp.tasks.file import parse_task, render_task

USERS = 4000


def task(**changes: Any) -> odp.DrawAndDiscard:
    given: dict[str, Any] = {
        "name": "mail", "features": {"x": odp.Number(-1, 1)}, "epsilon": 20.0, "label": "verdict", "rate": 0.1,
        "classes": ("ham", "spam"),
    }  # fmt: skip
    return odp.DrawAndDiscard(**{**given, **changes})


def columns(names: tuple[str, ...]) -> dict[str, Any]:
    x = np.random.default_rng(1).uniform(-1, 1, USERS)
    return {"x": x, "verdict": np.array(names)[((x + 1) / 2 * len(names)).astype(int)]}


@pytest.mark.parametrize(
    ("family", "names", "ends"),
    [("logistic", ("ham", "spam"), ["ham", "spam"]), ("multinomial", ("low", "mid", "top"), ["low", "top"])],
)
def test_a_model_names_the_classes_that_its_column_has(family: str, names: tuple[str, ...], ends: list[str]) -> None:
    named = columns(names)
    people = odp.data.ExampleColumns.of_users(named, np.arange(USERS))
    model = task(family=family, classes=names).simulate(people, updates=USERS * 3, noise=False)
    assert model.classify({"x": [-0.9, 0.9]}).tolist() == ends
    assert model.measures(named)["accuracy"] > 0.6
    if family == "multinomial":
        assert "mid:x" in model.named


def test_names_train_the_model_that_numbers_train() -> None:
    named = columns(("ham", "spam"))
    numbered = named | {"verdict": (named["verdict"] == "spam").astype(int)}
    models = [
        task(classes=classes).simulate(odp.data.ExampleColumns.of_users(given, np.arange(USERS)), updates=500)
        for classes, given in ((("ham", "spam"), named), (1, numbered))
    ]
    np.testing.assert_array_equal(models[0].weights, models[1].weights)


def test_devices_read_names_by_the_signed_definition() -> None:
    terms = Terms.of(task().definition())
    assert terms.features.class_names == ("ham", "spam")
    read = terms.features.local_table(most_rows=10)
    assert read.classes == ("ham", "spam")
    labels = places_of(np.array(["spam", "ham", "other"]), read.classes)
    rows = LocalRows(np.zeros(3, np.int64), labels.astype(np.float64), {"x": np.zeros(3, np.float32)})
    assert terms.rows(rows)[1].tolist() == [1.0, 0.0]


def test_a_task_file_has_the_names() -> None:
    assert parse_task(render_task(task())) == task()
    assert task(classes=(-1, 1)).classes == ("-1", "1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a", "b", "c")}, "2 classes of the model"), ({"classes": ("a", "a")}, "distinct"),
        ({"classes": "no"}, "names of the classes"), ({"family": "linear"}, "predicts a number"),
    ],
)  # fmt: skip
def test_names_that_are_none_of_the_model_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        task(**changes)


def test_other_names_are_refused_with_those_that_the_model_takes() -> None:
    people = odp.data.ExampleColumns.of_users(columns(("ham", "egg")), np.arange(USERS))
    with pytest.raises(DataError, match=r"'egg'.*the model takes 'ham', 'spam', as classes= of odp.DrawAndDiscard"):
        task().simulate(people, updates=10)


def test_rows_that_cannot_be_named_are_refused() -> None:
    people = odp.data.ExampleColumns.of_users(columns(("ham", "spam")), np.arange(USERS))
    model = task().simulate(people, updates=10)
    with pytest.raises(DataError, match="1 of 2 are not"):
        model.classify({"x": [0.0, np.nan]})
    with pytest.raises(DataError, match="a column 'x'"):
        model.classify({"y": [0.0]})
    linear = task(family="linear", classes=1, label_low=0, label_high=1)
    numbers = {"x": np.zeros(5), "verdict": np.ones(5)}
    trained = linear.simulate(odp.data.ExampleColumns.of_users(numbers, np.arange(5)), updates=5)
    with pytest.raises(ConfigurationError, match="others predict numbers"):
        trained.classify({"x": [0.0]})

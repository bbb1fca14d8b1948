"""Categories whose names are digits: the number 5 of a column is the category "5", on a device as in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import odp
from device_runtime.host.provision import provision
from device_runtime.store.store import Store, store_path
from odp.algorithms.draw_and_discard.model import UsableRows
from odp.algorithms.draw_and_discard.terms import Terms as LocalTerms
from odp.algorithms.federated.reading import UsableTable, usable_rows
from odp.algorithms.federated.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.models.example_columns import ExampleColumns

STARS = np.array([1, 2, 3, 4, 5, 5, 1, 6])
NAMES = [("1", "2", "3", "4", "5"), ("5", "4", "3", "2", "1"), ("1", "2", "3", "4", "5", "none")]
KINDS = ["int64", "int8", "uint8", "float32", "float64", "str"]


def read_on_device(folder: Path, task: Any, columns: dict[str, npt.NDArray[Any]]) -> Any:
    """The rows of one device that was given ``columns``."""
    (declared,) = algorithm_for(task.definition()).local_data
    provision(folder, ExampleColumns.of_users(columns, np.zeros(len(STARS), dtype=np.int64)))
    with Store.open(store_path(folder, 0)) as store:
        return store.examples("examples").read(declared.features, label=declared.label, classes=declared.classes)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_trains_on_the_categories_that_a_simulation_has(
    tmp_path: Path, names: tuple[str, ...], kind: str
) -> None:
    columns = {"stars": STARS.astype(kind), "y": np.zeros(len(STARS), dtype=np.float32)}
    task = odp.Task(
        name="stars",
        model=odp.Glm("logistic", features=len(names)),
        data=odp.Examples({"stars": odp.Category(names)}, label="y"),
        training=odp.DPFedAvg(rounds=2),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=40),
    )
    terms = Terms.of(task.definition())
    on_device, _ = usable_rows(terms.model, terms.examples, read_on_device(tmp_path, task, columns))
    expected = [names.index(str(star)) for star in STARS if str(star) in names]
    assert on_device.ravel().tolist() == expected
    users = ExampleColumns.of_users(columns, np.zeros(len(STARS), dtype=np.int64)).users_examples(task.data)
    table = UsableTable.of(terms.model, terms.examples, users)
    assert table.features[table.reason == 0].ravel().tolist() == expected


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_report_is_about_the_categories_that_a_simulation_has(
    tmp_path: Path, names: tuple[str, ...], kind: str
) -> None:
    columns = {"stars": STARS.astype(kind), "y": np.zeros(len(STARS), dtype=np.float32)}
    task = odp.DrawAndDiscard(name="stars", epsilon=8.0, features={"stars": odp.Category(names)}, label="y")
    terms = LocalTerms.of(task.definition())
    numbers, _ = terms.rows(read_on_device(tmp_path, task, columns))
    places = [names.index(str(star)) for star in STARS if str(star) in names]
    expected = np.eye(len(names))[places][:, :-1]
    np.testing.assert_array_equal(numbers[:, 1:], expected)
    table = UsableRows.of(terms, columns)
    np.testing.assert_array_equal(table.numbers[table.reason == 0][:, 1:], expected)


@pytest.mark.parametrize(
    ("names", "values", "places"),
    [
        (("1.0", "2.0"), [1.0, 2.0], [None, None]), (("01", "02"), [1, 2], [None, None]),
        (("0.5", "1.5", "2"), [0.5, 1.5, 2], [0, 1, 2]), (("true", "false"), [1, 0], [0, 1]),
        (("false", "true", "maybe"), [1, 0, 2], [1, 0, None]), (("1", "0", "true"), [1, 0], [0, 1]),
        (("low", "high"), [1, 0], [1, 0]), (("infinity", "nan"), [1, 0], [1, 0]),
    ],
)  # fmt: skip
def test_a_number_is_no_place_among_names_of_numbers(
    names: tuple[str, ...], values: list[float], places: list[float | None]
) -> None:
    """Of ("1.0", "2.0") and ("01", "02"), 1 was the second name, and so it was of ("true", "false")."""
    for kind in ("float64", "float32", *(["int64", "uint8"] if all(value == int(value) for value in values) else [])):
        read = odp.Category(names).numbers(np.array(values, dtype=kind))
        assert read is not None
        np.testing.assert_array_equal(read, [np.nan if place is None else place for place in places])


def test_truth_values_of_a_device_have_the_class_that_a_table_gives_them(tmp_path: Path) -> None:
    """A table's labels True and False are the classes "true" and "false"; an app's were no class at all."""
    for classes in (("false", "true"), ("0", "1")):
        task = odp.Task(
            name="links",
            model=odp.Glm("logistic", features=1),
            data=odp.Examples({"x": odp.Tensor((), 0, 1)}, label="y", classes=classes),
            training=odp.DPFedAvg(rounds=2),
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
            cohort=odp.Cohort(minimum=20, goal=40),
        )
        columns = {"x": np.zeros(len(STARS)), "y": STARS > 2}
        rows = read_on_device(tmp_path / classes[0], task, columns)
        assert rows.values.tolist() == (STARS > 2).astype(float).tolist()

"""Labelled examples in a store: read as they were written, whatever else is there, and bounded."""

from __future__ import annotations

import base64
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runtime_ledger import participation, prepare
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import odp
from device_runtime.round.gate import Gate
from device_runtime.store.app_data import services
from device_runtime.store.database import Bounds, connected
from device_runtime.store.keyed_ratings import rate
from device_runtime.store.keys import host_key
from device_runtime.store.retention import Retention, prune
from device_runtime.store.schema import UPGRADES
from device_runtime.store.store import Store, store_path
from device_runtime.view.overview import export, overview
from odp.errors import ConfigurationError, DataError, StateError

DAY = 86_400.0
IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        yield store


TYPES = (np.uint8, np.bool_, np.int16, np.dtype(">i8"), np.float16, np.float32)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), batches=st.integers(1, 4))
def test_examples_are_read_as_they_were_written_in_their_order(store: Store, data: st.DataObject, batches: int) -> None:
    """Of batches with other types, only the types may change, to one that holds both."""
    store.erase()
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=4))
    written: list[dict[str, np.ndarray]] = []
    for _ in range(batches):
        count = data.draw(st.integers(0, 4))
        x = data.draw(arrays.arrays(data.draw(st.sampled_from(TYPES)), (count, *shape)))
        label = data.draw(arrays.arrays(data.draw(st.sampled_from(TYPES)), count))
        assert store.data("camera").examples.add({"x": x, "label": label}, time=7.0) == count
        written.append({"x": x, "label": label})
    rows = store.examples("examples.camera").read({"x": odp.Tensor(shape, -1, 1)}, label="label")
    assert set(rows.features) == {"x"}
    for found, name in ((rows.features["x"], "x"), (rows.values, "label")):
        expected = np.concatenate([one[name].astype(np.float64) for one in written])
        np.testing.assert_array_equal(found.astype(np.float64), expected)
    assert rows.features["x"].shape == (len(rows.values), *shape)
    np.testing.assert_array_equal(rows.items, np.arange(len(rows.values)))


def test_a_task_reads_examples_that_have_its_label_and_all_its_features_in_their_shapes(store: Store) -> None:
    examples = store.examples("examples")
    examples.add({"image": IMAGES, "digit": [1, 2, 3]}, time=2.0)
    examples.add({"image": IMAGES[:, :14], "digit": [4, 5, 6]}, time=1.0)
    examples.add({"image": IMAGES[:1].astype(np.float32), "digit": [7.5], "face": [1]}, time=1.0)
    examples.add({"image": IMAGES[:1]}, time=1.0)
    examples.add({"digit": [8]}, time=1.0)
    examples.add({"image": IMAGES[:1], "digit": np.zeros((1, 2))}, time=1.0)
    rows = examples.read({"image": odp.Tensor((28, 28), -1, 1)}, label="digit")
    assert rows.values.tolist() == [7.5, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(rows.features["image"], IMAGES[[0, 0, 1, 2]])
    assert examples.read({"image": odp.Tensor((28, 28), -1, 1)}, label="face").values.tolist() == [1.0]
    nothing = examples.read({"image": odp.Tensor((7, 7), -1, 1)}, label="digit")
    assert (nothing.values.shape, nothing.features["image"].shape) == ((0,), (0, 7, 7))


def test_the_bytes_of_an_image_take_their_own_size_and_little_more(store: Store) -> None:
    before = store.used_bytes()
    store.examples("examples").add(
        {"image": np.zeros((200, 28, 28), np.uint8), "digit": np.zeros(200, np.uint8)}, time=1.0
    )
    assert store.used_bytes() - before < 1.5 * 200 * 28 * 28
    large = np.zeros((3, 32, 32, 3), np.float32)
    assert store.examples("examples").add({"image": large, "kind": [0, 1, 2]}, time=1.0) == 3


def test_r345_no_more_of_an_example_is_read_than_the_tasks_own_numbers_say(store: Store) -> None:
    """Long texts, and columns that the task does not read, would fill the memory and hold up the device."""
    examples = store.examples("examples")
    texts = np.array([word + " word" * 5_000 for word in ("never", "word", "else", "ümlaut" * 400)])
    photos = np.zeros((4, 2**14), dtype=np.uint8)
    examples.add({"photo": photos, "said": texts, "label": np.arange(4.0), "size": np.ones((4, 2))}, time=0.0)
    examples.add({"label": np.array([9.0]), "said": np.array(["never word"]), "size": np.ones((1, 2))}, time=1.0)
    asked = {"said": odp.Text(("word", "never"), 2), "size": odp.Tensor((2,), 0.0, 1.0)}
    tracemalloc.start()
    read = examples.read(asked, label="label")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.values.tolist() == [0.0, 1.0, 2.0, 3.0, 9.0]
    known, unknown = read.features["said"][1, 0], read.features["said"][2, 0]
    never = read.features["said"][0, 0]
    assert read.features["said"].tolist() == [
        [never, known], [known, known], [unknown, known], [unknown, read.features["said"][3, 1]], [never, known],
    ]  # fmt: skip
    assert most < 2**19
    newest = examples.read(asked, label="label", most=2)
    assert newest.values.tolist() == [3.0, 9.0]
    row = {"photo": np.zeros((1, 2**17), dtype=np.uint8), "said": np.array(["word"]), "label": np.ones(1)}
    examples.add(row | {"size": np.ones((1, 2))}, time=2.0)
    assert examples.read(asked, label="label").values.tolist() == [0.0, 1.0, 2.0, 3.0, 9.0], "a long row is left out"


def test_examples_of_a_service_are_its_own(store: Store) -> None:
    store.data("camera").examples.add({"x": [1.0], "label": [1]}, time=1.0)
    store.examples("examples").add({"x": [2.0], "label": [2]}, time=1.0)
    for table, expected in (("examples", [2.0]), ("examples.camera", [1.0]), ("examples.music", [])):
        assert store.examples(table).read({"x": odp.Tensor((), -1, 1)}, label="label").values.tolist() == expected
    assert services(store) == ["camera"]
    with pytest.raises(ConfigurationError, match="table='ratings' to be 'examples'"):
        store.examples("ratings")


def test_the_person_sees_exports_and_erases_examples(store: Store) -> None:
    store.data("camera").examples.add({"x": IMAGES[:1, :2, :2], "label": [3], "score": [np.nan]}, time=5.0)
    store.examples("examples").add({"x": [0.5, np.inf], "label": [True, False]}, time=6.0)
    found = overview(store, Gate(), now=9.0)
    assert found["examples"] == 3
    assert found["services"]["camera"]["examples"] == 1
    everything = export(store, Gate(), now=9.0)
    assert everything["examples"] == [
        {"time": 6.0, "columns": {"label": True, "x": 0.5}}, {"time": 6.0, "columns": {"label": False, "x": None}},
    ]  # fmt: skip
    ((time, columns),) = ((one["time"], one["columns"]) for one in everything["services"]["camera"]["examples"])
    assert (time, columns["label"], columns["score"]) == (5.0, 3, None)
    assert (columns["x"]["type"], columns["x"]["shape"]) == ("|u1", [2, 2])
    assert base64.b64decode(columns["x"]["base64"]) == IMAGES[0, :2, :2].tobytes()
    store.erase()
    assert store.count_examples() == 0
    assert overview(store, Gate(), now=9.0)["services"] == {}


def test_examples_go_after_their_period(store: Store) -> None:
    examples = store.data("camera").examples
    for age in (1.0, 20.0, 40.0):
        examples.add({"x": [age], "label": [0]}, time=1000 * DAY - age * DAY)
    prune(store, Retention(examples=30.0), now=1000 * DAY)
    assert prune(store, Retention(examples=30.0), now=1000 * DAY) == 1
    assert examples.read({"x": odp.Tensor((), -1, 1)}, label="label").features["x"].tolist() == [20.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "1 to 128 columns"), ({"x": [1], "y": [1, 2]}, "the same length"), ({"x": 1.0}, "'x' of the examples"),
        ({"x": [["a"]]}, "array of numbers"), ({"x": [[1], [1, 2]]}, "array of numbers"), ({"x": [None]}, "numbers"),
        ({"x": np.zeros((2, 0))}, "none of them empty"), ({"x": np.zeros((1,) * 10)}, "at most 8 further axes"),
        ({"x": [1j]}, "array of numbers"), ({"X": [1]}, "column='X'"), ([1], "by name"),
        ({"x": np.zeros((1, 2**20 + 1), np.float32)}, "example_bytes=4194304"),
    ],
)  # fmt: skip
def test_what_is_no_example_is_refused_and_nothing_is_added(store: Store, columns: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        store.data("camera").examples.add(columns, time=1.0)
    assert store.count_examples() == 0


def test_a_service_has_a_bounded_number_of_examples_and_no_more_than_the_file_holds(store: Store) -> None:
    examples = store.data("camera", bounds=Bounds(examples=3)).examples
    examples.add({"x": [1, 2]}, time=1.0)
    with pytest.raises(DataError, match="at most examples=3 of service 'camera'"):
        examples.add({"x": [3, 4]}, time=1.0)
    store.examples("examples").add({"x": [3, 4]}, time=1.0)
    full = store.data("camera", bounds=Bounds(file_bytes=store.used_bytes() + 1000)).examples
    with pytest.raises(DataError, match="file_bytes"):
        full.add({"x": np.zeros((1, 2000), np.uint8)}, time=1.0)
    assert examples.count() == 2


@pytest.mark.parametrize("version", sorted(UPGRADES))
def test_a_store_of_a_version_before_gets_the_tables_and_keeps_its_rows(tmp_path: Path, version: int) -> None:
    path = store_path(tmp_path, 0)
    with Store.open_or_create(path) as store:
        store.rate(5, 4.5)
        prepare(store, participation())
        with store.transaction():
            store.execute("ALTER TABLE participations RENAME COLUMN report TO payload")
            if version < 9:
                store.execute("ALTER TABLE ratings DROP COLUMN key")
            if version < 8:
                store.execute("ALTER TABLE ratings DROP COLUMN id")
            if version < 7:
                store.execute("DROP TABLE keyed_ratings")
            if version == 5:
                store.execute("DROP TABLE examples")
            store.execute(f"PRAGMA user_version={version}")
    assert version in UPGRADES
    with Store.open(path) as store:
        assert store.ratings().items.tolist() == [5]
        assert [(line.report, line.sealed) for line in store.ledger()] == [(None, b"sealed")]
        assert store.data("camera").examples.add({"x": [1]}, time=1.0) == 1
    with Store.open(path) as store:
        assert store.count_examples() == 2
        rate(store, "Alien", 4.0)
    connection = connected(path, host_key(tmp_path).of_store(path))
    connection.execute("PRAGMA user_version=3")
    connection.close()
    with pytest.raises(StateError, match="version 3, not"):
        Store.open(path)

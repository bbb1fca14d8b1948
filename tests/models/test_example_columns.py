"""Examples of many users as columns: the same as those of a simulation, and read from files that are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError, DataError
from odp.models.examples import ExamplesTerms
from odp.v1 import common_pb2
from tests.models import hostile_archives

DATA = odp.Examples({"image": odp.Tensor((2, 3), 0, 255, scale=1 / 255), "age": odp.Tensor((), 0, 100)}, label="kind")


def terms_of(data: odp.Examples) -> ExamplesTerms:
    definition = common_pb2.TaskDefinition()
    data.write(definition)
    definition.examples.label_high = 9.0
    return ExamplesTerms.of(definition.examples)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_columns_of_a_simulations_users_give_a_model_the_same_numbers(kind: type, scale: float) -> None:
    generator = np.random.default_rng(1)
    users = odp.data.UsersExamples(
        generator.integers(0, 256, (9, 7)).astype(kind), np.arange(9, dtype=np.float32),
        np.array([0, 3, 3, 8], dtype=np.int64), np.array([0, 1, 1, 4]), scale,
    )  # fmt: skip
    people = odp.data.ExampleColumns.of(users, DATA)
    assert people.n_users == 3
    assert people.columns["image"].dtype == (kind if scale == 1.0 else np.float32)
    terms = terms_of(DATA)
    table, factor = terms.clamped(users.features, scale=users.scale)
    for user in range(3):
        columns = people.user(user)
        rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
        np.testing.assert_array_equal(columns["kind"], users.targets[rows])
        read = terms.matrix(columns, examples=len(rows))
        np.testing.assert_allclose(read, table[rows] * np.float32(factor), rtol=1e-6)
    assert people.first_users(1).user(0)["kind"].tolist() == [0.0]
    narrow = odp.Examples({"age": odp.Tensor((), 0, 100)})
    with pytest.raises(DataError, match="examples of 1 numbers"):
        odp.data.ExampleColumns.of(users, narrow)


def test_a_file_has_the_same_examples(tmp_path: Path) -> None:
    people = odp.data.ExampleColumns.of_users(
        {"x": np.arange(8, dtype=np.uint8).reshape(4, 2), "y": [1, 2, 3, 4]}, [3, 1, 1, 0]
    )
    people.save(tmp_path / "people.npz")
    again = odp.data.ExampleColumns.load(tmp_path / "people.npz")
    assert again.n_users == 4
    for user in range(4):
        assert {name: one.tolist() for name, one in again.user(user).items()} == {
            name: one.tolist() for name, one in people.user(user).items()
        }
    with pytest.raises(DataError, match="no column 'user'"):
        odp.data.ExampleColumns.of_users({"user": [1]}, [0]).save(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": [1]}, "an array 'user'"), ({"user": [0], "x": [1, 2]}, "one for each of the 2"),
        ({"user": [-1], "x": [1]}, "users from 0"), ({"user": [0.5], "x": [1]}, "users from 0"),
        ({"user": [2**40], "x": [1]}, "users below"), ({"user": [0]}, "1 to 128 columns"),
        ({"user": [0], "X": [1]}, "column='X'"), ({"user": [0], "x": [["a"]]}, "array of numbers"),
        ({"user": [0], "x": [{}]}, "not a readable npz file"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    path = tmp_path / "people.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=message):
        odp.data.ExampleColumns.load(path)


def test_a_file_that_is_missing_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        odp.data.ExampleColumns.load(tmp_path / "people.npz")
    for content in (b"", b"PK\x03\x04 nonsense", b"\x93NUMPY"):
        (tmp_path / "people.npz").write_bytes(content)
        with pytest.raises(DataError, match="not a readable npz file"):
            odp.data.ExampleColumns.load(tmp_path / "people.npz")
    np.save(tmp_path / "people.npy", np.zeros(3))
    with pytest.raises(DataError, match="not a readable npz file"):
        odp.data.ExampleColumns.load(tmp_path / "people.npy")


@pytest.mark.parametrize("table", ["ratings", "events.music", "examples.", "digits"])
def test_a_table_of_something_else_is_refused(table: str) -> None:
    with pytest.raises(ConfigurationError, match="table="):
        odp.Examples({"x": odp.Tensor((), 0, 1)}, table=table)
    definition = common_pb2.TaskDefinition()
    DATA.write(definition)
    definition.examples.label_high = 1.0
    definition.examples.table = table
    with pytest.raises(ConfigurationError, match="table="):
        ExamplesTerms.of(definition.examples)


@pytest.mark.parametrize("kind", hostile_archives.KINDS)
@pytest.mark.parametrize("name", ["user", "x"])
def test_a_hostile_file_is_refused_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    with pytest.raises(DataError, match=r"hostile\.npz: "):
        odp.data.ExampleColumns.load(hostile_archives.write(tmp_path, kind, name))

"""The matrix of public item features: what is refused, and that bytes and hash name it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError
from odp.models.item_features import checked_item_features, item_features_from, item_features_sha256
from odp.tasks.file import load_task, render_task


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((4, 2)), "one row per item, 3 .got 4."),
        (np.ones(3), r"a matrix of real numbers .got float64 \[3\]."),
        (np.ones((3, 2), dtype=complex), "a matrix of real numbers .got complex128"),
        ([["a"], ["b"], ["c"]], "a matrix of real numbers"),
        (np.empty((3, 0)), "1 to 1024 columns .got 0."),
        (np.ones((3, 1025)), "1 to 1024 columns"),
        ([[1.0], [np.nan], [2.0]], "1 rows are not, the first is 1"),
        ([[1.0], [1.0], [np.inf]], "1 rows are not, the first is 2"),
        ([[1e300], [1.0], [2.0]], "finite float32"),
    ],
)
def test_a_bad_matrix_is_refused_in_one_line(given: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        odp.MatrixFactorization(items=3, rank=1, item_features=given)
    assert "\n" not in str(caught.value)


def test_the_model_keeps_a_read_only_copy_and_names_it_by_its_hash() -> None:
    given = np.arange(6.0).reshape(3, 2)
    model = odp.MatrixFactorization(items=3, rank=1, item_features=given)
    given[0, 0] = 9.0
    assert model.features is not None
    assert model.features[0, 0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        model.features[0, 0] = 1.0
    named = model.to_proto()
    expected = hashlib.sha256(np.arange(6, dtype="<f4").tobytes()).digest()
    assert (named.item_features_width, named.item_features_sha256) == (2, expected)


def test_models_are_equal_exactly_when_their_features_are() -> None:
    first, same, other = (
        odp.MatrixFactorization(items=2, rank=1, item_features=matrix)
        for matrix in ([[1, 0], [0, 1]], [[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 2]])
    )
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    assert first != odp.MatrixFactorization(items=2, rank=1)


def test_bytes_give_the_matrix_back_and_others_are_refused() -> None:
    matrix = checked_item_features(3, np.arange(6).reshape(3, 2))
    model = odp.MatrixFactorization(items=3, rank=1, item_features=matrix).to_proto()
    back = item_features_from(model, matrix.tobytes())
    assert back is not None
    np.testing.assert_array_equal(back, matrix)
    assert item_features_sha256(back) == model.item_features_sha256
    for data, message in ((b"", "24 bytes"), (matrix.tobytes()[:-4], "24 bytes"), (bytes(24), "SHA-256")):
        with pytest.raises(ConfigurationError, match=message):
            item_features_from(model, data)
    plain = odp.MatrixFactorization(items=3, rank=1).to_proto()
    assert item_features_from(plain, b"") is None
    with pytest.raises(ConfigurationError, match="0 bytes"):
        item_features_from(plain, bytes(4))


TASK = """name = "films"
[model]
items = 3
rank = 1
item_features = {value}
[data]
[privacy]
epsilon = 8.0
delta = 1e-6
"""


def test_a_task_file_names_a_matrix_beside_it(tmp_path: Path) -> None:
    matrix = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "features.npy", matrix)
    (tmp_path / "task.toml").write_text(TASK.format(value='"features.npy"'))
    task = load_task(tmp_path / "task.toml")
    assert task.model == odp.MatrixFactorization(items=3, rank=1, item_features=matrix)
    assert f"# item_features: 3 x 2, SHA-256 {task.model.features_sha256.hex()}" in render_task(task)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"missing.npy"', "cannot read item_features .*missing.npy"),
        ('"task.toml"', "is not a .npy or .npz file"),
        ("3", "Expected item_features to be the path of a .npy or .npz file"),
        ('"wide.npy"', "one row per item, 3 .got 4."),
        ('"two.npz"', "group 'a': Expected item_features to be a matrix"),
    ],
)
def test_a_task_file_with_a_bad_matrix_is_refused_with_its_line(tmp_path: Path, value: str, message: str) -> None:
    np.save(tmp_path / "wide.npy", np.ones((4, 2)))
    np.savez(tmp_path / "two.npz", a=np.ones(2), b=np.ones(2))
    (tmp_path / "task.toml").write_text(TASK.format(value=value))
    with pytest.raises(ConfigurationError, match=f"task.toml:5: .*{message}") as caught:
        load_task(tmp_path / "task.toml")
    assert "\n" not in str(caught.value)

"""Labelled examples from files and names: what is read is what was written, and what is malformed is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odp.datasets.example_files import examples_of_name
from odp.errors import ConfigurationError, DataError
from odp.models.examples import Examples, ExamplesTerms
from odp.models.features import Tensor
from odp.v1 import common_pb2
from tests.models import hostile_archives


def terms(**tensors: Tensor) -> ExamplesTerms:
    definition = common_pb2.TaskDefinition()
    Examples(tensors or {"x": Tensor((2, 2), -1.0, 3.0), "age": Tensor((), 0.0, 99.0)}, label="kind").write(definition)
    definition.examples.label_high = 2.0
    return ExamplesTerms.of(definition.examples)


def arrays(**changes: Any) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    given = {
        "x": generator.normal(size=(50, 2, 2)), "age": generator.integers(0, 99, 50), "kind": np.arange(50) % 3,
        "user": np.arange(50) // 5, "test": np.arange(50) % 10 == 0,
    }  # fmt: skip
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


def test_a_file_gives_its_examples(tmp_path: Path) -> None:
    written = arrays()
    np.savez(tmp_path / "people.npz", **written)
    split = examples_of_name(str(tmp_path / "people.npz"), terms(), classes=3)
    assert split.name == "people"
    assert split.train.n_users == 10
    assert (len(split.train.rows), len(split.test.rows)) == (45, 5)
    own = split.train.of(3)
    places = [15, 16, 17, 18, 19]
    np.testing.assert_allclose(own[0][:, :4], written["x"][places].reshape(5, 4).astype(np.float32))
    np.testing.assert_array_equal(own[0][:, 4], written["age"][places])
    np.testing.assert_array_equal(own[1], written["kind"][places])


def test_without_tests_a_tenth_is_drawn_by_the_seed(tmp_path: Path) -> None:
    np.savez(tmp_path / "people.npz", **arrays(test=None))
    name = str(tmp_path / "people.npz")
    first, again, other = (examples_of_name(name, terms(), classes=3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.test.features, again.test.features)
    assert 0 < len(first.test.rows) < 25
    assert first.test.features.shape != other.test.features.shape or (first.test.features != other.test.features).any()


@pytest.mark.parametrize("gone", [0, 4, 9])
def test_a_user_less_leaves_the_examples_of_others_in_their_parts(tmp_path: Path, gone: int) -> None:
    """And keeps their keys, from which seeds and coins follow."""
    whole = arrays(test=None, x=np.arange(200.0).reshape(50, 2, 2) / 100)
    rows = whole["user"] != gone
    np.savez(tmp_path / "whole.npz", **whole)
    np.savez(tmp_path / "fewer.npz", **{name: array[rows] for name, array in whole.items()})

    def tests(name: str) -> set[float]:
        split = examples_of_name(str(tmp_path / name), terms(), classes=3, seed=3)
        assert split.train.select_users(np.array([7, 2])).user_keys.tolist() == [7, 2]
        return set(split.test.features[:, 0].tolist())

    own = set(np.float32(whole["x"][~rows, 0, 0]).tolist())
    assert tests("fewer.npz") == tests("whole.npz") - own


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", **arrays(x=np.zeros((50, 2, 2), dtype=np.uint8), age=None))
    split = examples_of_name(str(tmp_path / "images.npz"), terms(x=Tensor((2, 2), 0.0, 255.0)), classes=3)
    assert split.train.features.dtype == np.uint8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": None}, "'age' is missing"), ({"x": np.zeros((50, 4))}, r"shape \[50, 2, 2\]"),
        ({"kind": np.zeros(49)}, r"shape \[50\]"), ({"user": np.zeros(50)}, "whole numbers"),
        ({"user": np.arange(50) - 1}, "whole numbers"), ({"user": np.full(50, 10**9)}, "whole numbers"),
        ({"test": np.zeros(50)}, "bool"), ({"test": np.ones(50, dtype=bool)}, "some examples"),
        ({"kind": np.array([b"a"] * 50)}, "numbers"), ({"user": np.zeros((50, 2), dtype=int)}, "shape"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "people.npz", **arrays(**change))
    with pytest.raises(DataError, match=message):
        examples_of_name(str(tmp_path / "people.npz"), terms(), classes=3)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="readable"):
        examples_of_name(str(tmp_path / "broken.npz"), terms(), classes=3)
    with pytest.raises(DataError, match="kind, user"):
        examples_of_name("ml-1m", terms(), classes=3)
    with pytest.raises(ConfigurationError, match="did you mean 'n_users'"):
        examples_of_name("synthetic:users=3", terms(), classes=3)


def test_invented_examples_have_the_declared_shape() -> None:
    split = examples_of_name("synthetic:n_users=30,examples_per_user=8,labels_per_user=1,seed=4", terms(), classes=3)
    assert split.train.n_users == 30
    assert len(split.train.rows) == 240
    assert split.train.features[:, :4].min() >= -1
    assert 50 < split.train.features[:, 4].max() <= 99
    kinds = [len(set(split.train.of(user)[1].tolist())) for user in range(30)]
    assert np.mean(kinds) < 1.3
    again = examples_of_name("synthetic:n_users=30,examples_per_user=8,labels_per_user=1,seed=4", terms(), classes=3)
    np.testing.assert_array_equal(split.train.features, again.train.features)
    definition = common_pb2.TaskDefinition()
    Examples({"x": Tensor((5,), 0.0, 1.0)}, label_low=-2.0, label_high=6.0).write(definition)
    real = examples_of_name("synthetic:n_users=5", ExamplesTerms.of(definition.examples), classes=None)
    assert -2 <= real.train.targets.min() < real.train.targets.max() <= 6


@pytest.mark.parametrize("kind", hostile_archives.KINDS)
def test_a_hostile_file_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match=r"hostile\.npz: "):
        examples_of_name(str(hostile_archives.write(tmp_path, kind, "x")), terms(), classes=3)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import odp
from device_runtime.host.provision import provision
from device_runtime.store.store import Store, store_path
from odp.datasets.ratings import Ratings
from odp.errors import StateError
from odp.models.example_columns import ExampleColumns


@pytest.fixture
def ratings() -> Ratings:
    return Ratings.from_triples("tiny", [0, 0, 2], [4, 1, 3], [5.0, 2.5, 1.0], low=1, high=5, n_users=3, n_items=9)


def test_device_i_gets_the_ratings_of_user_i(tmp_path: Path, ratings: Ratings) -> None:
    assert provision(tmp_path, ratings, first=10) == 3
    found = {}
    for device in (10, 11, 12):
        with Store.open(store_path(tmp_path, device)) as store:
            data = store.ratings()
            found[device] = dict(zip(data.items.tolist(), data.values.tolist(), strict=True))
    assert found == {10: {1: 2.5, 4: 5.0}, 11: {}, 12: {3: 1.0}}


def test_a_repeated_run_changes_nothing_and_a_cut_one_is_completed(tmp_path: Path, ratings: Ratings) -> None:
    assert provision(tmp_path, ratings.select_users([0])) == 1
    with Store.open(store_path(tmp_path, 0)) as store:
        identity = store.identity()
    assert provision(tmp_path, ratings) == 2
    assert provision(tmp_path, ratings) == 0
    with Store.open(store_path(tmp_path, 0)) as store:
        assert store.identity() == identity


def test_no_two_devices_share_a_secret(tmp_path: Path, ratings: Ratings) -> None:
    provision(tmp_path, ratings)
    secrets = set()
    for device in range(3):
        with Store.open(store_path(tmp_path, device)) as store:
            secrets.add(store.identity().secret)
    assert len(secrets) == 3


def test_other_data_for_the_same_devices_are_refused(tmp_path: Path, ratings: Ratings) -> None:
    provision(tmp_path, ratings)
    with pytest.raises(StateError, match="other data"):
        provision(tmp_path, ratings.select_users([2, 1, 0]))


def test_device_i_gets_the_labelled_examples_of_user_i(tmp_path: Path) -> None:
    columns = {"x": np.arange(12.0).reshape(3, 2, 2), "label": [5, 6, 7]}
    people = ExampleColumns.of_users(columns, [2, 0, 2])
    assert provision(tmp_path, people, first=4, clock=lambda: 9.0) == 3
    assert provision(tmp_path, people, first=4, clock=lambda: 10.0) == 0
    found = {}
    for device in (4, 5, 6):
        with Store.open(store_path(tmp_path, device)) as store:
            rows = store.examples("examples").read({"x": odp.Tensor((2, 2), -1, 1)}, label="label")
            found[device] = rows.values.tolist(), rows.features["x"][:, 0, 0].tolist()
            assert [one["time"] for one in store.examples("examples").everything()] == [9.0] * len(rows.values)
    assert found == {4: ([6.0], [4.0]), 5: ([], []), 6: ([5.0, 7.0], [0.0, 8.0])}
    others = ExampleColumns.of_users(columns, [2, 0, 0])
    with pytest.raises(StateError, match="other data"):
        provision(tmp_path, others, first=4)


def test_data_that_a_person_erased_are_not_given_again(tmp_path: Path) -> None:
    people = ExampleColumns.of_users({"x": [1.0], "label": [5]}, [0])
    provision(tmp_path, people)
    with Store.open(store_path(tmp_path, 0)) as store:
        store.erase()
    assert provision(tmp_path, people) == 0
    with Store.open(store_path(tmp_path, 0)) as store:
        assert store.count_examples() == 0

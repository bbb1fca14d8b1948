"""An app's device recommends out of an index file, without services: to the person alone, and from no other file."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from device_runtime import Store, indexed_model, recommend_indexed, store_path
from device_runtime.sdk import RECOMMENDED, Environment
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, DataError
from odp.serving import difference, update_file

ITEMS = 60


#: In another order than the numbers of the data set.
CATALOGUE = odp.items.Catalogue.make("films", [f"film {place}" for place in reversed(range(ITEMS))])


def simulated(*, seed: int, catalogue: odp.items.Catalogue | None = None) -> odp.RunResult:
    ratings = odp.data.synthetic_movielens(n_users=150, n_items=ITEMS, ratings_per_user=12, seed=5)
    # Without titles, items have the numbers of the catalogue.
    ratings = dataclasses.replace(ratings, titles=None)
    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ITEMS, rank=2, catalogue=catalogue),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=100, goal=150),
    )
    return odp.simulate(task, ratings, seed=seed)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("indexes")
    for seed in (1, 2):
        keys = [f"film {place}" for place in range(ITEMS)]
        odp.items.export_items(simulated(seed=seed), root / f"{seed}.index", item_keys=keys)
    return root / "1.index", root / "2.index"


@pytest.fixture
def device(tmp_path: Path) -> Any:
    with odp.Device(tmp_path / "app", environment=Environment(keyring=False)) as device:
        for item, value in ((3, 5.0), (4, 1.0), (9, 4.0)):
            device.rate(item, value)
        yield device


def opened(device: odp.Device) -> Store:
    return Store.open(store_path(device.state, 0), key=device._key)


def recommended(device: odp.Device) -> list[Any]:
    with opened(device) as store:
        found: list[Any] = json.loads(store.data(device.service).get(RECOMMENDED) or "[]")
    return found


def test_the_service_gets_the_best_items_offline_and_the_app_is_told_nothing(
    device: odp.Device, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert device.use_index(files[0], count=7, population="films") is None
    with opened(device) as store:
        wanted = recommend_indexed(store, indexed_model(files[0]), k=7)
    assert recommended(device) == [
        [item, score] for item, score in zip(wanted.items.tolist(), wanted.scores.tolist(), strict=True)
    ]
    assert not set(wanted.items.tolist()) & {3, 4, 9}
    model = indexed_model(files[0])
    device.use_index(model, candidates=[3, 8, 11])
    assert sorted(item for item, _ in recommended(device)) == [8, 11]


def test_another_model_a_damaged_file_and_bad_counts_are_refused_and_the_old_results_stay(
    device: odp.Device, files: tuple[Path, Path], tmp_path: Path
) -> None:
    device.use_index(files[0], count=2)
    before = recommended(device)
    (tmp_path / "torn.index").write_bytes(files[0].read_bytes()[:-9])
    for path, settings, message in (
        (files[0], {"population": "songs"}, "is a model of population 'films', not of 'songs'"),
        (indexed_model(files[0]), {"sha256": "0" * 64}, "is open, and 000000000000 was expected"),
        (files[0], {"sha256": odp.items.open_index(files[1]).sha256}, "was expected"),
        (tmp_path / "torn.index", {}, "truncated"),
        (tmp_path / "none.index", {}, "cannot read the index"),
    ):
        with pytest.raises(DataError, match=message):
            device.use_index(path, **settings)
    with pytest.raises(ConfigurationError, match="count=0"):
        device.use_index(files[0], count=0)
    assert recommended(device) == before


def test_a_device_that_fetched_the_difference_recommends_as_one_that_fetched_the_whole(
    device: odp.Device, files: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "items.index"
    path.write_bytes(files[0].read_bytes())
    old, new = (odp.items.open_index(file) for file in files)
    assert (old.steps != new.steps).any()
    update_file(path, difference(old, new))
    assert path.read_bytes() == files[1].read_bytes()
    device.use_index(path, count=9)
    after = recommended(device)
    device.use_index(files[1], count=9)
    assert recommended(device) == after
    np.testing.assert_array_less(0.0, [score for _, score in after])


def test_ratings_by_key_are_found_by_the_keys_of_the_index_where_the_task_names_a_catalogue(
    device: odp.Device, tmp_path: Path
) -> None:
    run, path = simulated(seed=1, catalogue=CATALOGUE), tmp_path / "items.index"
    assert tuple(odp.items.export_items(run, path).keys) == CATALOGUE.keys
    model = indexed_model(path)
    device.use_index(model, count=ITEMS)
    stranger = recommended(device)
    assert len(stranger) == ITEMS, "what the device rated by number takes no part"
    rated = {"film 4": 5.0, "film 31": 1.0, "in no catalogue": 5.0}
    for key, value in rated.items():
        device.rate(key, value)
    device.use_index(model, count=ITEMS)
    found = recommended(device)
    assert {name for name, _ in found} == set(CATALOGUE.keys) - set(rated)
    with opened(device) as store:
        asked = recommend_indexed(store, model, k=ITEMS)
    assert asked.keys == tuple(CATALOGUE.keys[item] for item in asked.items.tolist())
    assert list(asked.keys) == [name for name, _ in found]

    own = LocalRows(np.array([CATALOGUE.numbers["film 4"], CATALOGUE.numbers["film 31"]]), np.array([5.0, 1.0]))
    wanted = model.recommend(recommender_for(model.definition).data_of(own), k=ITEMS)
    assert (asked.items.tolist(), asked.scores.tolist()) == (wanted.items.tolist(), wanted.scores.tolist())
    assert [score for _, score in found] != [score for _, score in stranger][: len(found)]


@pytest.mark.parametrize("ending", ["index", "npz"])
def test_other_keys_than_those_of_the_tasks_catalogue_are_not_exported(tmp_path: Path, ending: str) -> None:
    run, path = simulated(seed=1, catalogue=CATALOGUE), tmp_path / f"items.{ending}"
    with pytest.raises(ConfigurationError, match=r"item_keys\[0\]='film 0' to be 'film 59', as catalogue version 1"):
        odp.items.export_items(run, path, item_keys=CATALOGUE.keys[::-1])
    assert not path.exists()

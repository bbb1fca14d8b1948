"""R415: a data set of a host and the catalogue of a task: what does not fit is counted, or the task is declined."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

import odp
from device_runtime.host.filled_items import check_of
from device_runtime.tasks.catalogues import CatalogueMemory
from odp.datasets import catalogue_keys
from odp.errors import PrivacyError
from odp.protocol.catalogues.catalogue import Catalogue, versions_in
from odp.transport.logs import Log
from odp.v1 import common_pb2

RATINGS = odp.data.synthetic_movielens(n_users=30, n_items=12, ratings_per_user=6, seed=1)
CATALOGUE = Catalogue.make("people", [*catalogue_keys(RATINGS)[2:], "new"])


def definition(data: odp.RatingsData, name: str = "films") -> common_pb2.TaskDefinition:
    return odp.Task(
        name=name, population="people", model=odp.MatrixFactorization(items=11, catalogue=CATALOGUE), data=data,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=6),
    ).definition()  # fmt: skip


def memory(folder: Path, stream: io.StringIO, data: odp.data.Ratings = RATINGS) -> CatalogueMemory:
    """What a host with these ratings knows."""
    return CatalogueMemory(
        folder, lambda _, block: list(CATALOGUE.steps[versions_in(block).start - 1 : versions_in(block).stop - 1]),
        used=check_of(data, log=Log("devices", stream=stream)),
    )  # fmt: skip


def test_items_of_a_file_that_the_catalogue_does_not_have_are_counted_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    host = memory(tmp_path, stream)
    for name in ("films", "films-2"):
        assert host.of(definition(odp.RatingsData(), name)) == CATALOGUE
    lost = int((RATINGS.items < 2).sum())
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(f"items_without_catalogue task=films version=1 items=2 ratings={lost}")


def test_devices_of_items_without_ids_decline_a_task_that_names_a_catalogue(tmp_path: Path) -> None:
    numbered = dataclasses.replace(RATINGS, titles=None, item_ids=None)
    host = memory(tmp_path, io.StringIO(), numbered)
    with pytest.raises(PrivacyError, match=r"have numbers and no ids, which would take no part: fill the devices from"):
        host.of(definition(odp.RatingsData()))
    # Events name items by key, whatever the ratings are.
    seen = odp.Events(service="app", type="seen", item="film", value="stars")
    assert host.of(definition(odp.RatingsData(low=1, high=5, events=seen))) == CATALOGUE

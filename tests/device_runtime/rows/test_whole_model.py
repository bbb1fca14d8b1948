from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_runtime.network.services import Traffic
from device_runtime.rows.retrieval import Retrievals, WholeModel, asks_enclave
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import open_assignment
from odp.errors import ServiceError
from odp.v1 import common_pb2


def test_one_download_serves_every_device_whatever_its_rows(world: Any, tmp_path: Path) -> None:
    work = open_assignment(world.server.assignment, population="people")
    rows = world.distributor.broadcast.keyed.rows
    whole = WholeModel(world.services(), TableCache(tmp_path / "tables"))
    first, second = Traffic(), Traffic()
    for keys, traffic in (([0, 2], first), ([5, 6, 7], second), ([], second)):
        found = whole.fetch(work, np.array(keys, dtype=np.int64), traffic)
        np.testing.assert_array_equal(found.rows, rows[keys])
        assert found.version == work.round
        for name, table in world.distributor.broadcast.dense.items():
            np.testing.assert_array_equal(found.dense[name], table)
    assert first.down >= rows.nbytes
    assert second == Traffic()
    again = Traffic()
    WholeModel(world.services(), TableCache(tmp_path / "tables")).fetch(work, np.array([1]), again)
    assert again == Traffic(), "the next process finds the tables in the cache"


def test_rows_that_the_model_lacks_are_named(world: Any) -> None:
    work = open_assignment(world.server.assignment, population="people")
    rows = len(world.distributor.broadcast.keyed.rows)
    with pytest.raises(ServiceError, match="lacks rows"):
        WholeModel(world.services()).fetch(work, np.array([rows]), Traffic())


def test_a_model_without_a_keyed_table_reaches_devices_whole(world: Any) -> None:
    work = open_assignment(world.server.assignment, population="people")
    manifest = common_pb2.ModelManifest(version=work.model.manifest.version)
    manifest.tables.extend(table for table in work.model.manifest.tables if not table.keyed)
    work = dataclasses.replace(work, model=dataclasses.replace(work.model, manifest=manifest))
    services = world.services()
    retrieval = Retrievals.over(services).of(work.model)
    assert isinstance(retrieval, WholeModel)
    assert not asks_enclave(work.model)
    found = retrieval.fetch(work, np.zeros(0, dtype=np.int64), Traffic())
    assert (len(found.keys), found.rows.shape) == (0, (0, 0))
    expected = world.distributor.broadcast.dense
    assert found.dense.keys() == expected.keys() != set()
    for name, table in expected.items():
        np.testing.assert_array_equal(found.dense[name], table)

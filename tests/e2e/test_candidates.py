"""Candidates over the real services: trained, clustered, published, fetched by a device without telling which."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.world import POPULATION, World, small_ratings, small_task
from typer.testing import CliRunner

import odp
from device_runtime import (
    Enclaves,
    Lookup,
    Services,
    Store,
    TableCache,
    download_model,
    find_candidates,
    recommend,
    recommend_candidates,
    store_path,
)
from device_runtime.tasks.charters import CharterMemory
from odp.cli.main import app
from odp.errors import ConfigurationError, StaleModel
from odp.evaluation.noise import NoNoise
from odp.signed.tables.candidates import candidate_tables
from odp.signed.task import model_sha256
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2

#: How many a device fetches; a table's versions all have the same number.
BUCKETS = 6


@dataclass
class Trained:
    """A finished task, and a device's way to its services."""

    world: World
    handle: odp.services.connection.TaskHandle  # type: ignore[name-defined]
    services: Services
    lookup: Lookup
    folder: Path

    def publish(self, *, clusters: int = BUCKETS, stamp: bytes | None = None) -> None:
        status = self.handle.status()
        made = candidate_tables(
            POPULATION,
            self.handle.model(),
            model_sha256(status.model) if stamp is None else stamp,
            clusters=clusters,
            buckets_per_request=BUCKETS,
        )
        for table in (made.buckets, made.centroids):
            self.world.connection.publish_table(table)

    def find(self) -> object:
        offer = self.services.newest_model(POPULATION)
        return find_candidates(self.lookup, offer, cache=TableCache(self.folder), charters=CharterMemory())

    def store(self, device: int) -> Store:
        return Store.open(store_path(self.world.root / "devices", device))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """One for all tests: each publishes the tables that it reads, and a later table replaces an earlier one."""
    root, ratings = tmp_path_factory.mktemp("candidates"), small_ratings()
    with contextlib.ExitStack() as stack:
        world = World(root, noise=NoNoise()).start(stack)
        handle = world.connection.submit(small_task(ratings, rank=2, training=odp.DPAM(steps=2)))
        world.finish(handle, world.devices(ratings))
        services = stack.enter_context(contextlib.closing(world.services()))
        values = ReferenceValues.load(world.reference_values)
        enclaves = Enclaves(services, lambda: values)
        yield Trained(world, handle, services, Lookup(services=services, enclaves=enclaves), root / "tables")


def whole(trained: Trained, device: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    offer = trained.services.newest_model(POPULATION)
    downloaded = download_model(trained.services, offer, charters=CharterMemory())
    with trained.store(device) as store:
        found = recommend(store, downloaded, k=k)
    return found.items, found.scores


def test_all_buckets_give_what_the_whole_model_gives_and_fewer_a_part_of_it(trained: Trained) -> None:
    trained.publish()
    for device in (0, 1, 20):
        with trained.store(device) as store:
            found = recommend_candidates(store, trained.find(), trained.lookup, k=10)
        items, scores = whole(trained, device, 10)
        assert found.items.tolist() == items.tolist()
        np.testing.assert_allclose(found.scores, scores, rtol=1e-9)


def test_a_few_buckets_hold_items_of_the_whole_ranking_with_its_scores(trained: Trained) -> None:
    trained.publish(clusters=3 * BUCKETS)
    hits = 0
    for device in range(10):
        with trained.store(device) as store:
            found = recommend_candidates(store, trained.find(), trained.lookup, k=5)
        items, scores = whole(trained, device, 40)
        place = [items.tolist().index(item) for item in found.items.tolist()]
        np.testing.assert_allclose(found.scores, scores[place], rtol=1e-9)
        hits += len(set(found.items.tolist()) & set(items[:5].tolist()))
    # A third of the clusters, taken without regard to the device, would give a third of the best items.
    assert hits > 10 * 5 / 3


def test_the_commands_do_the_same_and_an_older_version_of_candidates_is_said(
    trained: Trained,
) -> None:
    world = trained.world
    server = ["--server", world.server.address]
    task = trained.handle.task_sha256.hex()[:12]
    sizes = ["--clusters", str(BUCKETS), "--buckets", str(BUCKETS)]
    made = odp_command("table", "candidates", task, *sizes, "--state", str(world.root), "--json", *server)
    assert made["tables"] == [f"{POPULATION}.buckets", f"{POPULATION}.centroids"]
    arguments = ["device", "recommend", "--population", POPULATION, "--device", "3", "--json", *server]
    arguments += ["--state", str(world.root / "devices"), "--services", str(world.root)]
    found, whole_model = (odp_command(*arguments, *more)["recommendations"] for more in (["--candidates"], []))
    assert [one["item"] for one in found] == [one["item"] for one in whole_model]
    reasoned, all_reasoned = (odp_command(*arguments, "--why", *way) for way in (["--candidates"], []))
    assert all(len(one["because"]) == 3 for one in all_reasoned["recommendations"])
    for one, other in zip(reasoned["recommendations"], all_reasoned["recommendations"], strict=True):
        assert [reason["item"] for reason in one["because"]] == [reason["item"] for reason in other["because"]]
    for more in (["--level", "0.8"], ["--level", "0.8", "--explore"]):
        ranged, all_ranged = (odp_command(*arguments, *more, *way)["recommendations"] for way in (["--candidates"], []))
        assert [one["item"] for one in ranged] == [one["item"] for one in all_ranged]
        for name in ("score", "low", "high"):
            np.testing.assert_allclose([one[name] for one in ranged], [one[name] for one in all_ranged], rtol=1e-9)
        assert all(one["low"] < one["score"] < one["high"] for one in ranged)
    # The upper ends rank; ranges differ by item, so this order is another one than that of the scores.
    highs = [one["high"] for one in ranged]
    assert highs == sorted(highs, reverse=True)
    trained.publish(stamp=bytes(32))
    with pytest.raises(StaleModel, match="another version"):
        odp_command(*arguments, "--candidates")


def odp_command(*arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_candidates_of_another_version_are_never_mixed_with_the_model(trained: Trained) -> None:
    trained.publish(stamp=bytes(32))
    with pytest.raises(StaleModel, match="another version of the model"):
        trained.find()


def test_a_table_is_refused_as_a_task_by_aggregator_and_server(trained: Trained) -> None:
    signed = trained.world.connection.table
    trained.publish()
    opened = signed(f"{POPULATION}.buckets")
    definition = common_pb2.TaskDefinition(name=opened.name)
    definition.table.rows_per_request = BUCKETS

    class Table:
        name, public_matrix = opened.name, None

        @staticmethod
        def definition() -> common_pb2.TaskDefinition:
            return definition

    with pytest.raises(odp.errors.ServiceError):
        trained.world.connection.submit(Table())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        trained.lookup.find("Nothing!")

"""What a reader of the host's database can keep there: contributions that the host was told to erase."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.v1 import aggregator_pb2, population_pb2
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.sqlite_storage import SqliteStorage

TASK = bytes(32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a reader of these tests: it reads until it is ended."""
    monkeypatch.setattr("odp.storage.sqlite._EMPTYING_SECONDS", 0)


@contextmanager
def reading(database: Path) -> Iterator[None]:
    """Another program in the middle of a look at the database, as a backup is."""
    reader = sqlite3.connect(database)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM contributions").fetchone()
        yield
    finally:
        reader.close()


def in_files(root: Path, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in root.glob("contributions.db*"))


def test_r241_erased_contributions_do_not_stay_in_the_log_behind_a_reader(tmp_path: Path) -> None:
    secret = os.urandom(32)
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        storage = SqliteStorage(state)
        storage.add([SealedContribution(TASK, 0, secret)])
        storage.add([SealedContribution(TASK, 1, b"stays")])
        with reading(state.path("contributions.db")):
            storage.erase(TASK, 0)
            for _ in range(2):
                with pytest.raises(StateError, match="another program reads the database; end it"):
                    storage.finish_erasing()
            assert in_files(state.root, secret)
        storage.finish_erasing()
        assert not in_files(state.root, secret)
        assert list(storage.contributions(TASK, 1)) == [b"stays"]
        storage.close()


def test_r241_the_end_of_a_task_is_not_answered_while_a_reader_keeps_what_was_erased(
    make_world: Callable[..., Any], tmp_path: Path
) -> None:
    world = make_world(minimum=3)
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = StoredHost(world, state)
        host.open()
        sealed = world.sealed(1)
        request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=0, sealed_contribution=sealed)
        assert host.service.submit(request).result(20.0) is None
        order = population_pb2.AbandonOrder(task_sha256=world.task_sha256).SerializeToString()
        signature = population_pb2.CharterSignature(
            key=world.developer.public, signature=world.developer.sign(b"odp/v1/abandon", order)
        )
        abandon = aggregator_pb2.AbandonTaskRequest(task=world.task, order=order, signature=signature)
        with reading(state.path("contributions.db")):
            for _ in range(2):
                with pytest.raises(StateError, match="end it"):
                    host.control.abandon(abandon)
        host.control.abandon(abandon)
        assert not in_files(state.root, sealed)
        assert host.failures == []
        host.end()


def test_r241_a_release_does_not_wait_for_a_reader_and_the_log_is_emptied_later(
    make_world: Callable[..., Any], tmp_path: Path
) -> None:
    world = make_world(minimum=3)
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = StoredHost(world, state)
        host.open()
        sealed = [world.sealed(device) for device in range(3)]
        for one in sealed:
            request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=0, sealed_contribution=one)
            assert host.service.submit(request).result(20.0) is None
        with reading(state.path("contributions.db")):
            assert host.close_round().release
        assert in_files(state.root, sealed[0])
        assert "not_erased" in host.log.getvalue()
        host.control.sweep()
        assert not in_files(state.root, sealed[0])
        host.end()

"""Rows of a task's last model by lattices, from a real distributor over TLS."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from callers import control_channel
from hypothesis import given, settings
from hypothesis import strategies as st

import distributor
import odp
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services, Traffic
from device_runtime.rows import table_cache
from device_runtime.rows.lattice import fetch_static_rows
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import Model, open_model
from distributor import enclave_process, static_tables
from distributor.model_folders import ModelFolders
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Broadcast
from odp.broadcast.terms import LATTICE_KEYS
from odp.crypto.signing import SigningKey
from odp.enclave.in_thread import InThread
from odp.errors import ConfigurationError, ServiceError
from odp.signed.task import open_task, sign_manifest, sign_task, task_sha256
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.v1 import distributor_pb2, distributor_pb2_grpc, retrieval_pb2, retrieval_pb2_grpc
from odp.wire.tables import manifest_for, table_bytes

ITEMS = 150
SECONDS = 60.0


@dataclass
class Static:
    services: Services
    address: str
    ca: bytes
    last: Model
    earlier: Model
    rows: np.ndarray
    models: Path


def publish(stub: Any, key: SigningKey, task: Any, version: int) -> tuple[Model, np.ndarray]:
    server = algorithm_for(open_task(task)).server()
    shape = server.broadcast(server.start())
    generator = np.random.default_rng(version)
    tables = tuple(
        table.__class__(table.name, generator.normal(size=table.rows.shape).astype(np.float32), table.keyed)
        for table in shape.tables
    )
    broadcast = Broadcast(version, tables)
    manifest = sign_manifest(manifest_for(broadcast, task_sha256(task)), key)
    requests = [distributor_pb2.PublishRequest(header=distributor_pb2.PublishHeader(task=task, model=manifest))]
    requests += [distributor_pb2.PublishRequest(chunk=table_bytes(table)) for table in tables]
    stub.Publish(iter(requests), timeout=SECONDS)
    return open_model(task, manifest), broadcast.keyed.rows


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Static]:
    root = tmp_path_factory.mktemp("static")
    key = SigningKey.generate()
    task = sign_task(
        odp.Task(
            name="films",
            model=odp.MatrixFactorization(items=ITEMS, rank=2),
            data=odp.RatingsData(low=1, high=5),
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
        ).definition(),
        key,
    )
    rounds = algorithm_for(open_task(task)).server().rounds
    with contextlib.ExitStack() as stack:
        running = distributor.start(
            distributor.Config(
                state=root / "state", platform=root / "platform", listen="127.0.0.1:0", control_listen="127.0.0.1:0"
            ),
            launch=InThread(enclave_process.run, digest="sha384:" + "0" * 96),
        )
        stack.callback(running.stop)
        with control_channel(running, root, root / "state" / "ca") as channel:
            stub = distributor_pb2_grpc.DistributorControlServiceStub(channel)
            earlier, _ = publish(stub, key, task, rounds - 1)
            last, rows = publish(stub, key, task, rounds)
        services = Services("127.0.0.1:1", running.ca_pem, pinned=PinnedAddresses.at(distributor=running.address))
        stack.callback(services.close)
        yield Static(services, running.address, running.ca_pem, last, earlier, rows, root / "state" / "models")


@settings(max_examples=10, deadline=None, derandomize=True)
@given(keys=st.lists(st.integers(0, ITEMS - 1), max_size=LATTICE_KEYS))
def test_the_rows_are_those_of_the_table_and_the_traffic_the_same(static: Static, keys: list[int]) -> None:
    traffic, none = Traffic(), Traffic()
    wanted = np.array(keys, dtype=np.int64)
    found = fetch_static_rows(static.services, static.address, static.last, wanted, traffic=traffic)
    np.testing.assert_array_equal(found, static.rows[wanted])
    fetch_static_rows(static.services, static.address, static.last, np.zeros(0, dtype=np.int64), traffic=none)
    assert traffic == none


def test_the_hint_is_downloaded_once(static: Static, tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    first, second = Traffic(), Traffic()
    for traffic in (first, second):
        fetch_static_rows(static.services, static.address, static.last, np.array([3]), cache=cache, traffic=traffic)
    assert first.down > second.down + 1024 * static.rows.shape[1]


def test_a_device_without_space_uses_the_hint_keeps_nothing_half_and_says_so(
    static: Static, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(table_cache, "write_atomically", full)
    cache = TableCache(tmp_path)
    wanted = np.array([3, 5])
    for _ in range(2):
        found = fetch_static_rows(static.services, static.address, static.last, wanted, cache=cache)
        np.testing.assert_array_equal(found, static.rows[wanted])
    assert "No space left on device" in str(cache.failure)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_the_next_round_replaces_is_refused(static: Static) -> None:
    with pytest.raises(ServiceError, match="is not its last"):
        fetch_static_rows(static.services, static.address, static.earlier, np.array([3]))


def test_keys_that_are_not_there_are_refused_after_a_request_like_any_other(static: Static) -> None:
    one = Traffic()
    fetch_static_rows(static.services, static.address, static.last, np.array([3]), traffic=one)
    for keys in ([ITEMS], [-1], list(range(LATTICE_KEYS + 1))):
        traffic = Traffic()
        with pytest.raises(ConfigurationError, match="different keys from 0 to"):
            fetch_static_rows(static.services, static.address, static.last, np.array(keys), traffic=traffic)
        assert traffic == one


def test_malformed_requests_are_refused_in_one_line(static: Static) -> None:
    with connect(static.address, static.ca) as channel:
        stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        for request in (
            retrieval_pb2.SelectByLatticeRequest(model_sha256=static.last.model_sha256, table="items", query=b"x"),
            retrieval_pb2.SelectByLatticeRequest(model_sha256=static.last.model_sha256, table="itemz", query=b"x"),
            retrieval_pb2.SelectByLatticeRequest(model_sha256=b"short", table="items"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.SelectByLattice(request, timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "\n" not in caught.value.details()


def test_a_hint_or_an_answer_that_was_changed_gives_no_row(static: Static, monkeypatch: pytest.MonkeyPatch) -> None:
    hint, select = static.services.hint, static.services.select_by_lattice

    def changed_hint(*given: Any) -> bytes:
        found = hint(*given)
        return bytes([found[0] ^ 255]) + found[1:]

    def changed_answer(*given: Any) -> Any:
        reply = select(*given)
        answer = np.frombuffer(reply.answer, dtype="<u4") + np.uint32(1 << 31)
        return retrieval_pb2.SelectByLatticeResponse(model_sha256=reply.model_sha256, answer=answer.tobytes())

    for name, lie, line in (
        ("hint", changed_hint, "another hint than it described"),
        ("select_by_lattice", changed_answer, "sent wrong rows"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(static.services, name, lie)
            with pytest.raises(ServiceError, match=line):
                fetch_static_rows(static.services, static.address, static.last, np.array([3]))


def test_a_table_whose_hint_would_take_minutes_is_refused(static: Static, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_tables, "LARGEST_TABLE", static.rows.nbytes - 1)
    models: Any = SimpleNamespace(require=lambda _: None)
    fresh = static_tables.StaticTables(models, ModelFolders(static.models), Log("distributor"))
    request = retrieval_pb2.DescribeHintRequest(model_sha256=static.last.model_sha256, table="items")
    with pytest.raises(ConfigurationError, match=f"has {static.rows.nbytes} bytes; retrieval by lattices is for"):
        fresh.describe(request)

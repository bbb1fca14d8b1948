"""Tables by cache, by blocks, by the rest of a cut download, from a distributor over TLS that may lie or stop."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.table_cache import TableCache
from distributor import servicer
from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.program import control_servicer
from distributor.servicer import DistributorService, distributor_servicer
from odp._system.files.state_folder import StateFolder
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.crypto import HpkeKey, SigningKey
from odp.errors import Busy, ServiceError, StaleModel
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import BLOCK_BYTES, manifest_for
from odp.signed.task import model_sha256, sign_manifest, sign_task, task_sha256
from odp.tasks.task import Task
from odp.transport.backpressure import Patience
from odp.transport.channel import CHUNK_BYTES, connect
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.v1 import common_pb2, distributor_pb2, distributor_pb2_grpc

ROWS, WIDTH = 20_011, 32  # 2.4 chunks, 39.1 blocks
SIZE = ROWS * WIDTH * 4


class Published:
    """A distributor's host in this process, counting what it is asked for and what it sends."""

    def __init__(self, folder: Path) -> None:
        self.developer = SigningKey.from_bytes(bytes(32))
        self.task = sign_task(
            Task(
                name="films",
                model=MatrixFactorization(items=ROWS, rank=2),
                data=RatingsData(low=1, high=5),
                privacy=UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
                training=DPAM(),
                cohort=Cohort(minimum=2),
            ).definition(),
            self.developer,
        )
        log = Log("distributor", stream=io.StringIO())
        self.state = StateFolder.open(folder / "state", "distributor")
        service = DistributorService(DistributorCore(HpkeKey.generate()), ModelFolders(self.state.path("models")), log)
        identity = development_identity(self.state)
        self.asked: list[Any] = []
        self.sent = 0
        self.spoil: Callable[[bytes], bytes] = lambda chunk: chunk
        self.spoil_list: Callable[[bytes], bytes] = lambda found: found
        self.cut_after: int | None = None
        real, outer = distributor_servicer(service, log), self

        class Counting(distributor_pb2_grpc.DistributorServiceServicer):
            def Download(self, request: Any, context: Any) -> Iterator[Any]:
                outer.asked.append(request)
                for number, reply in enumerate(real.Download(request, context)):
                    if number == outer.cut_after:
                        context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                    chunk = outer.spoil(reply.chunk)
                    outer.sent += len(chunk)
                    yield distributor_pb2.DownloadResponse(chunk=chunk)

            def ListBlocks(self, request: Any, context: Any) -> Any:
                outer.asked.append(request)
                found = outer.spoil_list(real.ListBlocks(request, context).sha256)
                outer.sent += len(found)
                return distributor_pb2.ListBlocksResponse(sha256=found)

        def add(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorServiceServicer_to_server(Counting(), server)
            orders = control_servicer(service, log)
            distributor_pb2_grpc.add_DistributorControlServiceServicer_to_server(orders, server)

        self.server = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=add,
            service_names=[servicer.NAME],
            workers=servicer.WORKERS,
        )
        self.address, self.ca = self.server.address, identity.ca_pem
        self.services = self.clients()

    def clients(self, patience: Patience | None = None) -> Services:
        pinned = PinnedAddresses.at(distributor=self.address)
        return Services(self.address, self.ca, pinned=pinned, patience=patience)

    def publish(self, rows: np.ndarray, version: int) -> tuple[bytes, common_pb2.TableManifest]:
        manifest = manifest_for(
            ModelVersion(version, (TableValues("items", rows, keyed=True),)), task_sha256(self.task)
        )
        signed = sign_manifest(manifest, self.developer)

        def stream() -> Iterator[distributor_pb2.PublishRequest]:
            yield distributor_pb2.PublishRequest(header=distributor_pb2.PublishHeader(task=self.task, model=signed))
            data = rows.tobytes()
            for start in range(0, len(data), CHUNK_BYTES):
                yield distributor_pb2.PublishRequest(chunk=data[start : start + CHUNK_BYTES])

        with connect(self.address, self.ca) as channel:
            distributor_pb2_grpc.DistributorControlServiceStub(channel).Publish(stream(), timeout=20.0)
        return model_sha256(signed), manifest.tables[0]

    def fetch(self, published: tuple[bytes, common_pb2.TableManifest], cache: TableCache) -> bytes:
        self.asked, self.sent = [], 0
        return fetch_table(self.services, self.address, *published, cache)

    def close(self) -> None:
        self.services.close()
        self.server.stop()
        self.state.close()


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Published]:
    opened = Published(tmp_path)
    yield opened
    opened.close()


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH), dtype=np.float32)


def changed(base: np.ndarray, places: list[int]) -> np.ndarray:
    found = base.copy()
    found.reshape(-1)[places] += 1
    return found


def test_a_table_that_is_held_is_asked_for_by_nothing(published: Published, tmp_path: Path) -> None:
    table = rows(1)
    model = published.publish(table, 0)
    for number in range(2):
        assert published.fetch(model, TableCache(tmp_path / "cache")) == table.tobytes()
        assert len(published.asked) == 1 - number


def test_of_another_version_only_the_changed_blocks_are_sent(published: Published, tmp_path: Path) -> None:
    first = rows(1)
    second = changed(first, [0, 5, BLOCK_BYTES // 4, SIZE // 4 - 1])  # blocks 0, 1 and the last, which is short
    cache = TableCache(tmp_path / "cache")
    published.fetch(published.publish(first, 0), cache)
    assert published.fetch(published.publish(second, 1), cache) == second.tobytes()
    blocks = -(-SIZE // BLOCK_BYTES)
    assert published.sent == 2 * BLOCK_BYTES + SIZE % BLOCK_BYTES + 32 * blocks
    assert np.frombuffer(published.asked[-1].blocks, dtype="<u4").tolist() == [0, 1, blocks - 1]


def test_more_changed_blocks_than_fit_one_chunk_come_in_several(published: Published, tmp_path: Path) -> None:
    first = rows(1)
    second = changed(first, [number * BLOCK_BYTES // 4 for number in range(0, 39, 2)])
    cache = TableCache(tmp_path / "cache")
    published.fetch(published.publish(first, 0), cache)
    assert published.fetch(published.publish(second, 1), cache) == second.tobytes()
    assert published.sent < SIZE


def test_where_every_block_changed_the_table_is_sent_whole(published: Published, tmp_path: Path) -> None:
    cache = TableCache(tmp_path / "cache")
    published.fetch(published.publish(rows(1), 0), cache)
    second = rows(2)
    assert published.fetch(published.publish(second, 1), cache) == second.tobytes()
    assert not published.asked[-1].blocks


@pytest.mark.parametrize("lie", [lambda found: found[:-1], lambda found: b"", lambda found: found[32:] + found[:32]])
def test_a_list_that_lies_costs_a_whole_download_and_nothing_else(
    published: Published, tmp_path: Path, lie: Callable[[bytes], bytes]
) -> None:
    first = rows(1)
    second = changed(first, [0])
    cache = TableCache(tmp_path / "cache")
    published.fetch(published.publish(first, 0), cache)
    published.spoil_list = lie
    assert published.fetch(published.publish(second, 1), cache) == second.tobytes()


def test_a_list_that_hides_a_change_is_noticed(published: Published, tmp_path: Path) -> None:
    first = rows(1)
    second = changed(first, [0])
    cache = TableCache(tmp_path / "cache")
    published.fetch(published.publish(first, 0), cache)
    held = hashlib.sha256(first.tobytes()[:BLOCK_BYTES]).digest()
    published.spoil_list = lambda found: held + found[32:]
    assert published.fetch(published.publish(second, 1), cache) == second.tobytes()


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_download_that_was_cut_goes_on_behind_its_last_whole_chunk(
    published: Published, tmp_path: Path, chunks: int
) -> None:
    table = rows(1)
    model = published.publish(table, 0)
    published.cut_after = chunks
    with pytest.raises(ServiceError):
        published.fetch(model, TableCache(tmp_path / "cache"))
    published.cut_after = None
    assert published.fetch(model, TableCache(tmp_path / "cache")) == table.tobytes()
    assert published.asked[0].first_chunk == chunks
    assert published.sent == SIZE - chunks * CHUNK_BYTES
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".f32"]


def test_a_start_that_was_changed_on_disk_costs_a_whole_download(published: Published, tmp_path: Path) -> None:
    table = rows(1)
    model = published.publish(table, 0)
    published.cut_after = 1
    with pytest.raises(ServiceError):
        published.fetch(model, TableCache(tmp_path / "cache"))
    published.cut_after = None
    (part,) = (tmp_path / "cache").iterdir()
    part.write_bytes(bytes(CHUNK_BYTES) + b"more")
    assert published.fetch(model, TableCache(tmp_path / "cache")) == table.tobytes()
    assert [request.first_chunk for request in published.asked] == [1, 0]


@pytest.mark.parametrize(
    "spoil", [lambda chunk: chunk[:-1], lambda chunk: chunk + b"\0", lambda chunk: bytes(len(chunk))]
)
def test_another_table_than_the_signed_one_is_refused_and_not_kept(
    published: Published, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    table = rows(1)
    model = published.publish(table, 0)
    published.spoil = spoil
    with pytest.raises(ServiceError):
        published.fetch(model, TableCache(tmp_path / "cache"))
    assert TableCache(tmp_path / "cache").find(model[1].sha256) is None
    published.spoil = lambda chunk: chunk
    assert published.fetch(model, TableCache(tmp_path / "cache")) == table.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"first_chunk": 3},
        {"first_chunk": 2**32 - 1},
        {"first_chunk": 1, "blocks": bytes(4)},
        {"blocks": b"abc"},
        {"blocks": np.array([40], dtype="<u4").tobytes()},
        {"blocks": np.array([1, 0], dtype="<u4").tobytes()},
        {"blocks": np.array([3, 3], dtype="<u4").tobytes()},
        {"blocks": bytes(4 * 41)},
    ],
)
def test_places_that_a_table_does_not_have_are_refused(published: Published, change: dict[str, Any]) -> None:
    model, entry = published.publish(rows(1), 0)
    request = distributor_pb2.DownloadRequest(model_sha256=model, table=entry.name, **change)
    with pytest.raises(ServiceError, match="Expected"):
        list(published.services.table_chunks(published.address, request, SIZE))


def test_blocks_of_a_model_that_is_not_held_are_refused(published: Published) -> None:
    entry = common_pb2.TableManifest(name="items", rows=1, width=1)
    with pytest.raises(ServiceError, match="not held"):
        published.services.block_list(published.address, b"\xab" * 32, entry)


class TestCache:
    """Bounded, checked, and never in the way."""

    def test_the_least_recently_used_tables_go_first(self, tmp_path: Path) -> None:
        cache = TableCache(tmp_path, most_bytes=250)
        tables = [bytes([number]) * 100 for number in range(3)]
        hashes = [hashlib.sha256(table).digest() for table in tables]
        for number in range(2):
            cache.keep(hashes[number], tables[number])
            self.age(tmp_path)
        assert cache.find(hashes[0]) == tables[0]  # used: the other one is older now
        cache.keep(hashes[2], tables[2])
        assert [cache.find(each) for each in hashes] == [tables[0], None, tables[2]]

    def test_a_table_beyond_the_bound_is_not_kept_and_removes_nothing(self, tmp_path: Path) -> None:
        cache = TableCache(tmp_path, most_bytes=100)
        small, large = b"s" * 100, b"l" * 101
        for table in (small, large):
            cache.keep(hashlib.sha256(table).digest(), table)
        assert cache.find(hashlib.sha256(small).digest()) == small
        assert cache.find(hashlib.sha256(large).digest()) is None

    def test_a_table_that_was_changed_on_disk_is_deleted(self, tmp_path: Path) -> None:
        cache = TableCache(tmp_path)
        sha256 = hashlib.sha256(b"table").digest()
        cache.keep(sha256, b"table")
        (path,) = tmp_path.iterdir()
        path.write_bytes(b"other")
        assert cache.latest(5) is None
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        cache = TableCache(tmp_path / "file" / "cache")
        cache.keep(bytes(32), b"table")
        assert cache.find(bytes(32)) is None
        assert cache.latest(5) is None
        assert list(cache.noting(bytes(32), b"", iter([b"a", b"b"]), 2)) == [b"a", b"b"]

    @staticmethod
    def age(folder: Path) -> None:
        for path in folder.iterdir():
            os.utime(path, ns=(path.stat().st_atime_ns - 10**9, path.stat().st_mtime_ns - 10**9))


def test_a_fleet_that_downloads_at_once_is_served_by_retry_windows_and_nobody_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MAX_DOWNLOADS", 2)
    monkeypatch.setattr(servicer, "WAITING_DOWNLOADS", 2)
    published, sent_away, waits = Published(tmp_path), threading.Event(), []
    try:
        table = rows(1)
        model, entry = published.publish(table, 0)

        def hold(chunk: bytes) -> bytes:
            assert sent_away.wait(20.0)
            return chunk

        def wait(seconds: float) -> bool:
            waits.append(seconds)
            sent_away.set()
            return threading.Event().wait(seconds / 50)

        published.spoil = hold
        clients = published.clients(Patience(wait=wait))
        with ThreadPoolExecutor(20) as devices:
            found = list(devices.map(lambda _: clients.download(published.address, model, entry), range(20)))
        clients.close()
    finally:
        published.close()
    assert all(data == table.tobytes() for data in found)
    assert waits  # nobody had a first chunk before somebody was sent away


def test_a_device_reports_a_distributor_that_stays_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "MAX_DOWNLOADS", 1)
    monkeypatch.setattr(servicer, "WAITING_DOWNLOADS", 0)
    published, begun, end = Published(tmp_path), threading.Event(), threading.Event()
    try:
        model, entry = published.publish(rows(1), 0)

        def hold(chunk: bytes) -> bytes:
            begun.set()
            assert end.wait(20.0)
            return chunk

        published.spoil = hold
        clients = published.clients(Patience(tries=3, wait=lambda _: False))
        with ThreadPoolExecutor(1) as other:
            first = other.submit(published.services.download, published.address, model, entry)
            assert begun.wait(20.0)
            with pytest.raises(Busy, match="busy with other downloads"):
                clients.download(published.address, model, entry)
            end.set()
            assert len(first.result()) == SIZE
        clients.close()
    finally:
        end.set()
        published.close()


def test_a_version_that_newer_ones_replaced_is_told_apart_from_a_failure(published: Published) -> None:
    models = [published.publish(rows(number), number) for number in range(4)]
    with pytest.raises(StaleModel, match="check in again for a newer version"):
        published.services.download(published.address, *models[0])
    with pytest.raises(StaleModel):
        published.services.block_list(published.address, *models[0])
    assert published.services.download(published.address, *models[3]) == rows(3).tobytes()

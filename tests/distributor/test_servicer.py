from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from callers import DistributorStub, add_distributor

from distributor import servicer
from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.servicer import DistributorService
from odp._system.files.state_folder import StateFolder
from odp.crypto import HpkeKey, SigningKey
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.signed.task import sign_manifest
from odp.transport.backpressure import Patience
from odp.transport.channel import CHUNK_BYTES, connect, translated
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.v1 import common_pb2, distributor_pb2

KEY = HpkeKey.generate()
SECONDS = 60.0


@dataclass
class Host:
    """A distributor over TLS on a free port, a device's stub to it, and stubs over other connections."""

    stub: Any
    core: DistributorCore
    models: Path
    lines: Any
    another: Callable[[], Any]
    close: Callable[[], None]

    def publish(self, requests: Any) -> distributor_pb2.PublishResponse:
        return self.stub.Publish(requests, timeout=SECONDS)

    def select(self, question: Any) -> bytes:
        return self.stub.Select(question.request, timeout=SECONDS).sealed_rows

    def download(self, model: bytes, table: str) -> list[bytes]:
        request = distributor_pb2.DownloadRequest(model_sha256=model, table=table)
        return [reply.chunk for reply in self.stub.Download(request, timeout=SECONDS)]

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.models.iterdir())


@pytest.fixture
def open_host(tmp_path: Path, kit: Any) -> Iterator[Callable[..., Host]]:
    """Starts a host on the test's one state folder; ``close`` it before the next."""
    opened: list[Host] = []

    def start(*, free_bytes: Callable[[Path], int] | None = None, call_seconds: float = 60.0) -> Host:
        lines = kit.Lines()
        log = Log("distributor", stream=lines, clock=lambda: 0.0)
        state = StateFolder.open(tmp_path / "state", "distributor")
        models = state.path("models")
        store = ModelFolders(models) if free_bytes is None else ModelFolders(models, free_bytes=free_bytes)
        core = DistributorCore(KEY)
        service = DistributorService(core, store, log)
        service.restore()
        identity = development_identity(state)
        server = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=lambda server: add_distributor(service, log, server),
            service_names=[servicer.NAME],
            workers=servicer.WORKERS,
            limits=Limits(call_seconds=call_seconds),
        )
        channels = []

        def another() -> Any:
            channels.append(connect(server.address, identity.ca_pem))
            return DistributorStub(channels[-1])

        def close() -> None:
            for channel in channels:
                channel.close()
            server.stop(0)
            state.close()

        host = Host(another(), core, models, lines, another, close)
        opened.append(host)
        return host

    yield start
    for host in opened:
        host.close()


@pytest.fixture
def host(open_host: Callable[..., Host]) -> Host:
    return open_host()


def refused(call: Callable[[], object], code: grpc.StatusCode) -> str:
    """The one line of a refusal with status ``code``."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value.details()
    details = caught.value.details()
    assert "\n" not in details
    return str(details)


class Stalled:
    """A publish stream that sends its header and one chunk, then waits until ``end`` is set."""

    def __init__(self, model: Any) -> None:
        self.end = threading.Event()
        self._model = model

    def __iter__(self) -> Iterator[distributor_pb2.PublishRequest]:
        yield self._model.header()
        yield distributor_pb2.PublishRequest(chunk=self._model.payload[:100])
        self.end.wait(SECONDS)


def test_a_published_model_is_selected_and_downloaded_as_it_was(host: Host, developer: Any, kit: Any) -> None:
    model = developer.model()
    assert host.publish(model.stream()).model_sha256 == model.id
    keys = [5, 5, 39, 0, 1, 2, 3, 4]
    question = kit.ask(model, KEY.public, keys)
    rows = kit.answered_rows(model, question, host.select(question))
    np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[keys])
    for name, content in model.tables.items():
        assert b"".join(host.download(model.id, name)) == content
    assert host.folders() == [model.id.hex()]


def test_a_model_of_several_mebibytes_travels_in_chunks_of_one(host: Host, developer: Any) -> None:
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(300_000, 3)).astype(np.float32)
    model = developer.signed(
        ModelVersion(0, (TableValues("globals", rows[:2], False), TableValues("items", rows, True)))
    )
    host.publish(model.stream(chunk=CHUNK_BYTES))
    chunks = host.download(model.id, "items")
    assert b"".join(chunks) == model.tables["items"]
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_BYTES] * 3


def test_a_known_manifest_is_accepted_after_its_header_alone(host: Host, developer: Any) -> None:
    model = developer.model()
    host.publish(model.stream())

    end = threading.Event()

    def endless() -> Iterator[distributor_pb2.PublishRequest]:
        yield model.header()
        end.wait(SECONDS)

    assert host.publish(endless()).model_sha256 == model.id
    end.set()
    assert host.lines.getvalue().count("publishing") == 1


def test_a_stream_that_is_cut_leaves_nothing_and_can_be_sent_again(host: Host, developer: Any, kit: Any) -> None:
    model = developer.model()
    stalled = Stalled(model)
    call = host.stub.Publish.future(iter(stalled), timeout=SECONDS)
    host.lines.wait_for("publishing")
    call.cancel()
    host.lines.wait_for("publish_failed")
    stalled.end.set()
    assert host.folders() == []
    question = kit.ask(model, KEY.public, range(8))
    refused(lambda: host.select(question), grpc.StatusCode.NOT_FOUND)
    host.publish(model.stream())
    kit.answered_rows(model, question, host.select(question))


def no_header(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield distributor_pb2.PublishRequest(chunk=b"1234")


def nothing(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield from ()


def empty_message(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield distributor_pb2.PublishRequest()


def two_headers(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield model.header()
    yield model.header()


def empty_chunk(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield model.header()
    yield distributor_pb2.PublishRequest(chunk=b"")
    yield distributor_pb2.PublishRequest(chunk=model.payload)


def large_chunk(model: Any) -> Iterator[distributor_pb2.PublishRequest]:
    yield model.header()
    yield distributor_pb2.PublishRequest(chunk=bytes(CHUNK_BYTES + 1))


@pytest.mark.parametrize(
    "stream",
    [
        no_header,
        nothing,
        empty_message,
        two_headers,
        empty_chunk,
        large_chunk,
        lambda model: model.stream(model.payload[:-1]),
        lambda model: model.stream(model.payload + b"\0"),
        lambda model: model.stream(model.payload + bytes(len(model.payload)), chunk=len(model.payload)),
        lambda model: model.stream(model.payload[:-1] + bytes([model.payload[-1] ^ 1])),
        lambda model: model.stream(bytes([model.payload[0] ^ 1]) + model.payload[1:]),
        lambda model: model.stream(b""),
        lambda model: replace(model, task=common_pb2.SignedTask()).stream(),
        lambda model: replace(model, manifest=common_pb2.SignedManifest()).stream(),
    ],
    ids=[
        "no header", "nothing", "empty message", "two headers", "empty chunk", "large chunk", "one byte less",
        "one byte more", "a chunk more", "last byte", "first byte", "no content", "no task", "no manifest",
    ],
)  # fmt: skip
def test_a_stream_that_breaks_the_protocol_leaves_nothing(
    stream: Callable[[Any], Any], host: Host, developer: Any
) -> None:
    model = developer.model()
    with pytest.raises(grpc.RpcError) as caught:
        host.publish(stream(model))
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
    assert "internal" not in caught.value.details()
    assert host.folders() == []
    assert host.core.models() == ()


def test_a_model_that_its_developer_did_not_sign_is_refused(host: Host, developer: Any) -> None:
    model = developer.model()
    manifest = common_pb2.ModelManifest.FromString(model.manifest.manifest)
    forged = replace(model, manifest=sign_manifest(manifest, SigningKey.generate()))
    refused(lambda: host.publish(forged.stream()), grpc.StatusCode.PERMISSION_DENIED)
    assert host.folders() == []


def test_two_contents_of_one_version_are_both_served_by_hash(host: Host, developer: Any, kit: Any) -> None:
    models = [developer.model(0, seed=seed) for seed in range(2)]
    for model in models:
        host.publish(model.stream())
    for model in models:
        question = kit.ask(model, KEY.public, range(8))
        rows = kit.answered_rows(model, question, host.select(question))
        np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[:8])


def test_older_versions_leave_the_disk_as_they_leave_the_enclave(host: Host, developer: Any) -> None:
    models = [developer.model(version) for version in range(4)]
    for model in models:
        host.publish(model.stream())
    assert host.folders() == sorted(model.id.hex() for model in models[1:])
    message = refused(lambda: host.download(models[0].id, "items"), grpc.StatusCode.NOT_FOUND)
    assert models[0].id.hex()[:12] in message
    refused(lambda: host.publish(models[0].stream()), grpc.StatusCode.INVALID_ARGUMENT)


def test_malformed_requests_are_one_opaque_line(host: Host, developer: Any, kit: Any) -> None:
    model = developer.model()
    host.publish(model.stream())
    answers = {
        refused(lambda question=question: host.select(question), grpc.StatusCode.INVALID_ARGUMENT)
        for question in (
            kit.ask(model, KEY.public, [*range(7), 40]),
            kit.ask(model, KEY.public, range(7)),
            kit.ask(model, HpkeKey.generate().public, range(8)),
            replace(kit.ask(model, KEY.public, range(8)), sealed_keys=bytes(10_000)),
        )
    }
    assert answers == {"malformed select request"}


def test_unknown_models_and_tables_are_named_in_one_short_line(host: Host, developer: Any, kit: Any) -> None:
    model = developer.model()
    host.publish(model.stream())
    unknown = b"\xcd" * 32
    for call in (
        lambda: host.select(replace(kit.ask(model, KEY.public, range(8)), model=unknown)),
        lambda: host.download(unknown, "items"),
    ):
        assert "cdcdcdcdcdcd " in refused(call, grpc.StatusCode.NOT_FOUND)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert "did you mean 'items'" in refused(lambda: host.download(model.id, "item"), invalid)
    refused(lambda: host.download(model.id, "../" + model.id.hex() + "/task"), invalid)
    assert len(refused(lambda: host.download(model.id, "x" * 100_000), invalid)) < 200
    refused(lambda: host.download(b"short", "items"), invalid)
    refused(lambda: host.select(replace(kit.ask(model, KEY.public, range(8)), model=b"")), invalid)


def test_the_log_of_a_selection_is_the_same_whatever_the_keys(host: Host, developer: Any, kit: Any) -> None:
    model = developer.model()
    host.publish(model.stream())
    for keys in (range(8), [39] * 8):
        host.select(kit.ask(model, KEY.public, keys))
    refused(lambda: host.select(kit.ask(model, KEY.public, [40] * 8)), grpc.StatusCode.INVALID_ARGUMENT)
    lines = host.lines.getvalue().splitlines()
    selections = [line for line in lines if " select " in line]
    assert len(selections) == 2
    assert selections[0] == selections[1]
    assert {field.split("=")[0] for field in selections[0].split()[4:]} == {"model", "bytes_in", "bytes_out"}
    assert len(lines) == 4  # publishing, published, two selections; a refusal leaves no line


def test_a_restart_serves_the_same_models_again(open_host: Callable[..., Host], developer: Any, kit: Any) -> None:
    models = [developer.model(version) for version in range(3)]
    first = open_host()
    for model in models:
        first.publish(model.stream())
    first.close()
    again = open_host()
    for model in models:
        question = kit.ask(model, KEY.public, range(8))
        rows = kit.answered_rows(model, question, again.select(question))
        np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[:8])
    assert b"".join(again.download(models[0].id, "items")) == models[0].tables["items"]


@pytest.mark.parametrize("name", ["0000.f32", "0001.f32", "task", "manifest"])
@pytest.mark.parametrize("harm", ["flip", "delete", "truncate"])
def test_a_stored_model_that_was_changed_is_dropped_at_the_restart(
    harm: str, name: str, open_host: Callable[..., Host], developer: Any
) -> None:
    spoiled, whole = developer.model(0), developer.model(1)
    first = open_host()
    for model in (spoiled, whole):
        first.publish(model.stream())
    first.close()
    path = first.models / spoiled.id.hex() / name
    data = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "truncate" else data[:-1] + bytes([data[-1] ^ 1]))
    again = open_host()
    assert again.core.models() == (whole.id,)
    assert again.folders() == [whole.id.hex()]
    again.lines.wait_for("model_dropped")
    again.publish(spoiled.stream())
    assert again.core.holds(spoiled.id)


@pytest.mark.parametrize("seed", range(5))  # the order of the folders is the order of the hashes
def test_versions_that_a_killed_program_did_not_remove_go_at_the_restart(
    seed: int, open_host: Callable[..., Host], developer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [developer.model(version, seed=seed) for version in range(4)]
    first = open_host()
    with monkeypatch.context() as patch:
        patch.setattr(ModelFolders, "remove", lambda *_: None)
        for model in models:
            first.publish(model.stream())
    first.close()
    assert len(first.folders()) == 4
    again = open_host()
    assert again.folders() == sorted(model.id.hex() for model in models[1:])
    assert set(again.core.models()) == {model.id for model in models[1:]}


def test_a_full_disk_refuses_a_model_and_goes_on_serving(
    open_host: Callable[..., Host], developer: Any, kit: Any
) -> None:
    free = [2**40]
    host = open_host(free_bytes=lambda _: free[0])
    held, late = developer.model(0), developer.model(1)
    host.publish(held.stream())
    free[0] = 1000
    message = refused(lambda: host.publish(late.stream()), grpc.StatusCode.INTERNAL)
    assert "disk full" in message
    assert host.core.models() == (held.id,)
    question = kit.ask(held, KEY.public, range(8))
    kit.answered_rows(held, question, host.select(question))


def test_an_enclave_that_refuses_a_received_model_leaves_nothing_on_disk(host: Host, developer: Any) -> None:
    items = developer.model().broadcast.keyed
    rows = items.rows.copy()
    rows[0, 0] = np.inf
    model = developer.signed(ModelVersion(0, (TableValues("items", rows, True),)))
    refused(lambda: host.publish(model.stream()), grpc.StatusCode.INVALID_ARGUMENT)
    assert host.folders() == []
    assert host.core.models() == ()


def test_stalled_publishers_do_not_stop_devices(host: Host, developer: Any, kit: Any) -> None:
    held = developer.model(0)
    host.publish(held.stream())
    streams = [Stalled(developer.model(version)) for version in (1, 2)]
    calls = [host.stub.Publish.future(iter(stream), timeout=SECONDS) for stream in streams]
    host.lines.wait_for("publishing", count=3)
    busy = refused(lambda: host.publish(developer.model(3).stream()), grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "busy" in busy
    question = kit.ask(held, KEY.public, range(8))
    kit.answered_rows(held, question, host.select(question))
    for stream, call in zip(streams, calls, strict=True):
        call.cancel()
        stream.end.set()
    host.lines.wait_for("publish_failed", count=2)


def test_two_publishers_that_say_nothing_keep_no_place(host: Host, developer: Any) -> None:
    end = threading.Event()

    def silent() -> Iterator[distributor_pb2.PublishRequest]:
        end.wait(SECONDS)
        yield from ()

    calls = []
    for _ in range(servicer.MAX_PUBLISHES):
        stub = host.another()
        calls.append(stub.Publish.future(silent(), timeout=SECONDS))
        # The silent call is here once a later one of the same connection is answered.
        request = distributor_pb2.SelectRequest()
        refused(functools.partial(stub.Select, request, timeout=SECONDS), grpc.StatusCode.INVALID_ARGUMENT)
    model = developer.model()
    assert host.publish(model.stream()).model_sha256 == model.id
    assert not any(call.done() for call in calls)
    end.set()


def test_two_publishers_that_stall_after_their_header_lose_their_places(host: Host, developer: Any) -> None:
    streams = [Stalled(developer.model(version)) for version in (1, 2)]
    calls = [host.stub.Publish.future(iter(stream), timeout=SECONDS) for stream in streams]
    host.lines.wait_for("publishing", count=2)
    model = developer.model(3)

    def publish() -> bytes:
        try:
            return bytes(host.publish(model.stream()).model_sha256)
        except grpc.RpcError as error:
            raise translated(error, what="publish", address="here") from error

    assert Patience(tries=20).call(publish) == model.id
    lost = [call for call in calls if call.done()]
    assert [call.code() for call in lost] == [grpc.StatusCode.RESOURCE_EXHAUSTED], "one place was needed"
    for stream, call in zip(streams, calls, strict=True):
        call.cancel()
        stream.end.set()
    host.lines.wait_for("publish_failed", count=2)


def test_a_stream_is_cut_after_its_longest_time_whatever_its_deadline(
    open_host: Callable[..., Host], developer: Any
) -> None:
    host = open_host(call_seconds=0.3)
    stalled = Stalled(developer.model())
    refused(lambda: host.publish(iter(stalled)), grpc.StatusCode.DEADLINE_EXCEEDED)
    stalled.end.set()
    host.lines.wait_for("publish_failed")
    assert host.folders() == []


def test_downloads_give_their_places_back(host: Host, developer: Any) -> None:
    model = developer.model()
    host.publish(model.stream())
    for _ in range(servicer.MAX_DOWNLOADS * 3):
        assert b"".join(host.download(model.id, "items")) == model.tables["items"]


def test_two_publishes_of_one_model_at_once_both_succeed(host: Host, developer: Any) -> None:
    model = developer.model()
    calls = [host.stub.Publish.future(model.stream(chunk=10), timeout=SECONDS) for _ in range(2)]
    assert [call.result().model_sha256 for call in calls] == [model.id] * 2
    assert host.folders() == [model.id.hex()]


def test_downloads_beyond_the_queue_are_told_when_to_come_back(
    host: Host, developer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = developer.model()
    host.publish(model.stream())
    begin, begun = threading.Event(), threading.Semaphore(0)

    def held(*_: Any) -> Iterator[bytes]:
        begun.release()
        begin.wait(SECONDS)
        yield model.tables["items"]

    monkeypatch.setattr(servicer, "pieces", held)
    request = distributor_pb2.DownloadRequest(model_sha256=model.id, table="items")
    calls = [host.stub.Download(request, timeout=SECONDS) for _ in range(servicer.MAX_DOWNLOADS)]
    for _ in calls:
        assert begun.acquire(timeout=SECONDS)
    refusals, windows = 0, set()
    queued = [host.stub.Download(request, timeout=SECONDS) for _ in range(servicer.WAITING_DOWNLOADS + 3)]
    answers: list[bytes] = []
    failures: list[grpc.RpcError] = []

    def read(call: Any) -> None:
        try:
            answers.append(b"".join(reply.chunk for reply in call))
        except grpc.RpcError as error:
            failures.append(error)
            if len(failures) == 3:
                begin.set()

    threads = [threading.Thread(target=read, args=(call,)) for call in [*calls, *queued]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for error in failures:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        refusals += 1
        windows.add(dict(error.trailing_metadata())["odp-retry-ms"])
    assert refusals == 3
    assert len(windows) > 1  # each is drawn: two may be alike by chance
    assert answers == [model.tables["items"]] * (servicer.MAX_DOWNLOADS + servicer.WAITING_DOWNLOADS)

"""LogService over TLS: what everyone may read, and an audit of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from odp._system.files.durability import Health
from odp.crypto.note import Note, NoteKey
from odp.errors import ServiceError, StateError
from odp.transport.channel import connect
from odp.trust.log import merkle
from odp.trust.log.entries import PolicyEntry
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import packed, unpacked
from odp.trust.log.released_values import VALUES, ReleasedValues
from odp.trust.log.sources import LogServer
from odp.v1 import log_pb2, log_pb2_grpc, server_pb2, server_pb2_grpc
from server.log_servicer import log_servicer
from server.program import Config, RunningServer, start


@pytest.fixture
def running(world: Any, tmp_path: Path) -> Iterator[RunningServer]:
    config = Config(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        distributor="127.0.0.1:7201",
        distributor_control=world.services.distributor_control,
        aggregator_control=world.services.aggregator_control,
        aggregator=world.services.aggregator_address,
        ca_folder=world.services.ca_folder,
    )
    started = start(config, log=world.log)
    yield started
    started.stop()


@pytest.fixture
def stub(running: RunningServer) -> Iterator[log_pb2_grpc.LogServiceStub]:
    with connect(running.address, running.ca_pem) as channel:
        yield log_pb2_grpc.LogServiceStub(channel)


def _size(stub: log_pb2_grpc.LogServiceStub) -> tuple[int, bytes]:
    note = Note.parse(stub.GetCheckpoint(log_pb2.GetCheckpointRequest(), timeout=60).checkpoint)
    _origin, size, _root, _ = note.body.decode().split("\n")
    return int(size), note.body


def test_everything_that_the_service_gives_verifies(
    world: Any, definition: Any, running: RunningServer, stub: log_pb2_grpc.LogServiceStub
) -> None:
    world.aggregator.contributions = 5
    token = [("authorization", f"Bearer {running.token_path.read_text().strip()}")]
    with connect(running.address, running.ca_pem) as channel:
        server_pb2_grpc.ServerServiceStub(channel).SubmitTask(
            iter([server_pb2.SubmitTaskRequest(definition=definition)]), timeout=60, metadata=token
        )
    assert world.lines.wait_for("task_finished")
    size, _body = _size(stub)
    assert size == 1 + 1 + 4 + 1 + 3 + 3
    with connect(running.address, running.ca_pem) as channel:
        entries = list(LogServer(channel, running.address).entries(size))
    leaves = [merkle.leaf_hash(entry) for entry in entries]
    assert unpacked(stub.GetHashes(log_pb2.GetHashesRequest(level=0, start=0, count=2048), timeout=60).hashes) == leaves
    root = merkle.root_of(leaves)
    for index, leaf in enumerate(leaves):
        found = stub.GetInclusionProof(
            log_pb2.GetInclusionProofRequest(leaf_sha256=leaf, size=size), timeout=60
        ).inclusion
        assert found.index == index
        merkle.verify_inclusion(leaf=leaf, index=index, size=size, proof=unpacked(found.hashes), root=root)
    for first in range(1, size):
        reply = stub.GetConsistencyProof(log_pb2.GetConsistencyProofRequest(first=first, second=size), timeout=60)
        merkle.verify_consistency(
            first=first,
            second=size,
            first_root=merkle.root_of(leaves[:first]),
            second_root=root,
            proof=unpacked(reply.hashes),
        )


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("GetInclusionProof", log_pb2.GetInclusionProofRequest(leaf_sha256=bytes(32), size=1), "NOT_FOUND"),
        ("GetInclusionProof", log_pb2.GetInclusionProofRequest(leaf_sha256=b"x", size=1), "INVALID_ARGUMENT"),
        ("GetConsistencyProof", log_pb2.GetConsistencyProofRequest(first=1, second=2**40), "INVALID_ARGUMENT"),
        ("GetConsistencyProof", log_pb2.GetConsistencyProofRequest(first=2, second=0), "INVALID_ARGUMENT"),
        ("GetEntries", log_pb2.GetEntriesRequest(start=0, count=1), "NOT_FOUND"),
        ("GetEntries", log_pb2.GetEntriesRequest(start=0, count=0), "INVALID_ARGUMENT"),
        ("GetEntries", log_pb2.GetEntriesRequest(start=0, count=2**20), "INVALID_ARGUMENT"),
        ("GetHashes", log_pb2.GetHashesRequest(level=9, start=0, count=1), "INVALID_ARGUMENT"),
        ("GetHashes", log_pb2.GetHashesRequest(level=0, start=0, count=2**20), "INVALID_ARGUMENT"),
        ("GetHashes", log_pb2.GetHashesRequest(level=0, start=2**60, count=1), "INVALID_ARGUMENT"),
    ],
)
def test_a_question_out_of_range_is_answered_with_one_line(
    stub: log_pb2_grpc.LogServiceStub, method: str, request_: Any, code: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request_, timeout=60)
    assert caught.value.code().name == code  # type: ignore[attr-defined]  # grpc's errors have it; the stubs do not
    assert "\n" not in (caught.value.details() or "")  # type: ignore[attr-defined]


def test_large_entries_come_in_answers_that_fit(world: Any, tmp_path: Path) -> None:
    entries = [PolicyEntry(bytes([number]) * 2**20).encode() for number in range(7)]
    with LogFiles.open(tmp_path / "log", NoteKey.generate("example.com/log"), now=1.0) as log:
        log.append(entries, now=1.0)
        servicer, got = log_servicer(log, ReleasedValues(log.folder / VALUES, Health()), world.log), []
        while len(got) < len(entries):
            reply = servicer.GetEntries(log_pb2.GetEntriesRequest(start=len(got), count=100), None)  # type: ignore[arg-type]
            assert 0 < sum(map(len, reply.entries)) <= 5 * 2**20
            got += list(reply.entries)
        assert got == entries
        assert (
            packed(log.hashes(0, 0, 7))
            == servicer.GetHashes(
                log_pb2.GetHashesRequest(level=0, start=0, count=7),
                None,  # type: ignore[arg-type]
            ).hashes
        )


def test_a_server_without_a_log_service_is_one_line(world: Any) -> None:
    address = world.services.aggregator_address
    with connect(address, world.services.ca_folder / "ca.pem") as channel, pytest.raises(ServiceError):
        LogServer(channel, address).note()


def test_the_log_and_its_key_survive_a_restart(world: Any, tmp_path: Path, running: RunningServer) -> None:
    key, state = running.log_key, tmp_path / "state"
    config = Config(
        state=state,
        listen="127.0.0.1:0",
        distributor="127.0.0.1:7201",
        distributor_control=world.services.distributor_control,
        aggregator_control=world.services.aggregator_control,
        aggregator=world.services.aggregator_address,
        ca_folder=world.services.ca_folder,
    )
    running.stop()
    (state / "log.key").rename(tmp_path / "away.key")
    with pytest.raises(StateError, match=r"log.key is gone, and it signs the log"):
        start(config, log=world.log)
    assert not (state / "log.key").exists(), "no other key is made"
    (tmp_path / "away.key").rename(state / "log.key")
    again = start(config, log=world.log)
    assert again.log_key == key
    assert again.log_folder == state / "log"
    again.stop()

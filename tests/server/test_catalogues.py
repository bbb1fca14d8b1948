"""CatalogueService: what is published is signed, logged, one chain, and what tasks are held to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import odp
from odp.crypto.note import NoteKey
from odp.errors import ConfigurationError, ServiceError
from odp.protocol.catalogues.catalogue import BLOCK, Catalogue
from odp.protocol.catalogues.exchange import steps_of
from odp.protocol.catalogues.step import SignedStep
from odp.services.connection import Connection
from odp.transport.backpressure import Patience
from odp.transport.channel import connect
from odp.trust.log.endorsements import EndorsementFile
from odp.trust.log.entries import CatalogueEntry, decode
from odp.trust.log.log_files import LogFiles
from odp.trust.log.sources import LogServer
from odp.v1 import catalogue_pb2, catalogue_pb2_grpc
from server.program import Config, RunningServer, start
from server.storage import TaskState
from server.transparency import LogKeeper

FIRST = Catalogue.make("viewers", [f"film {number}" for number in range(12)])
SECOND = FIRST.change(add=["new"], retire=["film 3"])


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
def connection(running: RunningServer) -> Iterator[Connection]:
    token = running.token_path.read_text().strip()
    with Connection(address=running.address, ca=running.ca_pem, token=token) as opened:
        yield opened


def read(running: RunningServer, block: int, population: str = "viewers") -> list[bytes]:
    with connect(running.address, running.ca_pem) as channel:
        stub = catalogue_pb2_grpc.CatalogueServiceStub(channel)
        return steps_of(stub, population, block, address=running.address, patience=Patience())


def test_what_is_published_can_be_read_by_everyone_and_is_in_the_log(
    world: Any, running: RunningServer, connection: Connection
) -> None:
    connection.publish_catalogue(FIRST)
    assert (read(running, 0), read(running, 1)) == ([FIRST.steps[0]], [])
    long = SECOND
    for number in range(BLOCK):
        long = long.change(add=[f"later {number}"])
    connection.publish_catalogue(long)
    connection.publish_catalogue(long)
    assert read(running, 1) == list(long.steps[1 : 1 + BLOCK])
    assert read(running, 2) == list(long.steps[1 + BLOCK :])
    assert read(running, 9) == []
    with connect(running.address, running.ca_pem) as channel:
        source = LogServer(channel, running.address)
        size = int(source.note().split(b"\n")[1])
        entries = [decode(data) for data in source.entries(size)]
    logged = [entry for entry in entries if isinstance(entry, CatalogueEntry)]
    assert [entry.step for entry in logged] == list(long.steps), "each version once"
    for entry in logged:
        assert entry.key == running.developer_key
        entry.signed.open()


def test_the_version_that_a_task_names_is_read_and_another_one_is_not_taken_for_it(connection: Connection) -> None:
    connection.publish_catalogue(SECOND)
    fork, later = FIRST.change(add=["fork"]), SECOND.change(add=["later"])
    for named in (FIRST, SECOND):
        found = connection.named_catalogue(films(named).definition())
        assert found is not None
        assert (found, found.keys) == (named, named.keys)
    for other, message in ((fork, "version 2 of 'viewers' that task 'films' names: publish"), (later, "version 3 of")):
        with pytest.raises(ServiceError, match=f"does not have catalogue {message}"):
            connection.named_catalogue(films(other).definition())


def test_a_fork_is_refused_and_names_the_version(running: RunningServer, connection: Connection) -> None:
    connection.publish_catalogue(SECOND)
    fork = FIRST.change(add=["fork"])
    for other, version in ((fork, 2), (fork.change(add=["further"]), 2), (Catalogue.make("viewers", ["another"]), 1)):
        with pytest.raises(ConfigurationError, match=f"another version {version} of .* that was published last"):
            connection.publish_catalogue(other)
    connection.publish_catalogue(FIRST)  # a file that is behind has nothing to add
    assert read(running, 1) == [SECOND.steps[1]]


def test_only_the_operator_publishes_and_nobody_sends_more_than_a_step(running: RunningServer) -> None:
    chunk = catalogue_pb2.PublishCatalogueRequest(chunk=bytes(2**20))
    token = [("authorization", f"Bearer {running.token_path.read_text().strip()}")]
    with connect(running.address, running.ca_pem) as channel:
        stub = catalogue_pb2_grpc.CatalogueServiceStub(channel)
        with pytest.raises(grpc.RpcError) as nobody:
            stub.PublishCatalogue(iter([catalogue_pb2.PublishCatalogueRequest(chunk=FIRST.steps[0])]), timeout=60)
        with pytest.raises(grpc.RpcError) as large:
            stub.PublishCatalogue(iter([chunk] * 17), timeout=60, metadata=token)
    assert nobody.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    assert large.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    with pytest.raises(ServiceError, match="has no catalogue"):
        read(running, 0)
    for population, block in (("No Name", 0), ("viewers", 2**32 - 1)):
        with pytest.raises(ServiceError, match="Expected"):
            read(running, block, population)


def films(catalogue: Catalogue, **model: Any) -> odp.Task:
    return odp.Task(
        name="films",
        population="viewers",
        model=odp.MatrixFactorization(items=catalogue.items, rank=0, catalogue=catalogue, **model),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
        training=odp.DPAM(slices_per_device=8),
        cohort=odp.Cohort(minimum=2, goal=3),
    )


def test_a_task_names_a_version_that_was_published_and_not_withdrawn(
    world: Any, running: RunningServer, connection: Connection
) -> None:
    with pytest.raises(ServiceError, match=r"has no catalogue: run `odp catalogue publish` first"):
        connection.submit(films(FIRST))
    connection.publish_catalogue(FIRST)
    with pytest.raises(ServiceError, match=r"version 1 .* as its newest: run `odp catalogue publish` first"):
        connection.submit(films(SECOND))
    with pytest.raises(ServiceError, match="another catalogue version 1"):
        connection.submit(films(Catalogue.make("viewers", [f"song {number}" for number in range(12)])))
    wrong = dataclasses.replace(films(FIRST), model=odp.MatrixFactorization(items=11, rank=0))
    definition = wrong.definition()
    definition.model.catalogue.CopyFrom(FIRST.to_proto())
    with pytest.raises(ServiceError, match=r"Expected items=11 .* to be the 12 of catalogue version 1"):
        connection.submit(_Definition(definition))  # type: ignore[arg-type]
    world.aggregator.contributions = 5
    handle = connection.submit(films(FIRST))
    assert world.lines.wait_for("task_finished")
    third = SECOND.change(withdraw=[1])
    connection.publish_catalogue(third)
    assert connection.submit(films(FIRST)).task_sha256 == handle.task_sha256, "the same task again is no new one"
    with pytest.raises(ServiceError, match=r"version 1 .* was withdrawn: make the task with version 3"):
        connection.submit(dataclasses.replace(films(FIRST), name="again"))


@dataclasses.dataclass
class _Definition:
    """What a client sends that does not check."""

    wanted: Any
    name: str = "films"
    public_matrix: None = None

    def definition(self) -> Any:
        return self.wanted


def test_a_task_whose_version_is_withdrawn_before_it_is_logged_fails_by_name(world: Any, tmp_path: Path) -> None:
    with LogFiles.open(tmp_path / "log", NoteKey.generate("example.com/log"), now=1.0) as log:
        keeper = LogKeeper(log, endorsements=EndorsementFile(), events=world.log, clock=world.clock)
        assert world.populations(keeper=keeper).require_owned("viewers")
        for step in FIRST.steps:
            assert keeper.log_catalogue(SignedStep.by(world.key, step))
        sha256 = world.submit(films(FIRST).definition())
        for step in SECOND.change(withdraw=[1]).steps:
            keeper.log_catalogue(SignedStep.by(world.key, step))
        world.run(world.driver(keeper=keeper))
        task = world.storage.task(sha256)
        assert task.state is TaskState.FAILED
        assert "catalogue version 1 of population 'viewers' was withdrawn" in task.failure
        assert not keeper.has_task(task.signed)


def test_a_restart_knows_what_was_published(world: Any, tmp_path: Path) -> None:
    key = NoteKey.generate("example.com/log")
    for steps, new in ((FIRST.steps, True), (SECOND.steps, False)):
        with LogFiles.open(tmp_path / "log", key, now=1.0) as log:
            keeper = LogKeeper(log, endorsements=EndorsementFile(), events=world.log, clock=world.clock)
            assert keeper.log_catalogue(SignedStep.by(world.key, steps[0])) is new
            for step in steps[1:]:
                assert keeper.log_catalogue(SignedStep.by(world.key, step))
            newest = keeper.catalogues.newest("viewers")
            assert newest is not None
            assert newest.steps == steps
    with pytest.raises(ConfigurationError, match="was published with other items"):
        keeper.log_catalogue(SignedStep.by(world.key, Catalogue.make("viewers", ["fork"]).steps[0]))

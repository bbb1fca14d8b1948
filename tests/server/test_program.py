"""The whole server over TLS: operators, devices, secrets on disk, restarts."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError
from odp.signed.task import open_task
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.endorsements import EndorsementFile, endorse
from odp.trust.log.entries import PolicyEntry
from odp.v1 import common_pb2, server_pb2, server_pb2_grpc
from server.program import Config, Running, start
from server.storage.sqlite import open_sqlite

States = server_pb2.TaskStatus


class Caller:
    """A client of a running server, with the operator's token."""

    def __init__(self, running: Running) -> None:
        self.channel = connect(running.address, running.ca_pem)
        self.stub = server_pb2_grpc.ServerServiceStub(self.channel)
        self.metadata = [("authorization", f"Bearer {running.token_path.read_text().strip()}")]

    def submit(self, definition: common_pb2.TaskDefinition) -> bytes:
        request = server_pb2.SubmitTaskRequest(definition=definition)
        return self.stub.SubmitTask(iter([request]), timeout=60, metadata=self.metadata).task_sha256

    def status(self, sha256: bytes) -> server_pb2.TaskStatus:
        request = server_pb2.GetTaskRequest(task_sha256=sha256)
        return self.stub.GetTask(request, timeout=60, metadata=self.metadata).status

    def cancel(self, sha256: bytes) -> None:
        self.stub.CancelTask(server_pb2.CancelTaskRequest(task_sha256=sha256), timeout=60, metadata=self.metadata)

    def check_in(self, population: str) -> server_pb2.CheckInResponse:
        return self.stub.CheckIn(server_pb2.CheckInRequest(population=population), timeout=60)


@pytest.fixture
def config(world: Any, tmp_path: Path) -> Config:
    return Config(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        distributor="127.0.0.1:7201",
        distributor_control=world.services.distributor_control,
        aggregator_control=world.services.aggregator_control,
        aggregator=world.services.aggregator_address,
        ca_folder=world.services.ca_folder,
    )


@pytest.fixture
def run(world: Any) -> Iterator[Callable[[Config], tuple[Running, Caller]]]:
    started: list[tuple[Running, Caller]] = []

    def start_one(config: Config) -> tuple[Running, Caller]:
        running = start(config, log=world.log)
        started.append((running, Caller(running)))
        return started[-1]

    yield start_one
    for running, caller in started:
        caller.channel.close()
        running.stop()


def test_a_submitted_task_runs_to_its_end(world: Any, definition: Any, config: Config, run: Any) -> None:
    world.aggregator.contributions = 5
    running, caller = run(config)
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("task_finished")
    status = caller.status(sha256)
    assert status.state == States.STATE_FINISHED
    assert status.planned_rounds == 3
    assert [entry.round for entry in status.rounds] == [0, 1, 2]
    for entry in status.rounds:
        release = common_pb2.Release.FromString(entry.release.release)
        assert (release.task_sha256, release.round, entry.contributions) == (sha256, entry.round, 5)
        assert entry.state == server_pb2.RoundStatus.STATE_APPLIED
        assert 0 < entry.opened <= entry.closed
    assert common_pb2.ModelManifest.FromString(status.model.manifest).version == 3
    assert (status.distributor_address, status.aggregator_address) == (config.distributor, config.aggregator)
    assert open_task(status.task).developer_key == running.developer_key


def test_the_reference_values_of_the_configuration_are_used(
    world: Any, definition: Any, config: Config, run: Any, tmp_path: Path
) -> None:
    world.aggregator.contributions = 5
    values: ReferenceValues = world.services.reference_values(image="sha384:" + "cd" * 48)
    values.save(tmp_path / "reference.json")
    _running, caller = run(dataclasses.replace(config, reference_values=tmp_path / "reference.json"))
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("wrong_image")
    assert caller.status(sha256).state == States.STATE_ACTIVE


def test_r376_a_server_takes_reference_values_that_change_without_a_restart(
    world: Any, definition: Any, config: Config, run: Any, tmp_path: Path
) -> None:
    """An operator upgrades the aggregator, and lists its new code in the file: the round goes on to its release."""
    world.aggregator.contributions = 5
    path = tmp_path / "reference.json"
    world.services.reference_values(image="sha384:" + "cd" * 48).save(path)
    _running, caller = run(dataclasses.replace(config, reference_values=path))
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("wrong_image")
    world.services.reference_values().save(path)
    assert world.lines.wait_for("task_finished")
    assert caller.status(sha256).state == States.STATE_FINISHED


def test_r376_a_server_logs_endorsements_that_change_without_a_restart(
    world: Any, config: Config, run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "endorsements.json"
    EndorsementFile((PolicyEntry(world.services.policy.to_bytes()),), (), ()).save(path)
    run(dataclasses.replace(config, endorsements=path))
    assert world.lines.wait_for(" serving ")
    assert "endorsements_logged" not in world.lines.text, "they were logged before it serves"
    entry, _ = endorse(
        SigningKey.generate(), role="aggregator", image_digest=world.services.identity.image_digest,
        policy_sha256=world.services.policy.sha256.hex(), not_before=0, not_after=2**39,
    )  # fmt: skip
    EndorsementFile((PolicyEntry(world.services.policy.to_bytes()),), (entry,), ()).save(path)
    assert world.lines.wait_for("endorsements_logged size=2")


def test_a_device_gets_the_open_round_with_the_configured_addresses(
    world: Any, definition: Any, config: Config, run: Any
) -> None:
    _running, caller = run(config)
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("round_opened")
    assignment = caller.check_in("viewers").assignment
    assert assignment.round == 0
    assert open_task(assignment.task).name == "films"
    assert common_pb2.ModelManifest.FromString(assignment.model.manifest).task_sha256 == sha256
    assert assignment.distributor_address == config.distributor
    assert assignment.aggregator_address == config.aggregator


def test_a_restart_goes_on_with_the_same_key_token_and_round(
    world: Any, definition: Any, config: Config, run: Any
) -> None:
    running, caller = run(config)
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("round_opened")
    running.stop()
    again, other = run(config)
    assert again.developer_key == running.developer_key
    assert other.metadata == caller.metadata
    assert other.check_in("viewers").assignment.round == 0
    world.aggregator.contributions = 5
    assert world.lines.wait_for("task_finished")
    assert other.status(sha256).state == States.STATE_FINISHED
    assert len(world.aggregator.drawn) == 3


def test_the_secrets_are_readable_by_their_owner_only(config: Config, run: Any) -> None:
    run(config)
    for name in ("developer.key", "operator.token", "server.sqlite"):
        assert stat.S_IMODE((config.state / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(config.state.stat().st_mode) == 0o700


def test_every_start_makes_its_own_secrets(config: Config, run: Any, tmp_path: Path) -> None:
    first, caller = run(config)
    second, other = run(dataclasses.replace(config, state=tmp_path / "other"))
    assert first.developer_key != second.developer_key
    assert caller.metadata != other.metadata


@pytest.mark.parametrize("name", ["developer.key", "operator.token"])
def test_a_damaged_secret_is_named(config: Config, run: Any, name: str) -> None:
    running, _caller = run(config)
    running.stop()
    (config.state / name).write_bytes(b"short")
    with pytest.raises(StateError, match=name):
        start(config)


def test_a_second_server_on_one_folder_is_refused_and_the_first_goes_on(config: Config, run: Any) -> None:
    _running, caller = run(config)
    with pytest.raises(StateError, match="in use"):
        start(config)
    assert caller.check_in("viewers").HasField("retry")


def test_a_taken_port_is_one_line_and_frees_the_folder(config: Config, run: Any, tmp_path: Path) -> None:
    running, _caller = run(config)
    other = dataclasses.replace(config, state=tmp_path / "other")
    with pytest.raises(ConfigurationError, match="in use"):
        start(dataclasses.replace(other, listen=running.address), log=Log("server"))
    run(other)


@pytest.mark.parametrize(
    "change",
    [
        {"listen": "7200"},
        {"aggregator": "somewhere"},
        {"distributor": "host:99999"},
        {"certificate": Path("server.pem")},
        {"certificate": Path("server.pem"), "key": Path("server.key")},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Expected"):
        Config(state=tmp_path, **change)


def test_stopping_twice_is_stopping_once(config: Config, run: Any) -> None:
    running, _caller = run(config)
    running.stop()
    running.stop()
    storage = open_sqlite(config.state / "server.sqlite")
    assert storage.tasks() == []
    storage.close()


def test_a_server_starts_while_the_other_services_are_away(
    definition: Any, config: Config, run: Any, world: Any
) -> None:
    nobody = "127.0.0.1:1"
    away = dataclasses.replace(
        config, distributor=nobody, aggregator=nobody, distributor_control=nobody, aggregator_control=nobody
    )
    _running, caller = run(away)
    sha256 = caller.submit(definition)
    assert world.lines.wait_for("task_waits")
    assert caller.status(sha256).state == States.STATE_ACTIVE
    retry = caller.check_in("viewers").retry
    assert (retry.min_seconds, retry.max_seconds) == (1, 2)


def test_a_connection_without_the_servers_ca_is_refused(config: Config, run: Any, tmp_path: Path) -> None:
    running, _caller = run(config)
    _other, stranger = run(dataclasses.replace(config, state=tmp_path / "other", ca_folder=tmp_path / "ca"))
    pem = (tmp_path / "ca" / "ca.pem").read_bytes()
    assert stranger.check_in("viewers").HasField("retry")
    with connect(running.address, pem) as channel, pytest.raises(grpc.RpcError) as caught:
        server_pb2_grpc.ServerServiceStub(channel).CheckIn(server_pb2.CheckInRequest(population="viewers"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

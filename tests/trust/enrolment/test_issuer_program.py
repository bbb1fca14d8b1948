"""The issuer as a program: devices and servers over TLS, each at its own listener."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trust.enrolment.world import NOW, Clock, Developer, Device

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable, StateError
from odp.signed.task import open_task, task_sha256
from odp.transport.channel import call, connect
from odp.transport.logs import Log
from odp.transport.tls import TlsIdentity, development_identity
from odp.trust.enrolment import issuer_program
from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedVendor
from odp.trust.enrolment.attesters.roster import RosterAttester
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.v1 import common_pb2, enrolment_pb2, enrolment_pb2_grpc


class World:
    """An issuer that runs, and who asks it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.lines = io.StringIO()
        self.clock = Clock()
        self.developer = Developer()
        self.vendor = EmulatedVendor.open(folder / "vendor", clock=self.clock)
        self.config = issuer_program.Config(
            state=folder / "issuer",
            developers=(self.developer.key.public.hex(),),
            emulated_vendors=(folder / "vendor" / ROOT_FILE,),
            listen="127.0.0.1:0",
            control_listen="127.0.0.1:0",
            ca_folder=folder / "ca",
        )

    def start(self, **changes: object) -> issuer_program.RunningIssuer:
        running = issuer_program.start(
            replace(self.config, **changes),  # type: ignore[arg-type]
            log=Log("issuer", stream=self.lines),
            clock=self.clock,
        )
        self.stack.callback(running.stop)
        self.running = running
        return running

    def identity(self, role: str) -> TlsIdentity:
        with StateFolder.open(self.folder / role, role) as state:
            return development_identity(state, self.folder / "ca")

    def signed_key(
        self, task: common_pb2.SignedTask, round: int, *, identity: TlsIdentity | None, address: str | None = None
    ) -> enrolment_pb2.SignedTokenKey:
        address = self.running.control_address if address is None else address
        order, signature = self.developer.order(task, round)
        with connect(address, self.running.ca_pem, identity=identity) as channel:
            stub = enrolment_pb2_grpc.EnrolmentControlServiceStub(channel)
            request = enrolment_pb2.GetTokenKeyRequest(task=task, order=order, signature=signature)
            reply: enrolment_pb2.GetTokenKeyResponse = call(
                stub.GetTokenKey, request, timeout=20.0, what="get a token key", address=address
            )
        return reply.token_key

    def token_key(self, task: common_pb2.SignedTask, round: int) -> TokenKey:
        return open_token_key(
            self.signed_key(task, round, identity=self.identity("server")),
            issuer_key=bytes.fromhex(self.running.key),
            population=open_task(task).population,
            task_sha256=task_sha256(task),
            round=round,
        )

    def device(self, number: int) -> Device:
        secret = bytes([number]) * 32
        return Device(secret, self.vendor.device(secret))

    def token(self, device: Device, key: TokenKey, *, message: bytes | None = None) -> bytes:
        request = device.request(key, bytes.fromhex(self.running.key), message=message)
        with connect(self.running.address, self.running.ca_pem) as channel:
            stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
            asked = {"timeout": 20.0, "what": "get a token", "address": self.running.address}
            challenge = call(stub.GetChallenge, enrolment_pb2.GetChallengeRequest(), **asked)  # type: ignore[arg-type]
            return request.token(call(stub.IssueToken, request.answer(challenge, device.attester), **asked))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(tmp_path, stack)


def test_devices_get_tokens_over_tls_and_a_restart_forgets_none(world: World) -> None:
    running = world.start()
    task = world.developer.task()
    key = world.token_key(task, 0)
    token = world.token(world.device(1), key)
    assert key.admits(domains.contribution_token(world.device(1).contribution_id(key)), token)
    running.stop()
    again = world.start()
    assert again.key == running.key == issuer_program.issuer_key(world.folder / "issuer")
    assert world.token_key(task, 0) == key
    assert world.token(world.device(1), key) == token
    with pytest.raises(ServiceError, match="one device, one token"):
        world.token(world.device(1), key, message=bytes(32))
    assert "keys=1 tokens=1" in world.lines.getvalue()
    assert world.device(1).secret.hex() not in world.lines.getvalue()


def test_a_token_key_is_made_for_servers_alone(world: World) -> None:
    running = world.start()
    task = world.developer.task()
    with pytest.raises(ServiceUnavailable):
        world.signed_key(task, 0, identity=None)
    with pytest.raises(ServiceError, match="admits odp:server"):
        world.signed_key(task, 0, identity=world.identity("distributor"))
    # The listener of devices has no such method.
    with pytest.raises(ServiceError, match="ethod not found"):
        world.signed_key(task, 0, identity=None, address=running.address)
    world.token_key(task, 0)


def test_devices_of_a_roster_get_tokens_and_others_none(world: World) -> None:
    members = [Developer().key for _ in range(2)]
    roster = world.folder / "roster.txt"
    roster.write_text("".join(f"{key.public.hex()}\n" for key in members[:1]))
    world.start(emulated_vendors=(), roster=roster)
    key = world.token_key(world.developer.task(), 0)
    world.token(Device(bytes(32), RosterAttester(members[0])), key)
    with pytest.raises(ServiceError, match="not on the issuer's roster"):
        world.token(Device(b"2" * 32, RosterAttester(members[1])), key)


def test_an_issuer_that_does_not_start_says_why(world: World) -> None:
    junk = world.folder / "junk"
    junk.write_text("junk")
    for changes, told in (
        ({"developers": ()}, "--developer"),
        ({"developers": ("xyz",)}, "64 hex digits"),
        ({"developers": ("ab",)}, "32 bytes"),
        ({"emulated_vendors": ()}, "--emulated-vendor or --roster"),
        ({"emulated_vendors": (junk,)}, "not a PEM certificate"),
        ({"emulated_vendors": (world.folder / "nowhere",)}, "check the path"),
        ({"roster": junk}, "roster"),
        ({"listen": "nowhere"}, "host:port"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            world.start(**changes)
    world.start()
    with pytest.raises(StateError, match="in use"):
        world.start()
    world.running.stop()
    (world.folder / "issuer" / issuer_program.KEY_FILE).write_bytes(b"short")
    with pytest.raises(StateError, match="not a signing key"):
        world.start()


def test_the_key_can_be_read_before_the_issuer_ran(tmp_path: Path) -> None:
    key = issuer_program.issuer_key(tmp_path / "issuer")
    assert len(bytes.fromhex(key)) == 32
    assert issuer_program.issuer_key(tmp_path / "issuer") == key


def test_nothing_is_said_about_time_but_what_the_clock_of_the_test_says(world: World) -> None:
    world.start()
    assert world.token_key(world.developer.task(), 0).not_after == NOW + 30 * 24 * 3600

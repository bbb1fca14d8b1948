"""A connection, against a server that answers what a test says: what is checked, and what a failure says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import odp
from odp._system.files.state_folder import StateFolder
from odp.algorithms.registry import algorithm_for
from odp.crypto.signing import SIGNATURE_BYTES, SignatureError, SigningKey
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import manifest_for, table_bytes
from odp.services.connection import Connection, TaskHandle
from odp.signed.task import sign_manifest, sign_task, task_sha256
from odp.transport.service import RunningServer, serve
from odp.transport.tls import TlsIdentity, development_identity
from odp.v1 import common_pb2, distributor_pb2, distributor_pb2_grpc, server_pb2, server_pb2_grpc

TASK = odp.Task(
    name="films",
    model=odp.MatrixFactorization(items=12),
    data=odp.RatingsData(),
    privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    cohort=odp.Cohort(minimum=20),
)
KEY = SigningKey.generate()
MODEL = ModelVersion(1, (TableValues("items", np.arange(36, dtype=np.float32).reshape(12, 3), True),))
TOKEN = "secret-token"


class Fake(server_pb2_grpc.ServerServiceServicer, distributor_pb2_grpc.DistributorServiceServicer):
    """Both services at one address. ``chunks`` is what Download sends; ``states`` what GetTask says, in turn."""

    def __init__(self) -> None:
        self.address = ""
        self.tokens: list[str] = []
        self.signed = sign_task(TASK.definition(), KEY)
        self.manifest = sign_manifest(manifest_for(MODEL, task_sha256(self.signed)), KEY)
        self.states = [server_pb2.TaskStatus.STATE_ACTIVE]
        data = table_bytes(MODEL.keyed)
        self.chunks: Iterator[bytes] | list[bytes] = [data[:50], data[50:]]
        self.sent = 0

    def SubmitTask(self, requests, context):
        self.tokens += [value for key, value in context.invocation_metadata() if key == "authorization"]
        if self.tokens[-1] != f"Bearer {TOKEN}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this call needs the operator's token")
        self.signed = sign_task(next(requests).definition, KEY)
        return server_pb2.SubmitTaskResponse(task_sha256=task_sha256(self.signed))

    def GetTask(self, request, context):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        status = server_pb2.TaskStatus(
            task=self.signed, state=state, model=self.manifest, distributor_address=self.address
        )
        return server_pb2.GetTaskResponse(status=status)

    def Download(self, request, context):
        for chunk in self.chunks:
            self.sent += 1
            yield distributor_pb2.DownloadResponse(chunk=chunk)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def identity(tmp_path: Path, stack: contextlib.ExitStack) -> TlsIdentity:
    """Its files lie as `odp up` leaves them below ``tmp_path``."""
    folder = stack.enter_context(StateFolder.open(tmp_path / "server", "server"))
    folder.write_atomically("operator.token", f"{TOKEN}\n".encode())
    return development_identity(folder, tmp_path / "ca")


@pytest.fixture
def fake(identity: TlsIdentity, stack: contextlib.ExitStack) -> Fake:
    servicer = Fake()

    def add(server: grpc.Server) -> None:
        server_pb2_grpc.add_ServerServiceServicer_to_server(servicer, server)
        distributor_pb2_grpc.add_DistributorServiceServicer_to_server(servicer, server)

    running: RunningServer = serve(address="127.0.0.1:0", identity=identity, add=add, service_names=[])
    stack.callback(running.stop, 0.0)
    servicer.address = running.address
    return servicer


@pytest.fixture
def handle(fake: Fake, identity: TlsIdentity, stack: contextlib.ExitStack) -> TaskHandle:
    connection = stack.enter_context(Connection(address=fake.address, ca=identity.ca_pem, token=TOKEN))
    return TaskHandle(connection, task_sha256(fake.signed))


def test_the_state_folder_of_the_services_is_all_that_connect_needs(fake: Fake, tmp_path: Path) -> None:
    with odp.connect(fake.address, state=tmp_path) as connection:
        assert connection.submit(TASK).task_sha256 == task_sha256(fake.signed)
    assert fake.tokens == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize("named", [False, True])
def test_connect_alone_finds_folder_and_address(
    fake: Fake, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (tmp_path / "server" / "address").write_text(f"{fake.address}\n")
    elsewhere = tmp_path_factory.mktemp("project") / "deep" / "inside"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("ODP_STATE", raising=False)
    if named:
        monkeypatch.setenv("ODP_STATE", str(tmp_path))
    else:
        (elsewhere.parents[1] / "odp-state").symlink_to(tmp_path)
    with odp.connect() as connection:
        assert connection.submit(TASK).task_sha256 == task_sha256(fake.signed)


def test_connect_without_services_says_what_to_run(
    tmp_path: Path, identity: TlsIdentity, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    monkeypatch.delenv("ODP_STATE", raising=False)
    with pytest.raises(ConfigurationError, match=r"has odp-state, .*run `odp up` there, or name its folder"):
        odp.connect()
    monkeypatch.setenv("ODP_STATE", "nowhere")
    with pytest.raises(ConfigurationError, match=r"ODP_STATE='nowhere' is no .* `odp up --state nowhere`"):
        odp.connect()
    # Services that never served have no address.
    with pytest.raises(ConfigurationError, match=r"address of the server; start it with `odp up --state "):
        odp.connect(state=tmp_path)


def test_a_wrong_token_is_the_servers_one_line(fake: Fake, tmp_path: Path) -> None:
    with (
        odp.connect(fake.address, state=tmp_path, token="wrong") as connection,
        pytest.raises(ServiceError, match="could not submit the task 'films': this call needs the operator's token"),
    ):
        connection.submit(TASK)


def test_what_connect_does_not_find_is_named(tmp_path: Path, identity: TlsIdentity) -> None:
    with pytest.raises(ConfigurationError, match="no state folder of `odp up`; start it first"):
        odp.connect("127.0.0.1:1", state=tmp_path / "nothing")
    (tmp_path / "server" / "operator.token").unlink()
    with pytest.raises(
        ConfigurationError, match=r"operator\.token; start the server first, or give its folder or token"
    ):
        odp.connect("127.0.0.1:1", state=tmp_path)
    with pytest.raises(ConfigurationError, match="host:port"):
        odp.connect("7200", state=tmp_path)


@pytest.mark.parametrize("token", ["", "two\nlines", "ünicode", "a b"])
def test_a_token_that_no_header_can_carry_is_refused_at_once(tmp_path: Path, identity: TlsIdentity, token: str) -> None:
    with pytest.raises(ConfigurationError, match="token"):
        odp.connect("127.0.0.1:1", state=tmp_path, token=token)


def test_the_model_is_fetched_whole_and_checked(handle: TaskHandle) -> None:
    model = handle.model()
    assert model.version == 1
    np.testing.assert_array_equal(model.keyed.rows, MODEL.keyed.rows)


def test_a_task_without_a_model_says_so(fake: Fake, handle: TaskHandle) -> None:
    fake.manifest.Clear()
    with pytest.raises(ConfigurationError, match="published no model yet"):
        handle.model()


def test_a_model_under_another_key_is_not_even_fetched(fake: Fake, handle: TaskHandle) -> None:
    fake.manifest.CopyFrom(sign_manifest(manifest_for(MODEL, task_sha256(fake.signed)), SigningKey.generate()))
    with pytest.raises(SignatureError):
        handle.model()
    assert fake.sent == 0


def test_bytes_that_the_developer_did_not_sign_are_refused(fake: Fake, handle: TaskHandle) -> None:
    fake.chunks = [bytes(144)]
    with pytest.raises(ConfigurationError, match="do not have the manifest's SHA-256"):
        handle.model()


def test_a_table_without_end_is_cut_off_at_its_declared_size(fake: Fake, handle: TaskHandle) -> None:
    fake.chunks = (bytes(100) for _ in range(10**6))
    with pytest.raises(ServiceError, match="sent more than the 144 bytes of the table 'items'"):
        handle.model()
    assert fake.sent < 10**5


def test_watch_ends_with_the_final_status(fake: Fake, handle: TaskHandle) -> None:
    states = server_pb2.TaskStatus
    fake.states = [states.STATE_ACTIVE, states.STATE_ACTIVE, states.STATE_FAILED]
    waited: list[float] = []
    seen = [status.state for status in handle.watch(poll_seconds=3.0, wait=waited.append)]
    assert seen == [states.STATE_ACTIVE, states.STATE_ACTIVE, states.STATE_FAILED]
    assert waited == [3.0, 3.0]


def test_a_server_that_is_gone_is_one_line(fake: Fake, handle: TaskHandle, stack: contextlib.ExitStack) -> None:
    stack.pop_all().close()
    connection = Connection(address=fake.address, ca=handle.connection._ca, token=TOKEN)
    with (
        connection,
        pytest.raises(ServiceUnavailable, match=f"could not list the tasks: nobody answers at {fake.address}"),
    ):
        connection.tasks()


def _asked(change: Callable[[common_pb2.Release], object]) -> server_pb2.TaskStatus:
    """A finished task of statistics whose release was changed before the server shows it."""
    task = odp.Statistics(
        name="asked", queries={"films": odp.Histogram(bins=3)}, privacy=odp.UserLevelDP(epsilon=2, delta=1e-5),
        cohort=odp.Cohort(minimum=2, goal=2),
    )  # fmt: skip
    signed = sign_task(task.definition(), KEY)
    (declared,) = algorithm_for(task.definition()).query(0).releases
    values = np.arange(declared.coordinates, dtype="<i8").tobytes()
    tensor = common_pb2.ReleasedTensor(name=declared.name, integers=values, shape=declared.shape, step=declared.step)
    release = common_pb2.Release(task_sha256=task_sha256(signed), tensors=[tensor], contributions=2, epsilon_spent=2)
    change(release)
    shown = common_pb2.SignedRelease(release=release.SerializeToString(), signature=bytes(SIGNATURE_BYTES))
    return server_pb2.TaskStatus(task=signed, rounds=[server_pb2.RoundStatus(release=shown)])


def test_statistics_come_from_the_release(handle: TaskHandle) -> None:
    assert handle.connection.results(_asked(lambda release: None)).contributions == 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda release: setattr(release, "round", 1), "of round 1"),
        (lambda release: setattr(release.tensors[0], "step", 2.0 * release.tensors[0].step), "has step="),
        (lambda release: release.tensors[0].shape.append(1), "does not have the declared shape"),
        (lambda release: release.tensors.add(name="extra"), "its tensors are not"),
    ],
)
def test_statistics_that_are_not_those_of_the_task_are_refused(
    handle: TaskHandle, change: Callable[[common_pb2.Release], object], line: str
) -> None:
    with pytest.raises(ServiceError, match=line):
        handle.connection.results(_asked(change))

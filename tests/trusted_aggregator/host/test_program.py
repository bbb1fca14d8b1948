"""The program over TLS: a whole round, refusals as status codes, and a process that is killed."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from callers import program_identity

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains, seal, verify
from odp.errors import ConfigurationError, StateError
from odp.signed.ledger import LedgerPart
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.enclave import chip_end
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import verify_evidence
from odp.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    common_pb2,
    hand_over_pb2,
)
from trusted_aggregator import Config, start
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.host.hand_over_service import HISTORY
from trusted_aggregator.host.sqlite_storage import SqliteStorage

SECONDS = 60.0
IMAGE, OTHER_IMAGE = "sha384:" + "0" * 96, "sha384:" + "1" * 96


class Client:
    """The server and the devices of a world, against a program at two addresses; founds the world's population."""

    def __init__(self, world, address, control_address, state):
        self.world = world
        identity = program_identity(state.parent, "server", state / "ca")
        self.channel = connect(address, identity.ca_pem)
        self.stub = aggregator_pb2_grpc.AggregatorServiceStub(self.channel)
        self.orders = aggregator_pb2_grpc.AggregatorControlServiceStub(
            connect(control_address, identity.ca_pem, identity=identity)
        )
        self.orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=world.charter), timeout=SECONDS)
        self.evidence = attestation_pb2_grpc.AttestationServiceStub(self.channel).GetEvidence(
            attestation_pb2.GetEvidenceRequest(nonce=bytes(32)), timeout=SECONDS
        )

    def verified(self, platform, *, image=IMAGE):
        reference = ReferenceValues(
            roots=(platform.root_certificate_pem,),
            image_digests={"aggregator": (image,)},
            policy_sha256={"aggregator": (self.world.policy.sha256.hex(),)},
            allow_emulated=True,
        )
        return verify_evidence(
            token=self.evidence.token, policy=self.evidence.policy, event_log=self.evidence.event_log,
            nonce=bytes(32), role="aggregator", reference_values=reference, now=time.time(),
        )  # fmt: skip

    def open(self):
        order, signature = self.world.order(0, domains.OPEN)
        request = aggregator_pb2.OpenRoundRequest(task=self.world.task, order=order, signature=signature)
        answer = self.orders.OpenRound(request, timeout=SECONDS)
        self.world.round_keys[self.world.task_sha256, 0] = answer.round_key.hpke_key
        return answer.round_key

    def sealed(self, device):
        world = self.world
        info = domains.contribution_info(world.task_sha256, 0, world.model(0), world.policy.sha256)
        key = world.round_keys[world.task_sha256, 0]
        return seal(key, world.contribution(device).SerializeToString(), info)

    def submit(self, sealed):
        request = aggregator_pb2.SubmitRequest(task_sha256=self.world.task_sha256, round=0, sealed_contribution=sealed)
        return self.stub.Submit(request, timeout=SECONDS).refusal

    def close(self):
        order, signature = self.world.order(0, domains.CLOSE)
        request = aggregator_pb2.CloseRoundRequest(order=order, signature=signature)
        return self.orders.CloseRound(request, timeout=SECONDS)

    def round(self):
        return self.orders.GetRound(
            aggregator_pb2.GetRoundRequest(task_sha256=self.world.task_sha256, round=0), timeout=SECONDS
        )


@pytest.fixture
def world(make_world):
    return make_world(minimum=3)


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def run(tmp_path, log, world):
    """Starts programs on one state folder and stops them at the end."""
    running = []

    def begin(*, image=IMAGE):
        any_port = "127.0.0.1:0"
        config = Config(state=tmp_path / "state", listen=any_port, control_listen=any_port, policy=world.policy)
        in_thread = InThread(enclave_process.run, digest=image)

        def launch(**given):
            begin.launched.append(in_thread(**given))
            return begin.launched[-1]

        running.append(start(config, log=Log("aggregator", stream=log), launch=launch))
        return running[-1]

    begin.launched = []

    yield begin
    for program in running:
        program.stop()


def client_of(world, program, tmp_path):
    return Client(world, program.address, program.control_address, tmp_path / "state")


def _code(call, *arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.details()
    return caught.value.code()


def test_a_round_over_tls_from_evidence_to_ledger_and_again_after_a_restart(world, run, tmp_path, log):
    program = run()
    client = client_of(world, program, tmp_path)
    enclave = client.verified(EmulatedPlatform.open(tmp_path / "state" / "platform"))
    client.open()
    client.open()
    for device in range(4):
        assert client.submit(client.sealed(device)) == aggregator_pb2.REFUSAL_UNSPECIFIED
    assert client.submit(client.sealed(0)) == aggregator_pb2.REFUSAL_ALREADY_CONTRIBUTED
    assert (client.round().contributions, client.round().released) == (4, False)
    signed = client.close().release
    verify(enclave.signing_key, signed.signature, domains.RELEASE, signed.release)
    assert common_pb2.Release.FromString(signed.release).contributions == 4
    assert (client.round().contributions, client.round().released) == (4, True)
    assert client.submit(client.sealed(9)) == aggregator_pb2.REFUSAL_ROUND_CLOSED
    ledger = client.stub.GetLedger(aggregator_pb2.GetLedgerRequest(task_sha256=world.task_sha256), timeout=SECONDS)
    verify(enclave.signing_key, ledger.signature, domains.LEDGER, ledger.head)
    assert LedgerPart(0, ledger.entries, ledger.head, ledger.signature).ledger().entries[0].contributions == 4
    program.stop()

    program = run()
    again = client_of(world, program, tmp_path)
    assert again.verified(EmulatedPlatform.open(tmp_path / "state" / "platform")).signing_key == enclave.signing_key
    assert again.close().release == signed
    lines = log.getvalue().splitlines()
    assert [line.split()[3] for line in lines] == [
        "enclave_started", "serving", "charter_set", "round_opened", "round_opened", "round_charged",
        "round_released", "stopped", "enclave_started", "serving",
    ]  # fmt: skip


def test_an_open_round_goes_on_after_a_restart(tmp_path, world, run, log):
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    for device in range(2):
        client.submit(client.sealed(device))
    program.stop()
    program = run()
    client = client_of(world, program, tmp_path)
    assert client.round().contributions == 2
    assert client.submit(client.sealed(1)) == aggregator_pb2.REFUSAL_ALREADY_CONTRIBUTED
    assert _code(client.close) is grpc.StatusCode.FAILED_PRECONDITION
    assert client.submit(client.sealed(2)) == aggregator_pb2.REFUSAL_UNSPECIFIED
    assert common_pb2.Release.FromString(client.close().release.release).contributions == 3
    assert "round_resumed" in log.getvalue()


def test_errors_are_one_line_with_their_status_code(world, run, tmp_path):
    program = run()
    client = client_of(world, program, tmp_path)
    assert _code(client.round) is grpc.StatusCode.NOT_FOUND
    assert _code(client.close) is grpc.StatusCode.INVALID_ARGUMENT
    request = aggregator_pb2.GetLedgerRequest(task_sha256=bytes(7))
    assert _code(lambda: client.stub.GetLedger(request, timeout=SECONDS)) is grpc.StatusCode.NOT_FOUND
    order, signature = world.order(0, domains.CLOSE)
    wrong = aggregator_pb2.OpenRoundRequest(task=world.task, order=order, signature=signature)
    assert _code(lambda: client.orders.OpenRound(wrong, timeout=SECONDS)) is grpc.StatusCode.PERMISSION_DENIED
    assert _code(lambda: client.orders.OpenRound(aggregator_pb2.OpenRoundRequest(), timeout=SECONDS)) is (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    assert client.submit(b"") == aggregator_pb2.REFUSAL_WRONG_TASK
    client.open()
    assert client.submit(bytes(2**20)) == aggregator_pb2.REFUSAL_MALFORMED
    assert _code(client.close) is grpc.StatusCode.FAILED_PRECONDITION


def test_parallel_submissions_and_a_close_lose_nothing(tmp_path, world, run):
    """A crash after the charge must find the charged set: every counted contribution is stored before the charge is."""
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    sealed = [client.sealed(device) for device in range(60)]
    with futures.ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(client.submit, one) for one in sealed]
        while client.round().contributions < 3:
            pass
        release = common_pb2.Release.FromString(client.close().release.release)
        refusals = [future.result() for future in pending]
    assert refusals.count(aggregator_pb2.REFUSAL_UNSPECIFIED) == release.contributions
    assert set(refusals) <= {aggregator_pb2.REFUSAL_UNSPECIFIED, aggregator_pb2.REFUSAL_ROUND_CLOSED}


def test_a_full_disk_is_not_acknowledged_and_ends_the_program_with_one_line(tmp_path, world, run, monkeypatch):
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    client.submit(client.sealed(0))
    monkeypatch.setattr(
        SqliteStorage, "_commit", lambda self, batch: StateError("database x: disk full; free some space")
    )
    assert _code(client.submit, client.sealed(1)) is grpc.StatusCode.INTERNAL
    monkeypatch.undo()
    monkeypatch.setattr("odp.transport.running.stop_event", threading.Event)
    with pytest.raises(StateError, match="disk full"):
        program.wait()
    program = run()
    client = client_of(world, program, tmp_path)
    assert client.round().contributions == 1
    assert client.submit(client.sealed(1)) == aggregator_pb2.REFUSAL_UNSPECIFIED


def test_where_the_enclave_dies_calls_are_told_and_the_program_ends_with_one_line_and_goes_on(
    tmp_path, world, run, monkeypatch, log
):
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    client.submit(client.sealed(0))
    run.launched[-1].channel.shutdown(socket.SHUT_RDWR)
    assert _code(client.submit, client.sealed(1)) is grpc.StatusCode.INTERNAL
    assert _code(client.round) is grpc.StatusCode.INTERNAL
    monkeypatch.setattr("odp.transport.running.stop_event", threading.Event)
    with pytest.raises(StateError, match="the enclave ended by itself; start the program again"):
        program.wait()
    assert log.getvalue().count(" failed ") == 1
    program = run()
    client = client_of(world, program, tmp_path)
    assert client.round().contributions == 1


def test_a_second_program_on_one_folder_is_refused(run):
    run()
    with pytest.raises(StateError, match="in use"):
        run()


def test_other_code_cannot_open_the_state_and_says_so(world, run, tmp_path):
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    program.stop()
    with pytest.raises(StateError, match="another version"):
        run(image=OTHER_IMAGE)


def test_r400_the_code_that_took_the_state_over_is_named_to_any_other(world, run, tmp_path):
    program = run()
    client = client_of(world, program, tmp_path)
    client.open()
    program.stop()
    statement = hand_over_pb2.HandOverStatement(successor_image=IMAGE).SerializeToString()
    history = aggregator_pb2.GetHandOversResponse(hand_overs=[hand_over_pb2.HandOver(statement=statement)])
    with StateFolder.open(tmp_path / "state", "aggregator") as folder:
        folder.write_atomically(HISTORY, history.SerializeToString())
    with pytest.raises(StateError, match=f"another version, {IMAGE}, has taken over .* start that version") as caught:
        run(image=OTHER_IMAGE)
    assert "found populations" not in str(caught.value)
    run()


def test_r383_a_start_without_the_chip_is_refused_and_makes_no_other(world, run, tmp_path):
    program = run()
    client_of(world, program, tmp_path).open()
    program.stop()
    chip = tmp_path / "state" / "platform"
    shutil.rmtree(chip)
    with pytest.raises(StateError, match="which is gone: a backup holds no chip"):
        run()
    assert not chip.exists(), "a new chip would be in the way of the right one"


def test_r382_a_program_that_runs_tells_the_end_of_its_chips_certificate(run, log, monkeypatch):
    monkeypatch.setattr(chip_end, "WARN_DAYS", 8 * 365.0)
    run()
    until = time.monotonic() + SECONDS
    while "chip_certificate_expires" not in log.getvalue():
        assert time.monotonic() < until, log.getvalue()
        time.sleep(0.01)


def test_other_code_starts_with_new_keys_where_nothing_else_was_sealed(run, log):
    run().stop()
    run(image=OTHER_IMAGE)
    assert "enclave_keys_renewed" in log.getvalue()


@pytest.mark.parametrize("changes", [{"certificate": "a.pem"}, {"policy": EnclavePolicy(role="distributor")}])
def test_a_config_that_cannot_work_is_refused_at_once(tmp_path, changes):
    with pytest.raises(ConfigurationError):
        Config(state=tmp_path, **changes)


_PROGRAM = """
import sys
from pathlib import Path
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator import Config, start
policy = EnclavePolicy.from_bytes(bytes.fromhex(sys.argv[2]))
config = Config(state=Path(sys.argv[1]), listen="127.0.0.1:0", control_listen="127.0.0.1:0", policy=policy)
running = start(config)
print(running.address, running.control_address, flush=True)
running.wait()
"""


@pytest.mark.processes
def test_a_process_killed_under_load_has_counted_what_it_acknowledged(world, tmp_path):
    started = []

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(tmp_path / "state"), world.policy.to_bytes().hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        client = Client(world, *process.stdout.readline().decode().split(), tmp_path / "state")
        platform = EmulatedPlatform.open(tmp_path / "state" / "platform")
        client.verified(platform, image=measure(AGGREGATOR_ENTRY).digest)
        return process, client

    acknowledged = []
    try:
        process, client = begin()
        client.open()
        sealed = [client.sealed(device) for device in range(200)]

        def submit(one):
            try:
                if client.submit(one) == aggregator_pb2.REFUSAL_UNSPECIFIED:
                    acknowledged.append(one)
                    if len(acknowledged) >= 50:  # another thread may have added one in between
                        process.kill()
            except grpc.RpcError:
                pass

        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(submit, sealed))
        process.wait(SECONDS)
        assert 50 <= len(acknowledged) < 200

        process, client = begin()
        before = client.round().contributions
        assert before >= len(acknowledged)
        assert {client.submit(one) for one in acknowledged} == {aggregator_pb2.REFUSAL_ALREADY_CONTRIBUTED}
        assert client.round().contributions == before
        assert common_pb2.Release.FromString(client.close().release.release).contributions == before
    finally:
        for process in started:
            process.kill()
            process.wait(SECONDS)

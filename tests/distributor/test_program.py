from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from callers import DistributorStub, control_channel, program_identity

from distributor import Config, Running, enclave_process, start
from odp.errors import ConfigurationError, StateError
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.enclave import chip_end
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence
from odp.v1 import attestation_pb2, attestation_pb2_grpc, distributor_pb2_grpc

SECONDS = 60.0
IMAGE = "sha384:" + "0" * 96


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        state=tmp_path / "state", platform=tmp_path / "platform", listen="127.0.0.1:0", control_listen="127.0.0.1:0"
    )


def run(config: Config, kit: Any, *, digest: str = IMAGE) -> Running:
    launch = InThread(enclave_process.run, digest=digest)
    return start(config, log=Log("distributor", stream=kit.Lines()), launch=launch)


@pytest.fixture
def running(config: Config, kit: Any) -> Iterator[Running]:
    distributor = run(config, kit)
    yield distributor
    distributor.stop()


def control(running: Running, config: Config) -> grpc.Channel:
    """The control listener of ``running``, as a server reaches it."""
    return control_channel(running, config.state.parent, config.state / "ca")


def attested(channel: grpc.Channel, platform: Path, digest: str = IMAGE) -> VerifiedEnclave:
    """What a device knows of the enclave behind ``channel`` once its evidence is accepted."""
    nonce = secrets.token_bytes(32)
    stub = attestation_pb2_grpc.AttestationServiceStub(channel)
    evidence = stub.GetEvidence(attestation_pb2.GetEvidenceRequest(nonce=nonce), timeout=SECONDS)
    policy = EnclavePolicy(role="distributor")
    values = ReferenceValues(
        roots=(EmulatedPlatform.open(platform).root_certificate_pem,),
        image_digests={"distributor": (digest,)},
        policy_sha256={"distributor": (policy.sha256.hex(),)},
        allow_emulated=True,
    )
    return verify_evidence(
        token=evidence.token, policy=evidence.policy, event_log=evidence.event_log, nonce=nonce, role="distributor",
        reference_values=values, now=time.time(),
    )  # fmt: skip


def test_r382_a_program_that_runs_tells_the_end_of_its_chips_certificate(
    config: Config, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chip_end, "WARN_DAYS", 8 * 365.0)
    lines = kit.Lines()
    running = start(config, log=Log("distributor", stream=lines), launch=InThread(enclave_process.run, digest=IMAGE))
    try:
        lines.wait_for("chip_certificate_expires")
    finally:
        running.stop()


def test_a_device_attests_then_selects(running: Running, config: Config, developer: Any, kit: Any) -> None:
    model = developer.model()
    with connect(running.address, running.ca_pem) as channel, control(running, config) as orders:
        stub = DistributorStub(channel, orders)
        stub.Publish(model.stream(), timeout=SECONDS)
        public = attested(channel, config.platform).hpke_key
        question = kit.ask(model, public, range(8))
        sealed = stub.Select(question.request, timeout=SECONDS).sealed_rows
    rows = kit.answered_rows(model, question, sealed)
    np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[:8])


def test_a_restart_keeps_the_models_and_opens_no_request_of_the_launch_before(
    config: Config, developer: Any, kit: Any
) -> None:
    model = developer.model()
    keys, signing, questions = [], [], []
    for launch in range(2):
        running = run(config, kit)
        with connect(running.address, running.ca_pem) as channel, control(running, config) as orders:
            stub = DistributorStub(channel, orders)
            found = attested(channel, config.platform)
            keys.append(found.hpke_key)
            signing.append(found.signing_key)
            if not launch:
                stub.Publish(model.stream(), timeout=SECONDS)
            questions.append(kit.ask(model, keys[-1], range(8)))
            sealed = stub.Select(questions[-1].request, timeout=SECONDS).sealed_rows
            kit.answered_rows(model, questions[-1], sealed)
            if launch:
                with pytest.raises(grpc.RpcError, match="malformed select request"):
                    stub.Select(questions[0].request, timeout=SECONDS)
        running.stop()
    assert keys[0] != keys[1]
    assert signing[0] == signing[1]


def test_another_image_starts_with_new_keys_and_the_same_models(config: Config, developer: Any, kit: Any) -> None:
    model = developer.model()
    keys = []
    for digest in (IMAGE, "sha384:" + "ab" * 48):
        running = run(config, kit, digest=digest)
        with connect(running.address, running.ca_pem) as channel, control(running, config) as orders:
            stub = DistributorStub(channel, orders)
            stub.Publish(model.stream(), timeout=SECONDS)
            keys.append(attested(channel, config.platform, digest).hpke_key)
            question = kit.ask(model, keys[-1], range(8))
            kit.answered_rows(model, question, stub.Select(question.request, timeout=SECONDS).sealed_rows)
        running.stop()
    assert keys[0] != keys[1]


def test_another_platform_starts_with_new_keys_and_the_same_models(
    config: Config, tmp_path: Path, developer: Any, kit: Any
) -> None:
    model = developer.model()
    first = run(config, kit)
    with connect(first.address, first.ca_pem) as channel, control(first, config) as orders:
        old = attested(channel, config.platform).hpke_key
        DistributorStub(channel, orders).Publish(model.stream(), timeout=SECONDS)
    first.stop()
    moved = Config(state=config.state, platform=tmp_path / "other", listen="127.0.0.1:0", control_listen="127.0.0.1:0")
    second = run(moved, kit)
    with connect(second.address, second.ca_pem) as channel:
        new = attested(channel, moved.platform).hpke_key
        assert new != old
        stub = distributor_pb2_grpc.DistributorServiceStub(channel)
        question = kit.ask(model, new, range(8))
        kit.answered_rows(model, question, stub.Select(question.request, timeout=SECONDS).sealed_rows)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Select(kit.ask(model, old, range(8)).request, timeout=SECONDS)
        assert caught.value.details() == "malformed select request"
    second.stop()


def test_a_client_that_pins_another_ca_reaches_nobody(running: Running, tmp_path: Path, kit: Any) -> None:
    other = run(Config(state=tmp_path / "other", listen="127.0.0.1:0", control_listen="127.0.0.1:0"), kit)
    other.stop()
    with connect(running.address, other.ca_pem) as channel, pytest.raises(grpc.RpcError) as caught:
        attestation_pb2_grpc.AttestationServiceStub(channel).GetEvidence(
            attestation_pb2.GetEvidenceRequest(nonce=bytes(32)), timeout=SECONDS
        )
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_second_program_on_the_state_folder_is_refused(running: Running, config: Config, kit: Any) -> None:
    with pytest.raises(StateError, match=str(os.getpid())):
        run(config, kit)


def test_a_port_in_use_is_one_line_and_frees_the_state_folder(config: Config, tmp_path: Path, kit: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=address):
            run(Config(state=config.state, platform=config.platform, listen=address), kit)
    run(config, kit).stop()


def test_half_of_a_tls_identity_and_a_policy_of_another_role_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="all three"):
        Config(state=tmp_path, certificate=tmp_path / "cert.pem")
    with pytest.raises(ConfigurationError, match="role"):
        Config(state=tmp_path, policy=EnclavePolicy(role="aggregator"))


_PROGRAM = """
import os, signal, sys
from pathlib import Path
import distributor
from distributor.model_folders import IncomingFolder

commit = IncomingFolder.commit

def killed(self):
    if sys.argv[2] == "after":
        commit(self)
    os.kill(os.getpid(), signal.SIGKILL)

IncomingFolder.commit = killed
state = Path(sys.argv[1])
any_port = "127.0.0.1:0"
config = distributor.Config(
    state=state, platform=state.parent / "platform", listen=any_port, control_listen=any_port
)
running = distributor.start(config)
print(running.control_address, flush=True)
running.wait()
"""


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_around_the_rename_leaves_the_whole_model_or_nothing(
    moment: str, config: Config, developer: Any, kit: Any
) -> None:
    model = developer.model()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(config.state), moment], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        identity = program_identity(config.state.parent, "server", config.state / "ca")
        with (
            connect(address, identity.ca_pem, identity=identity) as orders,
            pytest.raises(grpc.RpcError),
        ):
            distributor_pb2_grpc.DistributorControlServiceStub(orders).Publish(model.stream(), timeout=SECONDS)
        assert process.wait(SECONDS) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
    again = run(config, kit)
    left = [path.name for path in (config.state / "models").iterdir()]
    assert left == ([] if moment == "before" else [model.id.hex()])
    with connect(again.address, again.ca_pem) as channel, control(again, config) as orders:
        stub = DistributorStub(channel, orders)
        stub.Publish(model.stream(), timeout=SECONDS)
        question = kit.ask(model, attested(channel, config.platform).hpke_key, range(8))
        kit.answered_rows(model, question, stub.Select(question.request, timeout=SECONDS).sealed_rows)
    again.stop()

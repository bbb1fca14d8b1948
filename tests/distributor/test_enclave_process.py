"""The distributor's enclave behind its socket: models in pieces, and a host that sends what no host of ours would."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributor import enclave_process
from distributor.enclave import DistributorCore
from distributor.interface import DISTRIBUTOR, UnknownModel
from distributor.program import RemoteDistributor
from odp.crypto import HpkeKey, SignatureError, SigningKey
from odp.errors import ConfigurationError
from odp.signed.task import sign_manifest
from odp.trust.enclave import launcher
from odp.trust.enclave.channel import Client, Connection
from odp.trust.enclave.enclave_start import start, wait_ready
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.enclave.measurement import DISTRIBUTOR_ENTRY
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import SELECTIONS, EnclavePolicy, Selection
from odp.v1 import common_pb2, distributor_pb2
from odp.v1.distributor_enclave_pb2 import DistributorEnclaveRequest, InstallModel, TableChunk

SECONDS = 60.0
POLICY = EnclavePolicy(role="distributor").to_bytes()
IMAGE = "sha384:" + "0" * 96


class Remote:
    """A host's end of an enclave."""

    def __init__(self, channel: socket.socket) -> None:
        connection = Connection(channel)
        start(connection, None)
        wait_ready(connection)
        self.client = Client(connection, DISTRIBUTOR.reply, ended=lambda _: None)
        self.core = RemoteDistributor(self.client)
        self.hpke_key = Claims.from_json(read_token(self.core.evidence(bytes(32)).token).claims).hpke_key

    def install(self, model: Any, payload: bytes | None = None, piece: int = 7) -> tuple[bytes, ...]:
        data = model.payload if payload is None else payload
        pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
        return self.core.install_chunks(model.task, model.manifest, pieces)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    """An enclave in a thread."""
    host, inside = socket.socketpair()
    guest = EmulatedPlatform.open(tmp_path / "platform").launch(image_digest=IMAGE, policy=POLICY, name="distributor")
    thread = threading.Thread(target=enclave_process.run, args=(inside, guest), daemon=True)
    thread.start()
    opened = Remote(host)
    yield opened
    opened.client.close()
    thread.join(SECONDS)


def test_a_host_lets_its_enclave_forget_a_model(remote: Remote, developer: Any) -> None:
    model = developer.model()
    remote.install(model)
    for _ in range(2):
        remote.core.forget(model.id)
        assert remote.core.models() == ()


def selected(remote: Remote, model: Any, kit: Any, keys: list[int]) -> np.ndarray:
    question = kit.ask(model, remote.hpke_key, keys)
    return np.asarray(kit.answered_rows(model, question, remote.core.select(model.id, question.sealed_keys)))


def test_a_model_arrives_in_pieces_that_cross_its_tables(remote: Remote, developer: Any, kit: Any) -> None:
    model = developer.model()
    assert remote.install(model) == ()
    assert remote.core.holds(model.id)
    keys = [39, 0, 7, 7, 3, 12, 0, 25]
    np.testing.assert_array_equal(selected(remote, model, kit, keys), model.broadcast.keyed.rows[keys])


def test_replaced_versions_are_told(remote: Remote, developer: Any) -> None:
    models = [developer.model(version) for version in range(4)]
    assert [remote.install(model) for model in models] == [(), (), (), (models[0].id,)]
    assert set(remote.core.models()) == {model.id for model in models[1:]}


def test_selections_go_on_while_a_model_arrives(remote: Remote, developer: Any, kit: Any) -> None:
    held, coming = developer.model(0), developer.model(1)
    remote.install(held)

    def pieces() -> Iterator[bytes]:
        yield coming.payload[:50]
        np.testing.assert_array_equal(selected(remote, held, kit, [5] * 8), held.broadcast.keyed.rows[[5] * 8])
        yield coming.payload[50:]

    remote.core.install_chunks(coming.task, coming.manifest, pieces())
    assert remote.core.holds(coming.id)


def test_the_policy_says_whether_selections_are_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Core(DistributorCore):
        def __init__(self, key: HpkeKey, *, select: Selection) -> None:
            made.append(select)
            super().__init__(key, select=select)

    monkeypatch.setattr(enclave_process, "DistributorCore", Core)
    platform = EmulatedPlatform.open(tmp_path / "platform")
    for select in SELECTIONS:
        policy = EnclavePolicy(role="distributor", select=select).to_bytes()
        host, inside = socket.socketpair()
        guest = platform.launch(image_digest=IMAGE, policy=policy, name="distributor")
        thread = threading.Thread(target=enclave_process.run, args=(inside, guest), daemon=True)
        thread.start()
        Remote(host).client.close()
        thread.join(SECONDS)
    assert made == list(SELECTIONS)


def test_selections_that_come_at_once_are_each_answered_with_their_own_rows(
    remote: Remote, developer: Any, kit: Any
) -> None:
    models = [developer.model(version) for version in range(2)]
    for model in models:
        remote.install(model)

    def ask(number: int) -> bool:
        model, keys = models[number % 2], [number % 40] * 8
        if number % 5 == 4:
            with pytest.raises(ConfigurationError, match="malformed"):
                selected(remote, model, kit, [40 + number] * 8)
            return True
        return bool((selected(remote, model, kit, keys) == model.broadcast.keyed.rows[keys]).all())

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, range(60)))


@pytest.mark.parametrize("harm", ["short", "long", "changed", "none"])
def test_other_bytes_than_the_manifests_are_refused_and_nothing_is_held(
    remote: Remote, developer: Any, harm: str
) -> None:
    model = developer.model()
    data = model.payload
    harmed = {"short": data[:-1], "long": data + b"\0" * 9, "changed": bytes([data[0] ^ 1]) + data[1:], "none": b""}
    with pytest.raises(ConfigurationError):
        remote.install(model, harmed[harm])
    assert remote.core.models() == ()
    remote.install(model)
    assert remote.core.holds(model.id)


def test_a_header_that_is_not_the_developers_is_refused_before_any_piece(remote: Remote, developer: Any) -> None:
    model = developer.model()
    forged = sign_manifest(common_pb2.ModelManifest.FromString(model.manifest.manifest), SigningKey.generate())
    for call in (remote.core.require_capacity, lambda *given: remote.core.install_chunks(*given, [b"never read"])):
        with pytest.raises(SignatureError):
            call(model.task, forged)


def test_pieces_and_ends_that_belong_to_nothing_are_refused(remote: Remote, developer: Any) -> None:
    remote.client.post(DistributorEnclaveRequest(chunk=TableChunk(data=b"stray")))
    install = DistributorEnclaveRequest(install=InstallModel())
    with pytest.raises(ConfigurationError, match="no model was begun"):
        remote.client.call(install)
    model = developer.model()
    remote.install(model)
    with pytest.raises(ConfigurationError, match="no model was begun"):
        remote.client.call(install)


def test_a_model_that_is_begun_replaces_one_that_was_not_finished(remote: Remote, developer: Any) -> None:
    first, second = developer.model(0), developer.model(1)
    header = distributor_pb2.PublishHeader(task=first.task, model=first.manifest)
    remote.client.call(DistributorEnclaveRequest(begin_model=header))
    remote.client.post(DistributorEnclaveRequest(chunk=TableChunk(data=first.payload[:20])))
    remote.install(second)
    assert remote.core.models() == (second.id,)


def test_refusals_are_those_of_the_core(remote: Remote, developer: Any, kit: Any) -> None:
    model = developer.model()
    with pytest.raises(UnknownModel, match=r"^model abababababab is not held here"):
        remote.core.select(b"\xab" * 32, bytes(100))
    remote.install(model)
    for sealed in (b"", kit.ask(model, remote.hpke_key, [40] * 8).sealed_keys, bytes(300)):
        with pytest.raises(ConfigurationError) as caught:
            remote.core.select(model.id, sealed)
        assert str(caught.value) == "malformed select request"


def test_the_process_of_an_enclave_loads_no_grpc_no_database_and_no_accountant() -> None:
    code = f"import {DISTRIBUTOR_ENTRY} as entry, sys; entry.warm_up(); print(sorted(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    loaded = {name.strip(" '[]\n").partition(".")[0] for name in told.stdout.split(",")}
    assert not {"grpc", "sqlalchemy", "typer", "rich", "dp_accounting", "numba", "scipy"} & loaded
    assert "numpy" in loaded


@pytest.mark.processes
def test_models_are_served_where_no_file_can_be_opened(tmp_path: Path, developer: Any, kit: Any) -> None:
    with launcher.launch(platform_folder=tmp_path / "platform", entry=DISTRIBUTOR_ENTRY, policy=POLICY) as enclave:
        remote = Remote(enclave.channel)
        models = [developer.model(version) for version in range(4)]
        for model in models:
            remote.install(model, piece=1000)
        np.testing.assert_array_equal(
            selected(remote, models[3], kit, [9] * 8), models[3].broadcast.keyed.rows[[9] * 8]
        )
        with pytest.raises(UnknownModel):
            remote.core.select(models[0].id, bytes(100))
        with pytest.raises(ConfigurationError, match="malformed"):
            remote.core.select(models[1].id, bytes(100))
        remote.client.close()

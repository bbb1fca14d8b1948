"""State that an earlier version left in the middle of a task is read by this version, or refused by name.

``record.py`` recorded it with that version. The enclave of the tests runs this version's code under the earlier one's
measurement: it opens what that sealed, as the successor of a hand-over reads it.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_runtime import Store, store_path
from device_runtime.store.schema import State
from distributor.model_folders import ModelFolders
from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.signed.ledger import LedgerPart
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.endorsements import EndorsementFile
from odp.trust.log.sources import LogFolder
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc
from server.storage import RoundState, TaskState
from server.storage.sqlite import open_sqlite
from trusted_aggregator import Config, start
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.host.sqlite_storage import SqliteStorage

RECORDINGS = sorted(Path(__file__).parent.glob("*.tar.xz"))
ANY = "127.0.0.1:0"
SECONDS = 60.0


class Recording:
    """What one version left, in a folder of its own."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as recorded:
            recorded.extractall(folder, filter="data")
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.folder, self.services = folder, folder / "odp-state"
        self.told: dict[str, Any] = json.loads((folder / "recorded.json").read_text())
        self.task = bytes.fromhex(self.told["status"]["task"])
        self.round = int(self.told["status"]["round"].partition("/")[0]) - 1
        listed = EndorsementFile.load(self.services / "endorsements.json").policies
        policies = [EnclavePolicy.from_bytes(entry.policy) for entry in listed]
        self.policy = next(policy for policy in policies if policy.role == "aggregator")

    @contextlib.contextmanager
    def aggregator(self, digest: str) -> Iterator[aggregator_pb2_grpc.AggregatorServiceStub]:
        """This version's aggregator on the recorded state, measured as ``digest``."""
        config = Config(
            state=self.services / "aggregator", listen=ANY, control_listen=ANY, platform=self.services / "platform",
            ca_folder=self.services / "ca", policy=self.policy,
        )  # fmt: skip
        launch = InThread(enclave_process.run, digest=digest)
        running = start(config, log=Log("aggregator", stream=io.StringIO()), launch=launch)
        try:
            with connect(running.address, running.ca_pem) as channel:
                yield aggregator_pb2_grpc.AggregatorServiceStub(channel)
        finally:
            running.stop()


@pytest.fixture(params=RECORDINGS, ids=lambda archive: archive.name.partition(".")[0])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    return Recording(request.param, tmp_path)


def test_an_aggregator_goes_on_with_the_ledger_and_the_open_round(recording: Recording) -> None:
    with recording.aggregator(recording.told["digest"]) as public:
        reply = public.GetLedger(aggregator_pb2.GetLedgerRequest(task_sha256=recording.task), timeout=SECONDS)
        ledger = LedgerPart(0, reply.entries, reply.head, reply.signature).ledger()
    charged = [json.loads(line) for line in reply.entries.splitlines()]
    assert [line["round"] for line in charged if line["state"] == "SEALED"] == list(range(recording.round))
    assert charged[-1]["task_epsilon"] == pytest.approx(recording.told["status"]["epsilon"], abs=1e-6)
    with StateFolder.open(recording.services / "aggregator", "aggregator") as folder:
        storage = SqliteStorage(folder)
        try:
            stored = list(storage.contributions(recording.task, recording.round))
        finally:
            storage.close()
    assert len(stored) == recording.told["status"]["contributions"] == 19
    assert ledger.state.epsilon_of_population(delta=recording.policy.population_delta) > 0


def test_another_version_refuses_the_aggregators_state_with_the_command_that_takes_it_over(
    recording: Recording,
) -> None:
    with (
        pytest.raises(StateError, match=r"sealed by another version of the aggregator.*`odp enclave upgrade`"),
        recording.aggregator("sha384:" + "1" * 96),
    ):
        pass


def test_a_server_goes_on_with_its_tasks_and_rounds_and_its_log_passes_an_audit(recording: Recording) -> None:
    server = recording.services / "server"
    storage = open_sqlite(server / "server.sqlite")
    try:
        (task,) = storage.tasks(TaskState.ACTIVE)
        assert task.sha256 == recording.task
        states = [storage.round(task.sha256, number) for number in range(recording.round + 1)]
        assert [state.state if state else None for state in states] == [RoundState.APPLIED] * recording.round + [
            RoundState.OPEN
        ]
    finally:
        storage.close()
    report = audit(LogFolder(server / "log"), ReferenceValues.load(recording.services / "reference_values.json"))
    assert report.counts["release"] == recording.round


def test_a_distributor_goes_on_with_its_models(recording: Recording) -> None:
    store = ModelFolders(recording.services / "distributor" / "models")
    (model,) = store.models()[-1:]
    assert store.load(model).model_sha256 == model


def test_devices_go_on_with_their_data_and_their_ledger(recording: Recording) -> None:
    expected = {("devices", 0): recording.round + 1, ("last", 19): recording.round}
    for (host, device), rounds in expected.items():
        with Store.open(store_path(recording.folder / host, device)) as store:
            assert len(store.ratings().items) == 5
            lines = [store.participation(recording.task, round) for round in range(rounds)]
            assert [line.state if line else None for line in lines] == [State.SENT] * rounds
            assert len(store.charged()) == rounds
            assert store.participation(recording.task, rounds) is None

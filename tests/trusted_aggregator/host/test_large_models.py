"""A model of three million parameters in two rounds: uploads and downloads in many messages, a release in one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aggregator_host import StoredHost
from worlds import conftest_of

from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.servicer import DistributorService
from odp._system.files.state_folder import StateFolder
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.seam import LocalRows
from odp.crypto import HpkeKey, domains
from odp.crypto.segments import seal_segments
from odp.evaluation.noise import NoNoise
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, Slices
from odp.protocol.wire.tables import broadcast_from, manifest_for, table_bytes
from odp.signed.task import model_sha256, open_manifest, sign_manifest
from odp.tasks.task import Task
from odp.transport.channel import CHUNK_BYTES
from odp.transport.logs import Log
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, common_pb2, distributor_pb2

MODEL = Glm("multinomial", 2_999, 1_000)
DEVICES = 3

World: Any = conftest_of("trusted_aggregator").World


class Context:
    """As much of a gRPC context as a stream needs; the call never ends by itself."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def cancel(self) -> None:
        raise AssertionError("no stream of this test lasts long")

    def add_callback(self, end: Any) -> bool:
        self.ends.append(end)
        return True


class ModelWorld(World):  # type: ignore[misc]
    """A task that trains ``MODEL`` for two rounds; devices have what the distributor's host sent them."""

    upload_bits: int | None

    def definition(self, *, minimum: int, epsilon: float, name: str = "large") -> common_pb2.TaskDefinition:
        self.sent: dict[int, ModelVersion] = {}
        return Task(
            name=name,
            model=MODEL,
            data=Examples({"x": Tensor((MODEL.features,), -1.0, 1.0)}, label="kind"),
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6),
            training=DPFedAvg(rounds=2, rate=0.5, clip=1.0, upload_bits=self.upload_bits),
            cohort=Cohort(minimum=minimum, goal=minimum),
            population=self.population,
        ).definition()

    def examples(self, device: int) -> LocalRows:
        generator = np.random.default_rng(device)
        features = generator.uniform(-1, 1, (8, MODEL.features)).astype(np.float32)
        return LocalRows(np.arange(8), generator.integers(0, MODEL.classes, 8).astype(np.float64), {"x": features})

    def payload(self, device: int, round: int = 0, *, seed: int = 0) -> bytes:
        broadcast = self.sent[round]
        slices = Slices(round, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), broadcast.dense)
        data = self.algorithm.data_of(self.examples(device))
        payload: bytes = self.algorithm.client().contribute(slices, data, round=round, seed=device)[0]
        return payload

    def seal(self, plaintext: bytes, round: int = 0, *, key: bytes | None = None) -> bytes:
        info = domains.large_contribution_info(self.task_sha256, round, self.model(round), self.policy.sha256)
        return seal_segments(key or self.round_key(round), plaintext, info)

    def loss(self, round: int) -> float:
        vector = self.broadcasts[round].dense[PARAMETERS][:, 0]
        held = [self.examples(device) for device in range(DEVICES)]
        return float(
            np.mean([MODEL.losses(vector, rows.features["x"], rows.values.astype(np.float32)) for rows in held])
        )


@pytest.mark.slow
def test_a_large_model_is_trained_in_streams(tmp_path: Path, upload_bits: int | None) -> None:
    kind: Any = type("_World", (ModelWorld,), {"upload_bits": upload_bits})
    world = kind(EmulatedPlatform.open(tmp_path / "platform"), "people", minimum=DEVICES, noise=NoNoise())
    service = DistributorService(
        DistributorCore(HpkeKey.generate()), ModelFolders(tmp_path / "models"), Log("distributor", stream=io.StringIO())
    )
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = StoredHost(world, state)
        for round in range(2):
            published_and_downloaded(world, service, round)
            host.open(round)
            query = world.algorithm.query(round)
            expected = query.new_sum()
            for device in range(DEVICES):
                payload = world.payload(device, round)
                assert len(payload) == MODEL.size * (upload_bits or 32) // 8
                expected.add([payload])
                sealed = world.sealed(device, round, payload=payload)
                assert host.service.submit_stream(parts(world, round, sealed), Context()) is None  # type: ignore[arg-type]
            signed = host.close_round(round)
            release = world.learn(signed.SerializeToString())
            (tensor,) = release.tensors
            np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), expected.totals()[RELEASE])
        assert [path for path in (state.root / "large").rglob("*") if path.is_file()] == []
        host.end()
    assert world.loss(2) < world.loss(1) < world.loss(0) == pytest.approx(np.log(MODEL.classes))


# Numbers of 16 bits differ from those of 8 by their width alone, which crypto and algorithms test at every width.
@pytest.fixture(params=[8, pytest.param(16, marks=pytest.mark.proof), None], ids=["8 bits", "16 bits", "32 bits"])
def upload_bits(request: pytest.FixtureRequest) -> int | None:
    """Of an upload."""
    bits: int | None = request.param
    return bits


def parts(world: Any, round: int, sealed: bytes) -> Iterator[Any]:
    header = aggregator_pb2.SubmitHeader(task_sha256=world.task_sha256, round=round, sealed_key=sealed[:80])
    yield aggregator_pb2.SubmitStreamRequest(header=header)
    for start in range(0, len(sealed), CHUNK_BYTES):
        yield aggregator_pb2.SubmitStreamRequest(chunk=sealed[start : start + CHUNK_BYTES])


def published_and_downloaded(world: Any, service: DistributorService, round: int) -> None:
    """The server's model of a round, to the distributor's host and on to ``world.sent``, in chunks both ways."""
    broadcast = world.broadcasts[round]
    signed = sign_manifest(manifest_for(broadcast, world.task_sha256), world.developer)

    def stream() -> Iterator[distributor_pb2.PublishRequest]:
        yield distributor_pb2.PublishRequest(header=distributor_pb2.PublishHeader(task=world.task, model=signed))
        for table in broadcast.tables:
            data = table_bytes(table)
            for start in range(0, len(data), CHUNK_BYTES):
                yield distributor_pb2.PublishRequest(chunk=data[start : start + CHUNK_BYTES])

    service.publish(stream(), Context())  # type: ignore[arg-type]
    manifest = open_manifest(signed, task=world.task, developer_key=world.developer.public)
    tables = {}
    for entry in manifest.tables:
        request = distributor_pb2.DownloadRequest(model_sha256=model_sha256(signed), table=entry.name)
        context = Context()
        chunks = [bytes(reply.chunk) for reply in service.download(request, context)]  # type: ignore[arg-type]
        for end in context.ends:
            end()
        assert len(chunks) == -(-4 * MODEL.size // CHUNK_BYTES)
        assert max(map(len, chunks)) <= CHUNK_BYTES
        tables[entry.name] = b"".join(chunks)
    world.sent[round] = broadcast_from(manifest, tables)

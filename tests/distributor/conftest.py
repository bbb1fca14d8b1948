"""A developer with a tiny DPAM task, a device's side of Select, and a log that tests can wait on."""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.dpam.server import DpamServer
from odp.crypto import SigningKey, seal
from odp.crypto.domains import select_info, selected_aad
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion
from odp.protocol.wire.tables import manifest_for, table_bytes
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_task, task_sha256
from odp.tasks.task import Task
from odp.v1 import common_pb2, distributor_pb2

ITEMS = 40
SLICES = 8


@dataclass(frozen=True)
class Model:
    """A signed model with its content."""

    task: common_pb2.SignedTask
    manifest: common_pb2.SignedManifest
    broadcast: ModelVersion
    tables: dict[str, bytes]

    @property
    def id(self) -> bytes:
        return model_sha256(self.manifest)

    @property
    def payload(self) -> bytes:
        return b"".join(self.tables.values())

    def stream(self, payload: bytes | None = None, chunk: int = 100) -> Iterator[distributor_pb2.PublishRequest]:
        """A publish stream; small chunks, so that they cross the borders of tables."""
        yield self.header()
        data = self.payload if payload is None else payload
        for start in range(0, len(data), chunk):
            yield distributor_pb2.PublishRequest(chunk=data[start : start + chunk])

    def header(self) -> distributor_pb2.PublishRequest:
        return distributor_pb2.PublishRequest(header=distributor_pb2.PublishHeader(task=self.task, model=self.manifest))


class Developer:
    """Signs tasks and models of 40 items, 8 slices per device."""

    def __init__(self, name: str = "films", *, key: bytes = bytes(32)) -> None:
        self.key = SigningKey.from_bytes(key)
        definition = Task(
            name=name,
            model=MatrixFactorization(items=ITEMS, rank=2),
            data=RatingsData(low=1, high=5),
            privacy=UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
            training=DPAM(),
            cohort=Cohort(minimum=2),
        ).definition()
        definition.dpam.slices_per_device = SLICES
        self.task = sign_task(definition, self.key)
        self.definition = open_task(self.task)

    @property
    def task_sha256(self) -> bytes:
        return task_sha256(self.task)

    def model(self, version: int = 0, seed: int = 0) -> Model:
        """A model in the shape that DPAM broadcasts, with random content."""
        server = DpamServer(self.definition)
        shape = server.broadcast(server.start())
        generator = np.random.default_rng([version, seed])
        tables = tuple(
            replace(table, rows=generator.normal(size=table.rows.shape).astype(np.float32)) for table in shape.tables
        )
        return self.signed(ModelVersion(version, tables))

    def signed(
        self, broadcast: ModelVersion, change: Callable[[common_pb2.ModelManifest], None] = lambda _: None
    ) -> Model:
        """``broadcast`` under this developer's signature, its manifest changed by ``change`` before that."""
        manifest = manifest_for(broadcast, self.task_sha256)
        change(manifest)
        contents = {table.name: table_bytes(table) for table in broadcast.tables}
        return Model(self.task, sign_manifest(manifest, self.key), broadcast, contents)


@dataclass(frozen=True)
class Question:
    """A device's sealed request and the key that opens its answer."""

    model: bytes
    sealed_keys: bytes
    reply_key: bytes

    @property
    def request(self) -> distributor_pb2.SelectRequest:
        return distributor_pb2.SelectRequest(model_sha256=self.model, sealed_keys=self.sealed_keys)

    def open(self, sealed_rows: bytes) -> distributor_pb2.SelectedRows:
        plaintext = AESGCM(self.reply_key).decrypt(bytes(12), sealed_rows, selected_aad(self.model))
        return distributor_pb2.SelectedRows.FromString(plaintext)


def ask(
    model: Model,
    public: bytes,
    keys: Sequence[int],
    *,
    table: str = "items",
    reply_key: bytes | None = None,
    bound_to: bytes | None = None,
    more: bytes = b"",
) -> Question:
    """What a device sends for ``keys``; the keyword arguments make requests that no honest device sends."""
    reply_key = secrets.token_bytes(32) if reply_key is None else reply_key
    plaintext = (
        distributor_pb2.SelectKeys(
            table=table, keys=np.asarray(keys, dtype="<u4").tobytes(), reply_key=reply_key
        ).SerializeToString()
        + more
    )
    return Question(model.id, seal(public, plaintext, select_info(bound_to or model.id)), reply_key)


def answered_rows(model: Model, question: Question, sealed_rows: bytes) -> np.ndarray:
    """The rows of an answer, after a check that its dense tables are the model's."""
    selected = question.open(sealed_rows)
    dense = [table_bytes(table) for table in model.broadcast.tables if not table.keyed]
    assert list(selected.dense) == dense
    return np.frombuffer(selected.rows, dtype="<f4").reshape(-1, model.broadcast.keyed.rows.shape[1])


class Lines(io.StringIO):
    """A text stream that a test can wait on."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = threading.Condition()

    def write(self, text: str) -> int:
        with self._grown:
            written = super().write(text)
            self._grown.notify_all()
            return written

    def wait_for(self, text: str, count: int = 1, timeout: float = 60.0) -> None:
        """Returns once ``text`` was written ``count`` times."""
        with self._grown:
            if not self._grown.wait_for(lambda: self.getvalue().count(text) >= count, timeout):
                raise AssertionError(f"{text!r} never came; the log is:\n{self.getvalue()}")


class Kit:
    """The helpers of this folder, as one fixture."""

    Developer = Developer
    Lines = Lines
    ITEMS = ITEMS
    SLICES = SLICES
    ask = staticmethod(ask)
    answered_rows = staticmethod(answered_rows)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Developer, Lines, ask, answered_rows."""
    return Kit


@pytest.fixture(scope="session")
def developer() -> Developer:
    """One developer with one task; immutable, so that all tests share it."""
    return Developer()

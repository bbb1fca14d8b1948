"""A real distributor and a real helper, the models they hold, and what their processes use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.callers import program_identity
from benchmarks.processes import with_enclaves
from benchmarks.scanning import Shape, table
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services
from distributor.helper_program import helper_key
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.crypto import SigningKey
from odp.errors import ServiceUnavailable
from odp.models.matrix_factorization import MatrixFactorization
from odp.operations.local.log_setup import reference_values
from odp.operations.local.processes import Child
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import manifest_for
from odp.signed.broadcast.terms import ENCLAVE, PIR
from odp.signed.task import model_sha256, sign_manifest, sign_task, task_sha256
from odp.tasks.task import Task
from odp.transport.channel import connect
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import broadcast_pb2, common_pb2
from server.clients import DistributorClient

#: Rows that a device asks for.
KEYS = 50
TABLE = "items"


class Parties:
    """``odp distributor run`` and ``odp distributor helper run`` as processes; the enclave's evidence is verified."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.helper = Child(
            "helper",
            ["distributor", "helper", "run", "--listen", "127.0.0.1:0", "--ca-folder", str(root / "ca")],
            state=root / "helper",
            log=root / "helper.log",
        )
        self.child: Child | None = None

    def connect(self) -> None:
        """Starts the distributor once the helper serves, and verifies its evidence as a device does."""
        root, ca = self._root, self._root / "ca" / "ca.pem"
        ca_folder = root / "ca"
        self.helper.wait_serving(ca, identity=program_identity(root, "distributor", ca_folder))
        self._server = program_identity(root, "server", ca_folder)
        self.helper_key = helper_key(root / "helper")
        arguments = ["distributor", "run", "--listen", "127.0.0.1:0", "--platform", str(root / "platform")]
        arguments += ["--ca-folder", str(ca_folder), "--helper", self.helper.address]
        arguments += ["--control-listen", "127.0.0.1:0"]
        self.child = Child("distributor", arguments, state=root / "distributor", log=root / "distributor.log")
        self.child.wait_serving(ca)
        self.address, self.ca = self.child.address, ca.read_bytes()
        pinned = root / "reference_values.json"
        reference_values(root / "platform", EnclavePolicy(role="aggregator")).save(pinned)
        addresses = PinnedAddresses.at(distributor=self.address)
        with contextlib.closing(Services(self.address, self.ca, pinned=addresses)) as services:
            values = ReferenceValues.load(pinned)
            found = Enclaves(services, lambda: values).verified("distributor", self.address).enclave
        self.hpke_key = found.hpke_key

    def publish(self, model: Model) -> None:
        """Publishes a model over TLS; again, as a server does, where a busy machine broke the connection."""
        assert self.child is not None  # narrows the type
        with connect(self.child.control_address, self.ca, identity=self._server) as channel:
            tables = np.ascontiguousarray(model.rows, dtype="<f4").tobytes()
            client = DistributorClient(channel, self.child.control_address)
            try:
                client.publish(model.task, model.manifest, tables)
            except ServiceUnavailable:
                client.publish(model.task, model.manifest, tables)

    def processor(self) -> dict[str, float]:
        """User and system seconds by process: the host's, its platform's and enclave's, and the helper's."""
        pids = {"helper": self.helper.process.pid}
        if self.child is not None:
            pids |= with_enclaves({"host": self.child.process.pid})
        return {name.removeprefix("host "): _seconds(pid) for name, pid in pids.items()}

    def used(self, at_once: int, seconds: float, work: Callable[[], object]) -> dict[str, float]:
        """Processor seconds of one ``work`` by process, while so many devices work for ``seconds``."""

        def device(_: int) -> int:
            count, until = 0, time.monotonic() + seconds
            while not count or time.monotonic() < until:
                work()
                count += 1
            return count

        before = self.processor()
        with ThreadPoolExecutor(at_once) as pool:
            count = sum(pool.map(device, range(at_once)))
        return {name: (used - before[name]) / count for name, used in self.processor().items()}

    def close(self) -> None:
        """Stops both, whatever became of them."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.helper.stop)
            if self.child is not None:
                stack.callback(self.child.stop)


@dataclass(frozen=True)
class Model:
    """A signed model of one keyed table."""

    task: common_pb2.SignedTask
    manifest: common_pb2.SignedManifest
    rows: npt.NDArray[np.float32]

    @property
    def id(self) -> bytes:
        """What devices ask for."""
        return model_sha256(self.manifest)

    @property
    def entry(self) -> common_pb2.TableManifest:
        """The keyed table's."""
        return common_pb2.ModelManifest.FromString(self.manifest.manifest).tables[0]


def signed_model(shape: Shape, developer: SigningKey, method: str = ENCLAVE, *, helper_key: str = "") -> Model:
    """A task of its own for every table and way to ask, so that no table replaces another."""
    definition = Task(
        name=f"benchmark-{shape.rows}-{shape.row_bytes}-{method}",
        model=MatrixFactorization(items=shape.rows, rank=2),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=KEYS),
        training=DPAM(steps=1),
        cohort=Cohort(minimum=2),
    ).definition()
    definition.dpam.slices_per_device = KEYS
    if method == PIR:
        terms = broadcast_pb2.BroadcastTerms(
            method=broadcast_pb2.BroadcastTerms.METHOD_PIR, helper_key=bytes.fromhex(helper_key)
        )
        definition.broadcast.CopyFrom(terms)
    task = sign_task(definition, developer)
    rows = table(shape)
    manifest = manifest_for(ModelVersion(0, (TableValues(TABLE, rows, keyed=True),)), task_sha256(task))
    return Model(task, sign_manifest(manifest, developer), rows)


def _seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

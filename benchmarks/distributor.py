"""What a device costs the distributor, for each way to get 50 rows of a table, and how fast scans and downloads are.

A real distributor (``odp distributor run``: host, platform and enclave as processes of their own) holds three tables.
Devices ask it over TLS for 50 rows by ``Select``, one at a time and many at once, and for the whole table by
``Download``; processor time is that of the operating system's books per process. Scans and the servers' side of private
retrieval are also timed by themselves, on one thread, beside this machine's memory (``scanning``,
``private_retrieval``). Downloads by many devices are compared with a gRPC server of the same options that streams as
many bytes out of its memory, to the same devices, in turns: the best turn of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.harness import Figure, Limit, progress
from benchmarks.private_retrieval import retrieval
from benchmarks.processes import with_enclaves
from benchmarks.scanning import Shape, scans, table
from device_runtime.enclaves import Enclaves
from device_runtime.services import Services, Traffic
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.seam import Broadcast, Table
from odp.cli.enclave import write_reference_values
from odp.cli.processes import Child
from odp.crypto import SigningKey, seal
from odp.crypto.domains import select_info, selected_aad
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.errors import ServiceError
from odp.models.matrix_factorization import MatrixFactorization
from odp.signed_task import model_sha256, sign_manifest, sign_task, task_sha256
from odp.tables import manifest_for
from odp.task import Cohort, RatingsData, Task, UserLevelDP
from odp.transport.channel import CHUNK_BYTES, connect
from odp.v1 import common_pb2, distributor_pb2, distributor_pb2_grpc

KEYS = 50
_AT_ONCE = 12  # more than a batch, and fewer than the threads of the distributor's server
_DOWNLOADERS = 6  # fewer than the distributor streams to at once
_TURNS = 10
_SECONDS = 300.0
_MILLI = 1e3
_TABLE = "items"
_DOWNLOADED = Shape(62_500, 128)  # 8 MB


@dataclass(frozen=True)
class Plan:
    """Tables and devices of a run; ``seconds`` for each way to get rows of each."""

    shapes: tuple[Shape, ...]
    seconds: float
    downloads: int
    repeats: int
    full: bool


def plan(quick: bool) -> Plan:
    """Issue-sized tables and 1,000 downloads, or tables of a tenth and 100."""
    if quick:
        return Plan((Shape(6_000, 128), Shape(6_000, 2240), Shape(200_000, 128)), 1.0, 100, 4, full=False)
    return Plan((Shape(60_000, 128), Shape(60_000, 2240), Shape(2_000_000, 128)), 5.0, 1000, 6, full=True)


def run(quick: bool) -> list[Figure]:
    """Runs everything and stops every process, whatever happens."""
    chosen = plan(quick)
    figures: list[Figure] = []
    for shape in chosen.shapes:
        progress(f"scanning {shape}")
        figures += scans(table(shape), shape, keys=KEYS, repeats=chosen.repeats, full=chosen.full)
        progress(f"private retrieval from {shape}")
        figures += retrieval(table(shape), shape, keys=KEYS, repeats=chosen.repeats, full=chosen.full)
    return figures + served(chosen)


# A distributor and its devices


class _Distributor:
    """``odp distributor run`` as a process, with verified evidence."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.child = Child(
            "distributor",
            [
                "distributor", "run", "--listen", "127.0.0.1:0", "--platform", str(root / "platform"),
                "--ca-folder", str(root / "ca"),
            ],
            state=root / "distributor",
            log=root / "distributor.log",
        )  # fmt: skip

    def connect(self) -> None:
        """Waits until it serves, and verifies its evidence as a device does."""
        self.child.wait_serving(self._root / "ca" / "ca.pem")
        self.ca = (self._root / "ca" / "ca.pem").read_bytes()
        pinned = self._root / "reference_values.json"
        write_reference_values(self._root / "platform", EnclavePolicy(role="aggregator"), pinned)
        with contextlib.closing(Services(self.child.address, self.ca)) as services:
            found = Enclaves(services, ReferenceValues.load(pinned)).verified("distributor", self.child.address).enclave
        self.hpke_key = found.hpke_key

    def publish(self, model: Model) -> None:
        """Publishes a model over TLS."""
        with connect(self.child.address, self.ca) as channel:
            distributor_pb2_grpc.DistributorServiceStub(channel).Publish(model.stream(), timeout=_SECONDS)

    def processor(self) -> dict[str, float]:
        """User and system seconds by process."""
        found = with_enclaves({"host": self.child.process.pid})
        return {name.removeprefix("host "): _seconds(pid) for name, pid in found.items()}


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

    def stream(self) -> Iterator[distributor_pb2.PublishRequest]:
        """A publish stream."""
        header = distributor_pb2.PublishHeader(task=self.task, model=self.manifest)
        yield distributor_pb2.PublishRequest(header=header)
        words = self.rows.reshape(-1)
        step = CHUNK_BYTES // words.itemsize
        for start in range(0, len(words), step):
            yield distributor_pb2.PublishRequest(chunk=words[start : start + step].tobytes())


def signed_model(shape: Shape, developer: SigningKey) -> Model:
    """A task of its own for every table, so that no table replaces another."""
    definition = Task(
        name=f"benchmark-{shape.rows}-{shape.row_bytes}",
        model=MatrixFactorization(items=shape.rows, rank=2),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=KEYS),
        training=DPAM(steps=1),
        cohort=Cohort(minimum=2),
    ).definition()
    definition.dpam.slices_per_device = KEYS
    task = sign_task(definition, developer)
    rows = table(shape)
    manifest = manifest_for(Broadcast(0, (Table(_TABLE, rows, keyed=True),)), task_sha256(task))
    return Model(task, sign_manifest(manifest, developer), rows)


def served(chosen: Plan) -> list[Figure]:
    """Figures of the real distributor."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        distributor = _Distributor(root)
        stack.callback(distributor.child.stop)
        distributor.connect()
        services = stack.enter_context(contextlib.closing(Services(distributor.child.address, distributor.ca)))
        developer = SigningKey.generate()
        model = signed_model(_DOWNLOADED, developer)
        distributor.publish(model)
        figures = _whole(chosen, root, model, distributor, services)
        for shape in chosen.shapes:
            progress(f"serving {shape}")
            model = signed_model(shape, developer)
            distributor.publish(model)
            figures += _methods(chosen, shape, model, distributor, services)
    return figures


def _methods(chosen: Plan, shape: Shape, model: Model, distributor: _Distributor, services: Services) -> list[Figure]:
    """Bytes and processor time per device, by ``Select`` and by ``Download``."""
    address = distributor.child.address
    traffic = Traffic()
    select(services, address, model, distributor.hpke_key, traffic)

    def ask() -> None:
        select(services, address, model, distributor.hpke_key, Traffic())

    one = _used(distributor, 1, chosen.seconds, ask)
    many = _used(distributor, _AT_ONCE, chosen.seconds, ask)
    whole = _used(distributor, 1, chosen.seconds, lambda: download(services, address, model))
    all_cpu = _MILLI * sum(whole.values())
    return [
        Figure(f"{shape}: bytes up per device, enclave", traffic.up, "B"),
        Figure(
            f"{shape}: bytes down per device, enclave", traffic.down, "B", None, Limit("the whole table", shape.bytes)
        ),
        *(
            Figure(f"{shape}: CPU per device, enclave, {how}", _MILLI * sum(used.values()), "ms", None,
                   Limit("the whole table", all_cpu))
            for how, used in (("one at a time", one), (f"{_AT_ONCE} at once", many))
        ),
        Figure(f"{shape}: CPU per device, of these the host", _MILLI * many["host"], "ms"),
        Figure(f"{shape}: CPU per device, the whole table", all_cpu, "ms"),
    ]  # fmt: skip


def select(services: Services, address: str, model: Model, public: bytes, traffic: Traffic) -> None:
    """Fetches rows as a device does. Raises ServiceError where they are not the model's."""
    keys = np.random.default_rng(int.from_bytes(secrets.token_bytes(4), "big")).integers(0, len(model.rows), KEYS)
    reply_key = secrets.token_bytes(32)
    wanted = distributor_pb2.SelectKeys(table=_TABLE, keys=keys.astype("<u4").tobytes(), reply_key=reply_key)
    sealed = seal(public, wanted.SerializeToString(), select_info(model.id))
    reply = services.select(address, distributor_pb2.SelectRequest(model_sha256=model.id, sealed_keys=sealed), traffic)
    opened = AESGCM(reply_key).decrypt(bytes(12), reply.sealed_rows, selected_aad(model.id))
    if distributor_pb2.SelectedRows.FromString(opened).rows != model.rows[keys].tobytes():
        raise ServiceError("the distributor answered with other rows than those of its table")


def download(services: Services, address: str, model: Model) -> None:
    """Fetches the whole table as a device does. Raises ServiceError where it is not the model's."""
    data = services.download(address, model.id, model.entry)
    if hashlib.sha256(data).digest() != model.entry.sha256:
        raise ServiceError("the distributor sent another table than it was given")


def _whole(chosen: Plan, root: Path, model: Model, distributor: _Distributor, services: Services) -> list[Figure]:
    """Downloads by many devices, beside bare streams of as many bytes."""
    progress(f"{chosen.downloads:,} downloads of {model.rows.nbytes / 1e6:.1f} MB")
    turn = max(1, chosen.downloads // _TURNS)
    with _bare(root / "bare", model) as (bare_services, bare_address):
        rates = [
            (
                _fetched(services, distributor.child.address, model, turn),
                _fetched(bare_services, bare_address, model, turn),
            )
            for _ in range(_TURNS)
        ]
    ours, bare = (max(found) for found in zip(*rates, strict=True))
    name = f"{chosen.downloads:,} whole downloads of {model.rows.nbytes / 1e6:.1f} MB"
    return [
        Figure(name, ours / 1e6, "MB/s", None, Limit("bare gRPC stream", bare / 1e6)),
        Figure("whole downloads over bare gRPC streams", ours / bare, "", ">= 0.7"),
    ]


def _fetched(services: Services, address: str, model: Model, count: int) -> float:
    """Bytes per second that ``count`` devices receive, a few at a time; nothing is done with what they get."""
    with ThreadPoolExecutor(_DOWNLOADERS) as pool:
        started = time.perf_counter()
        list(pool.map(lambda _: services.download(address, model.id, model.entry), range(count)))
        return count * model.rows.nbytes / (time.perf_counter() - started)


@contextlib.contextmanager
def _bare(folder: Path, model: Model) -> Iterator[tuple[Services, str]]:
    """A device's side of a bare server that streams as many bytes as the model has, and its address."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_grpc", str(folder), "download", "16", str(model.rows.nbytes)],
        stdin=subprocess.PIPE,
    )
    try:
        until, pause = time.monotonic() + _SECONDS, threading.Event()
        while not (folder / "address").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise ServiceError("the bare gRPC server did not start")
            pause.wait(0.02)
        address = (folder / "address").read_text()
        with contextlib.closing(Services(address, (folder / "ca" / "ca.pem").read_bytes())) as services:
            yield services, address
    finally:
        process.communicate()


def _used(distributor: _Distributor, at_once: int, seconds: float, work: Callable[[], object]) -> dict[str, float]:
    """Processor seconds of one ``work``, by process of the distributor, while so many devices work for ``seconds``."""

    def device(_: int) -> int:
        count, until = 0, time.monotonic() + seconds
        while not count or time.monotonic() < until:
            work()
            count += 1
        return count

    before = distributor.processor()
    with ThreadPoolExecutor(at_once) as pool:
        count = sum(pool.map(device, range(at_once)))
    return {name: (used - before[name]) / count for name, used in distributor.processor().items()}


def _seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

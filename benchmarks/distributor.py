"""What a device costs the distributor, for each way to get 50 rows of a table, and how fast scans and downloads are.

A real distributor (``odp distributor run``: host, platform and enclave as processes of their own) and a helper hold
three tables. Devices ask them over TLS in every way there is (``methods``). Scans and the servers' side of private
retrieval are also timed by themselves, on one thread, beside this machine's memory (``scanning``,
``private_retrieval``). Downloads by many devices are compared with a gRPC server of the same options that streams as
many bytes out of its memory, to the same devices, in turns: the best turn of each.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figure, Limit, progress
from benchmarks.methods import methods
from benchmarks.private_retrieval import retrieval
from benchmarks.scanning import Shape, scans, table
from benchmarks.served import KEYS, Model, Parties, signed_model
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services
from odp.crypto import SigningKey
from odp.errors import ServiceError

_DOWNLOADERS = 6  # fewer than the distributor streams to at once
_TURNS = 10
_SECONDS = 300.0
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


def served(chosen: Plan) -> list[Figure]:
    """Figures of the real programs."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        parties = Parties(root)
        stack.callback(parties.close)
        parties.connect()
        pinned = PinnedAddresses.at(distributor=parties.address)
        services = stack.enter_context(contextlib.closing(Services(parties.address, parties.ca, pinned=pinned)))
        developer = SigningKey.generate()
        model = signed_model(_DOWNLOADED, developer)
        parties.publish(model)
        figures = _whole(chosen, root, model, parties, services)
        for shape in chosen.shapes:
            progress(f"serving {shape}")
            figures += methods(parties, services, shape, developer, seconds=chosen.seconds)
    return figures


def _whole(chosen: Plan, root: Path, model: Model, parties: Parties, services: Services) -> list[Figure]:
    """Downloads by many devices, beside bare streams of as many bytes."""
    progress(f"{chosen.downloads:,} downloads of {model.rows.nbytes / 1e6:.1f} MB")
    turn = max(1, chosen.downloads // _TURNS)
    with _bare(root / "bare", model) as (bare_services, bare_address):
        rates = [
            (
                _fetched(services, parties.address, model, turn),
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
        ca, pinned = (folder / "ca" / "ca.pem").read_bytes(), PinnedAddresses.at(distributor=address)
        with contextlib.closing(Services(address, ca, pinned=pinned)) as services:
            yield services, address
    finally:
        process.communicate()

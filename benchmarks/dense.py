"""Contributions of a million numbers: the exact sum and check alone, then the whole way into a real aggregator.

The whole way is gRPC and TLS, opening, checking, summing and storing 4 MB per contribution, in another process. The
yardstick is the same stream of the same bytes, over the same gRPC and TLS, into a process that drops them. Masked
contributions go the same way into the same aggregator, which sums them when their round closes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.callers import aggregator_client, found_population, program_identity
from benchmarks.harness import Figure, Limit, progress
from benchmarks.processes import Usage, with_enclaves
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services, Traffic
from odp.algorithms.dense.grid import NUMBER
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.task import Histogram, Statistics
from odp.crypto import HpkeKey, SigningKey, domains, seal
from odp.crypto.secure_aggregation.masked import mask
from odp.crypto.segments import open_segments, seal_segments
from odp.errors import ServiceError
from odp.operations.local.log_setup import reference_values
from odp.operations.local.processes import ODP, Child
from odp.protocol.aggregation import MASKED
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import model_sha256, sign_manifest, sign_order, sign_task, task_sha256
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.v1 import aggregator_pb2, common_pb2
from server.clients import AggregatorClient

_SIZE = 1_000_000
_MINIMUM = 20
_THREADS = 4
_GB = 1e9
#: Name of a figure.
OVER_BARE = "ingest over bare stream"


def run(quick: bool) -> list[Figure]:
    """Sum and check in GB/s per core, ingest beside a bare stream, and the processor time of one contribution."""
    contributions, times = (40, 3) if quick else (50, 6)
    return [*_alone(_task(contributions * times)), *ingest(contributions, times)]


def _task(contributions: int) -> Statistics:
    return Statistics(
        name="dense",
        queries={"items": Histogram(bins=_SIZE)},
        privacy=UserLevelDP(epsilon=4.0, delta=1e-6),
        cohort=Cohort(minimum=_MINIMUM, goal=4 * contributions),
    )


def _alone(task: Statistics) -> list[Figure]:
    """Within this process, on one core."""
    query = algorithm_for(task.definition()).query(0)
    assert isinstance(query, DenseQuery)  # narrows the type; the task is one of statistics
    generator = np.random.Generator(np.random.PCG64(1))
    payloads = [_payload(query, generator) for _ in range(8)]
    size = sum(map(len, payloads))
    total, into = query.new_sum(), np.zeros(_SIZE, dtype=np.int64)
    plain = [np.frombuffer(payload, dtype=NUMBER) for payload in payloads]

    def check() -> None:
        for payload in payloads:
            query.check(payload)

    wide = _rate(lambda: [np.add(into, numbers, out=into) for numbers in plain], size)
    figures = [
        Figure("sum", _rate(lambda: total.add(payloads), size), "GB/s", ">= 10", Limit("numpy into int64", wide)),
        Figure("check of the bound", _rate(check, size), "GB/s"),
    ]
    key = HpkeKey.generate()
    sealed = seal_segments(key.public, payloads[0], b"benchmark")
    figures.append(Figure("open", _rate(lambda: open_segments(key, sealed, b"benchmark"), len(sealed)), "GB/s"))
    return figures


@dataclass(frozen=True)
class _Round:
    """An open round of a real aggregator, contributions to it (header, stream), each used once, and its last order."""

    submissions: Sequence[tuple[aggregator_pb2.SubmitHeader, bytes]]
    close: tuple[bytes, bytes]


def ingest(contributions: int, times: int) -> list[Figure]:
    """Figures of the real ingest; each of ``times`` turns takes ``contributions``."""
    task = _task(contributions * times)
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        developer = SigningKey.generate()
        founder = developer.public.hex()
        policy = EnclavePolicy(role="aggregator", minimum_cohort=_MINIMUM, founders=(founder,))
        shared = ["--ca-folder", str(root / "ca")]
        arguments = ["aggregator", "run", "--listen", "127.0.0.1:0", "--platform", str(root / "platform")]
        arguments += ["--minimum-cohort", str(_MINIMUM), "--control-listen", "127.0.0.1:0", "--founder", founder]
        arguments += shared
        real = Child("aggregator", arguments, state=root / "aggregator", log=root / "aggregator.log", command=ODP)
        stack.callback(real.stop)
        command = (sys.executable, "-m", "benchmarks.bare_stream")
        bare = Child("bare stream", shared, state=root / "bare", log=root / "bare.log", command=command)
        stack.callback(bare.stop)
        ca = root / "ca" / "ca.pem"
        for child in (real, bare):
            child.wait_serving(ca)
        reference_values(root / "platform", policy).save(root / "reference_values.json")
        services = Services(
            real.address, ca, pinned=PinnedAddresses(by_role={"aggregator": (real.address, bare.address)})
        )
        stack.callback(services.close)
        values = ReferenceValues.load(root / "reference_values.json")
        verified = Enclaves(services, lambda: values).verified("aggregator", real.address).enclave
        client = aggregator_client(real, program_identity(root, "server", root / "ca"))
        progress(f"sealing {contributions * times} contributions of {_SIZE:,} numbers")
        opened = _open(task, client, developer, verified, contributions * times)
        masked = _open(_masked(task), client, developer, verified, contributions)
        rates: dict[str, float] = {"bare": 0.0, "real": 0.0}
        with Usage(with_enclaves({"real": real.process.pid, "bare": bare.process.pid})) as usage:
            before = _by_service(usage)
            for turn in range(times):
                part = opened.submissions[turn * contributions : (turn + 1) * contributions]
                # By turns, so that what else the machine does meets both alike.
                rates["bare"] = max(rates["bare"], _send(services, bare.address, part))
                rates["real"] = max(rates["real"], _send(services, real.address, part))
            used = _by_service(usage)
            masked_rate = _send(services, real.address, masked.submissions)
            masked_used = _by_service(usage)["real"] - used["real"]
            closing = _close(client, masked)
            peak = sum(size for name, size in usage.peak_bytes().items() if name.startswith("real"))
    sent = contributions * times
    each = {name: (used[name] - before[name]) / sent * 1e3 for name in used}
    ratio = rates["real"] / rates["bare"]
    return [
        Figure("ingest over TLS", rates["real"], "GB/s", limit=Limit("bare stream", rates["bare"])),
        Figure(OVER_BARE, ratio, "ratio", ">= 0.5"),
        Figure("processor time per contribution", each["real"], "ms", limit=Limit("bare stream", each["bare"])),
        Figure("masked: ingest over TLS", masked_rate, "GB/s", limit=Limit("unmasked", rates["real"])),
        Figure("masked: processor time per contribution", masked_used / contributions * 1e3, "ms"),
        Figure("masked: close, per contribution", closing / contributions * 1e3, "ms"),
        Figure("peak memory of the aggregator", peak / 2**20, "MiB"),
    ]


def _by_service(usage: Usage) -> dict[str, float]:
    """Processor seconds of each service, its enclave and platform process included."""
    seconds: dict[str, float] = {}
    for name, each in usage.processor_seconds().items():
        seconds[name.split()[0]] = seconds.get(name.split()[0], 0.0) + each
    return seconds


def _masked(task: Statistics) -> Statistics:
    """The same question in a population of its own."""
    cohort = dataclasses.replace(task.cohort, aggregation=MASKED)
    return dataclasses.replace(task, name="masked", population="masked", cohort=cohort)


def _close(client: AggregatorClient, round: _Round) -> float:
    """Seconds until the release of a round is there, its charge and noise included."""
    started = time.perf_counter()
    client.close_round(*round.close)
    return time.perf_counter() - started


def _open(
    task: Statistics, client: AggregatorClient, developer: SigningKey, enclave: VerifiedEnclave, count: int
) -> _Round:
    found_population(client, task.population, developer)
    signed = sign_task(task.definition(), developer)
    definition = common_pb2.TaskDefinition.FromString(signed.definition)
    task_id = task_sha256(signed)
    server = algorithm_for(definition).server()
    manifest = sign_manifest(manifest_for(server.broadcast(server.start()), task_id), developer)
    order = aggregator_pb2.RoundOrder(task_sha256=task_id, round=0, model_sha256=model_sha256(manifest))
    key = client.open_round(signed, *sign_order(order, developer, domains.OPEN)).hpke_key
    query = algorithm_for(definition).query(0)
    assert isinstance(query, DenseQuery)  # narrows the type; the task is one of statistics
    generator = np.random.Generator(np.random.PCG64(2))
    payload = _payload(query, generator)
    info = domains.large_contribution_info(task_id, 0, order.model_sha256, enclave.policy.sha256)
    submissions = []
    masked = definition.cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_MASKED
    header = aggregator_pb2.SubmitHeader(task_sha256=task_id, round=0)
    for _ in range(count):
        secret = os.urandom(32)
        halves = mask(payload, info=domains.masked_vector_info(task_id, 0)) if masked else None
        contribution = aggregator_pb2.Contribution(
            task_sha256=task_id,
            model_sha256=order.model_sha256,
            contribution_id=domains.contribution_id(secret, task_id, 0),
            pseudonym=domains.pseudonym(secret, task_id),
            payload=payload if halves is None else halves.secret,
        )
        plaintext = contribution.SerializeToString()
        if halves is None:
            submissions.append((header, seal_segments(key, plaintext, info)))
            continue
        short = domains.contribution_info(task_id, 0, order.model_sha256, enclave.policy.sha256)
        own = aggregator_pb2.SubmitHeader(task_sha256=task_id, round=0, sealed_contribution=seal(key, plaintext, short))
        submissions.append((own, halves.vector))
    return _Round(submissions, sign_order(order, developer, domains.CLOSE))


def _send(services: Services, address: str, submissions: Sequence[tuple[aggregator_pb2.SubmitHeader, bytes]]) -> float:
    """GB/s of the streams, a few at a time. Raises ServiceError where one is refused."""
    left = list(submissions)
    refused: list[int] = []

    def work() -> None:
        while True:
            try:
                header, one = left.pop()
            except IndexError:
                return
            answer = services.submit_stream(address, header, one, Traffic()).refusal
            if answer:
                refused.append(answer)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if refused:
        raise ServiceError(f"{len(refused)} contributions were refused, the first with code {refused[0]}")
    return sum(len(data) for _, data in submissions) / seconds / _GB


def _payload(query: DenseQuery, generator: np.random.Generator) -> bytes:
    """Numbers of all sizes that the bound allows."""
    numbers = generator.standard_normal(query.grid.size)
    numbers *= 0.99 * query.grid.units / np.linalg.norm(numbers)
    return np.trunc(numbers).astype(NUMBER).tobytes()


def _rate(work: Callable[[], object], size: int, times: int = 10) -> float:
    """GB/s of the best of some runs."""
    work()
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return size / best / _GB

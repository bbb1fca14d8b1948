"""Contributions per second through a real aggregator, beside bare gRPC in the same run, and where the time goes.

One round of factored DPAM contributions (50 items each, rank 16, 3,706 items) goes through gRPC, TLS and HPKE into
``odp aggregator run``, a process of its own with all of its children. The yardstick is a gRPC server of the same
options that parses the same messages and does nothing with them: the faster of one with threads and one of asyncio. All
three are measured by turns, and the best turn of each counts. Devices are one process that sealed everything
beforehand.

Processor time is that of the operating system's books per process. The parts of a contribution (opening, checks, sums)
are timed by themselves, on one thread, from the same code.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks import noise
from benchmarks.callers import aggregator_client, found_population, program_identity
from benchmarks.contributors import Contributors, Sent, Target, payloads
from benchmarks.harness import Figure, Limit, progress
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services
from odp.algorithms.dpam.terms import FIRST_FACTOR_ROUND, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Query
from odp.crypto import HpkeKey, SigningKey, domains, seal
from odp.crypto.blind_rsa import EXPONENT
from odp.errors import ServiceError
from odp.numerics import parallel
from odp.operations.local.log_setup import reference_values
from odp.operations.local.processes import Child
from odp.signed.task import open_task, sign_order, sign_task, task_sha256
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey
from odp.v1 import aggregator_pb2, common_pb2

_ITEMS, _RANK, _PLACES = 3706, 16, 50
_MINIMUM_COHORT = 20
_POPULATION_DELTA = 1e-7  # times the contributions of a full run, it has to stay far below 1
_SECONDS = 120.0
_MIB = 2.0**20
_MODEL = hashlib.sha256(b"a model").digest()
_LARGEST_RATIO = 1e6  # of the noise to its grid
_FEW = 512
_TURNS = 4
#: Kinds of bare servers.
_SERVERS = {"sync": "32 threads", "aio": "asyncio"}
#: Names of figures.
OVER_BARE = "contributions over the faster bare gRPC server"
COST = "processor time per contribution"
_TOGETHER = 32  # as they come from the host


@dataclass(frozen=True)
class Plan:
    """The size of a run. ``memory_from`` and ``contributions`` are where resident memory is looked at."""

    contributions: int
    memory_from: int
    bare: int
    full: bool


def plan(quick: bool) -> Plan:
    """100,000 contributions, or 6,000."""
    return Plan(6_000, 1_000, 3_000, full=False) if quick else Plan(100_000, 1_000, 20_000, full=True)


def run(quick: bool) -> list[Figure]:
    """Runs everything and stops every process, whatever happens."""
    chosen = plan(quick)
    figures = ingest(chosen)
    figures += parts(1024 if quick else 8192)
    exact = [figure for figure in noise.run(quick) if figure.unit == "samples/s"]
    return figures + [figure for figure in exact if float(figure.name.rsplit(" ", 1)[1]) <= _LARGEST_RATIO]


def definition(*, items: int = _ITEMS, rank: int = _RANK) -> common_pb2.TaskDefinition:
    """The task that contributions are for."""
    from odp.algorithms.dpam.config import DPAM, RatingsData
    from odp.models.matrix_factorization import MatrixFactorization
    from odp.protocol.terms import Cohort, UserLevelDP
    from odp.tasks.task import Task

    return Task(
        name="benchmark",
        model=MatrixFactorization(items=items, rank=rank),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=_PLACES),
        training=DPAM(steps=1),
        cohort=Cohort(minimum=_MINIMUM_COHORT, goal=_MINIMUM_COHORT),
    ).definition()


# Ingest


class OneAggregator:
    """``odp aggregator run`` as a process, and the developer who orders its rounds."""

    def __init__(
        self, root: Path, *, tokens: bool, developer: SigningKey | None = None, leaves: Sequence[Child] = ()
    ) -> None:
        """``leaves`` serve: it is then their root."""
        self.issuer = SigningKey.generate() if tokens else None
        self._signer = rsa.generate_private_key(EXPONENT, 8 * TOKEN_BYTES)
        self.developer = SigningKey.generate() if developer is None else developer
        founder = self.developer.public.hex()
        self.policy = EnclavePolicy(
            role="aggregator",
            minimum_cohort=_MINIMUM_COHORT,
            population_delta=_POPULATION_DELTA,
            founders=(founder,),
            leaves=len(leaves),
        )
        self._root = root
        self.child = Child(
            "aggregator",
            [*program(root, founder), "--leaves", ",".join(leaf.control_address for leaf in leaves)],
            state=root / "aggregator",
            log=root / "aggregator.log",
        )
        self.task = sign_task(definition(), self.developer)
        self.hpke_key = b""  # of the round that is open

    def connect(self) -> None:
        """Waits until it serves, and verifies its evidence as a device does."""
        self.child.wait_serving(self._root / "ca" / "ca.pem")
        self.ca = (self._root / "ca" / "ca.pem").read_bytes()
        self._server = aggregator_client(self.child, program_identity(self._root, "server", self._root / "ca"))
        issuer_key = b"" if self.issuer is None else self.issuer.public
        found_population(self._server, definition().population, self.developer, issuer_key=issuer_key)
        pinned = self._root / "reference_values.json"
        reference_values(self._root / "platform", self.policy).save(pinned)
        addresses = PinnedAddresses.at(aggregator=self.child.address)
        with contextlib.closing(Services(self.child.address, self.ca, pinned=addresses)) as services:
            values = ReferenceValues.load(pinned)
            Enclaves(services, lambda: values).verified("aggregator", self.child.address)

    def target(self, round: int) -> Target:
        """To what the contributions of a round are sealed."""
        signer = b""
        if self.issuer is not None:
            signer = self._signer.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Target(
            self.task.definition, task_sha256(self.task), round, _MODEL, self.policy.sha256, self.hpke_key, signer
        )

    def open(self, round: int) -> None:
        """Opens a round."""
        token_key = None
        if self.issuer is not None:
            modulus = self._signer.public_key().public_numbers().n.to_bytes(TOKEN_BYTES, "big")
            key = TokenKey(definition().population, task_sha256(self.task), round, modulus, 2**33)
            token_key = key.signed(self.issuer)
        opened = self._server.open_round(self.task, *self._order(round, domains.OPEN), token_key)
        self.hpke_key = opened.hpke_key

    def close(self, round: int) -> float:
        """Closes a round; seconds until its release arrived."""
        order = self._order(round, domains.CLOSE)
        started = time.perf_counter()
        self._server.close_round(*order)
        return time.perf_counter() - started

    def processes(self) -> dict[str, psutil.Process]:
        """The program and its children, by what they are."""
        return with_children(self.child)

    def stop(self) -> None:
        """Ends the program."""
        self.child.stop()

    def _order(self, round: int, domain: bytes) -> tuple[bytes, bytes]:
        order = aggregator_pb2.RoundOrder(task_sha256=task_sha256(self.task), round=round, model_sha256=_MODEL)
        return sign_order(order, self.developer, domain)


def program(root: Path, founder: str) -> list[str]:
    """The command of an aggregator, and of a leaf of one but for what makes it one."""
    return [
        "aggregator", "run", "--listen", "127.0.0.1:0", "--platform", str(root / "platform"),
        "--ca-folder", str(root / "ca"), "--minimum-cohort", str(_MINIMUM_COHORT),
        "--population-delta", repr(_POPULATION_DELTA), "--control-listen", "127.0.0.1:0", "--founder", founder,
    ]  # fmt: skip


def with_children(child: Child) -> dict[str, psutil.Process]:
    """A program and its children, by what they are."""
    root = psutil.Process(child.process.pid)
    found = {"host": root}
    for number, below in enumerate(root.children(recursive=True)):
        name = _role(below.cmdline()) or f"process {number + 1}"
        found[name if name not in found else f"{name} {number + 1}"] = below
    return found


def _role(command: list[str]) -> str:
    """What a child of the aggregator is, from its command line."""
    return next((name for name in ("platform", "enclave") if any(name in word for word in command[1:])), "")


def ingest(chosen: Plan, *, tokens: bool = True) -> list[Figure]:
    """Figures of the real ingest; see the module. ``tokens``: each contribution has one, which the enclave verifies."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        devices = stack.enter_context(Contributors())
        aggregator = OneAggregator(root, tokens=tokens)
        stack.callback(aggregator.child.stop)
        aggregator.connect()
        for round in range(FIRST_FACTOR_ROUND):  # a factor round comes after those of counts and biases
            aggregator.open(round)
            devices.prepare(aggregator.target(round), _MINIMUM_COHORT, seed=round)
            require_accepted(devices.send(aggregator.child.address, aggregator.ca, 0, _MINIMUM_COHORT))
            aggregator.close(round)
        aggregator.open(FIRST_FACTOR_ROUND)
        progress(f"sealing {chosen.contributions:,} contributions")
        devices.prepare(aggregator.target(FIRST_FACTOR_ROUND), chosen.contributions, seed=7)
        servers = {kind: stack.enter_context(_bare(root / kind, kind)) for kind in _SERVERS}
        progress("submitting")
        pids = aggregator.processes()
        real = _Server(aggregator.child.address, aggregator.ca, pids)
        require_accepted(devices.send(real.address, real.ca, 0, chosen.memory_from))
        resident = _resident(pids)
        for server in servers.values():
            devices.send(server.address, server.ca, 0, chosen.bare // 4)  # warm
        count = chosen.contributions - chosen.memory_from
        ends = [chosen.memory_from + count * turn // _TURNS for turn in range(_TURNS + 1)]
        for first, last in itertools.pairwise(ends):
            # By turns, so that what else the machine does meets all alike.
            for server in servers.values():
                server.measure(devices, 0, chosen.bare)
            real.measure(devices, first, last)
        after = _resident(pids)
        closing = aggregator.close(FIRST_FACTOR_ROUND)
        slower, faster = sorted(servers, key=lambda kind: servers[kind].rate)
        return [
            *_rates(real, servers[faster], _SERVERS[faster], servers[slower], _SERVERS[slower]),
            *_costs(real, count, servers[faster]),
            *_memory(chosen, resident, after),
            Figure("close the round: charge, sum, noise, signature", closing, "s"),
        ]


class _Server:
    """A server that contributions go to, its processes by name, and what it has done so far.

    ``rate`` is of its fastest turn, in messages per second; ``used`` and ``sending`` are processor seconds of each of
    its processes and of the devices'.
    """

    def __init__(self, address: str, ca: bytes, processes: dict[str, psutil.Process]) -> None:
        self.address, self.ca = address, ca
        self.rate = 0.0
        self.used = dict.fromkeys(processes, 0.0)
        self.messages = 0
        self.seconds = self.sending = 0.0
        self._processes = processes

    @property
    def cost(self) -> float:
        """Processor seconds of all its processes per message."""
        return sum(self.used.values()) / max(1, self.messages)

    def measure(self, devices: Contributors, first: int, last: int) -> None:
        """One turn. Raises ServiceError where a contribution was refused."""
        before = processor_seconds(self._processes)
        sent = devices.send(self.address, self.ca, first, last)
        require_accepted(sent)
        for name, seconds in processor_seconds(self._processes).items():
            self.used[name] += seconds - before[name]
        self.rate = max(self.rate, (last - first) / sent.seconds)
        self.messages += last - first
        self.seconds += sent.seconds
        self.sending += sent.processor


@contextlib.contextmanager
def _bare(folder: Path, kind: str) -> Iterator[_Server]:
    """A bare gRPC server in a process of its own."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_grpc", str(folder), kind, "32"], stdin=subprocess.PIPE
    )
    try:
        address = _wait_for(folder / "address", process)
        yield _Server(address, (folder / "ca" / "ca.pem").read_bytes(), {kind: psutil.Process(process.pid)})
    finally:
        process.communicate()


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _SECONDS
    pause = threading.Event()
    while not path.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise ServiceError("the bare gRPC server did not start")
        pause.wait(0.02)
    return path.read_text()


def require_accepted(sent: Sent) -> None:
    """Raises ServiceError where a contribution was refused."""
    if set(sent.refusals) != {0}:
        raise ServiceError(f"contributions were refused, by code: {sent.refusals}")


def processor_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """User and system seconds of each process so far."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: found.user + found.system for name, found in times.items()}


def _resident(processes: dict[str, psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes.values()))


def _rates(real: _Server, faster: _Server, its_name: str, slower: _Server, other_name: str) -> list[Figure]:
    bare = Limit(f"bare gRPC of the same messages, {its_name}", faster.rate)
    return [
        Figure("contributions", real.rate, "1/s", None, bare),
        Figure(OVER_BARE, real.rate / faster.rate, "", ">= 0.6"),
        Figure(f"bare gRPC, {other_name}", slower.rate, "1/s", None, Limit(its_name, faster.rate)),
    ]


def _costs(real: _Server, count: int, yardstick: _Server) -> list[Figure]:
    bare = Limit("bare gRPC server", 1e6 * yardstick.cost)
    figures = [
        Figure(f"{COST}: {name}", 1e6 * seconds / count, "µs", None, bare) for name, seconds in real.used.items()
    ]
    # Were the devices busy all the time, they would be what was measured.
    figures.append(Figure("devices' process: share of a core while sending", real.sending / real.seconds, ""))
    return figures


def _memory(chosen: Plan, before: float, after: float) -> list[Figure]:
    grown = (after - before) / (chosen.contributions - chosen.memory_from)
    name = f"resident memory after {chosen.contributions:,} contributions"
    return [
        Figure(name, after / _MIB, "MiB", None, Limit(f"after {chosen.memory_from:,}", before / _MIB)),
        # What must be remembered of a contribution until its round ends: its id, its hash, its pseudonym.
        Figure("memory per further contribution", grown, "B", "<= 256" if chosen.full else None),
    ]


# Parts


def parts(count: int) -> list[Figure]:
    """Microseconds per contribution of each part of the enclave's work, one thread."""
    task = open_task(sign_task(definition(), SigningKey.generate()))
    terms, query = Terms.of(task), algorithm_for(task).query(FIRST_FACTOR_ROUND)
    spread = payloads(terms, FIRST_FACTOR_ROUND, count, seed=1)
    hot = spread[:1] * count  # everyone rates the same items
    key, info = HpkeKey.generate(), b"benchmark"
    sealed = [seal(key.public, payload, info) for payload in spread[:_FEW]]

    def check() -> None:
        for start in range(0, _FEW, _TOGETHER):
            query.refusals(spread[start : start + _TOGETHER])

    opening = _each(lambda: [key.open(one, info) for one in sealed], _FEW)
    checking = _each(check, _FEW)
    with parallel.one_blas_thread():  # as in the program
        direct = _summing(query, spread, oblivious=False)
        oblivious, same = (_summing(query, given, oblivious=True) for given in (spread, hot))
    against = Limit("direct, which shows the items", direct)
    return [
        Figure("part: open (HPKE)", opening, "µs"),
        Figure("part: check the bounds", checking, "µs"),
        Figure("part: sum, oblivious", oblivious, "µs", None, against),
        # Were accesses to follow the data, one hot row would be faster: it stays in the cache.
        Figure("part: sum, oblivious, one set of items for all", same, "µs", None, Limit("items spread", oblivious)),
    ]


def _summing(query: Query, given: list[bytes], *, oblivious: bool) -> float:
    total = query.new_sum(oblivious=oblivious)
    return _each(lambda: total.add(given), len(given))


def _each(work: Callable[[], object], count: int) -> float:
    """Microseconds per unit of ``work``: the best of a few, after one that warms up."""
    work()
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return 1e6 * best / count

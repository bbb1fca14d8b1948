"""Devices as the outside sees them: hosts of the runtime against real services, their calls recorded with their times.

The services run in this process, over TLS. Each run is a new host with new devices, whose stores were filled before.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from e2e.world import World
from security.hostile_tasks import KINDS, Fill, nothing
from transcript_times import FALSE_ALARMS, MOST_BATCHES, RESOLUTION, RUNS
from transcripts import Observation, Transcript, first_difference, first_shift_of

import device_runtime
import device_runtime.network.addresses
from device_runtime.network.services import Traffic
from device_runtime.store.schema import ID_BYTES, SECRET_BYTES
from device_runtime.store.store import Store, store_path
from odp.errors import OdpError
from odp.services.connection import Connection, TaskHandle
from odp.transport.logs import Log
from odp.transport.tls import read_ca
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator.modes.secagg.limits import Pace

#: Of the enclave, and of the devices: rounds stay open while devices of a trial come.
MINIMUM = 2
LIMITS = device_runtime.Limits(
    min_cohort=MINIMUM, max_epsilon=100.0, max_total_epsilon=1e6, max_total_epsilon_30_days=1e6,
    max_developer_epsilon=1e6, max_developer_epsilon_30_days=1e6, max_local_epsilon=1e6, max_delta=1e-2,
    max_total_delta=0.5,
)  # fmt: skip
#: A run that has not ended by then is a failure of the trial.
_LONGEST_RUN = 20.0
# The log has stopped growing after so many equal answers.
_QUIET_CHECKS, _CHECK_SECONDS = 10, 0.1


#: Of sessions: their devices are all there at once.
PACE = Pace(step=10.0, vector=10.0, silent=3.0)
#: Starts a host.
Start = Callable[..., device_runtime.Running]
# A host in a process of its own: reads its arguments from standard input, and writes what was observed.
_ALONE = """
import sys; sys.path[:] = sys.argv[1:]
import pickle
from security.outside import observed
sys.stdout.buffer.write(pickle.dumps(observed(*pickle.load(sys.stdin.buffer))))
"""
UNDECIDED = "undecided"


class NoneContributed(AssertionError):
    """No device took part in the task of a trial, which shows nothing then."""


class Outside:
    """Services, and runs of hosts against them. A trial opens a task of its own population."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self._root = root
        self._stack = contextlib.ExitStack()
        policy = EnclavePolicy(role="aggregator", minimum_cohort=MINIMUM)
        self.world = World(root / "services", policy=policy, with_tokens=False, pace=PACE, **changes).start(self._stack)
        # That of the world gives devices more time than a hostile developer does.
        server = self.world.server
        self._connection = self._stack.enter_context(
            Connection(address=server.address, ca=read_ca(self.world.ca), token=server.token_path.read_text().strip())
        )
        self._numbers = itertools.count()
        self._opened: dict[tuple[str, float, int], str] = {}

    def close(self) -> None:
        self._stack.close()

    def open(self, task: Any) -> TaskHandle:
        """Submits a task, and returns when a device that checks in gets work, and the log has stopped growing."""
        handle = self._connection.submit(task)
        services, pause = self.world.services(), threading.Event()
        sizes: list[int] = []
        try:
            for _ in range(600):
                answer = services.check_in(task.population, Traffic())
                # Of an open task, an answer changes with the log's tree alone.
                sizes.append(answer.ByteSize() if answer.WhichOneof("answer") != "retry" else 0)
                if len(sizes) > _QUIET_CHECKS and sizes[-1] and len(set(sizes[-_QUIET_CHECKS:])) == 1:
                    return handle
                pause.wait(_CHECK_SECONDS)
        finally:
            services.close()
        raise AssertionError(f"the task did not open: {handle.status()}")

    def population_of(self, kind: str, *, most_fixed: float, first: int = 0) -> str:
        """The population whose devices the task of a kind is open for. Raises LookupError as ``Kind.task``."""
        key = (kind, most_fixed, first)
        if key not in self._opened:
            name = "".join(letter if letter.isalnum() else "-" for letter in kind.lower()) + f"-{len(self._opened)}"
            self.open(KINDS[kind].task(name, most_seconds=most_fixed, first=first))
            self._opened[key] = name
        return self._opened[key]

    def template(self, *fills: Fill) -> Path:
        """A state folder whose device n holds what ``fills[n]`` wrote."""
        folder = self._root / f"template-{next(self._numbers)}"
        for device, fill in enumerate(fills):
            with Store.open_or_create(store_path(folder, device), durable=False) as store:
                fill(store)
        return folder

    def prepared(self, template: Path) -> Path:
        """A state folder of new devices, which hold what those of ``template`` do."""
        folder = self._root / f"run-{next(self._numbers)}"
        shutil.copytree(template, folder)
        for path in folder.glob("devices/*/*.sqlite"):
            with Store.open(path, durable=False) as store:
                store.execute(
                    "UPDATE identity SET device_id = ?, secret = ?, seed = ?",
                    (os.urandom(ID_BYTES), os.urandom(SECRET_BYTES), os.urandom(8)),
                )
        return folder

    def observe(
        self,
        population: str,
        folder: Path,
        *,
        but: Sequence[str] = (),
        start: Start = device_runtime.start,
        fresh: bool = False,
        **config: Any,
    ) -> Observation:
        """One run of a host with the devices of a ``prepared`` folder: until each has contributed.

        Calls of the methods ``but`` are left out; ``start`` starts the host, in a ``fresh`` process or in this one.
        """
        devices = len(list(folder.glob("devices/*/*.sqlite")))
        settings = device_runtime.Config(**{
            "state": folder, "server": self.world.server.address, "ca": self.world.ca,
            "reference_values": self.world.reference_values, "population": population, "count": devices,
            "keyring": False, "durable": False, "limits": LIMITS, "most_contributions": devices,
            "end_after": _LONGEST_RUN, **config,
        })  # fmt: skip
        try:
            if not fresh:
                return observed(settings, but, start, log=self.world.log("devices"))
            done = subprocess.run(
                [sys.executable, "-c", _ALONE, *sys.path], input=pickle.dumps((settings, but, start)), check=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            made: Observation = pickle.loads(done.stdout)
            return made
        finally:
            shutil.rmtree(folder)


def observed(
    settings: device_runtime.Config, but: Sequence[str], start: Start, *, log: Log | None = None
) -> Observation:
    """One run of a host, until it has ended."""
    transcript, peers = Transcript(), device_runtime.network.addresses
    with mock.patch.object(peers, "connect", transcript.over(peers.connect)):
        host = start(settings, log=log)
        try:
            outcome = "ended" if host.join(2 * _LONGEST_RUN) else "still running"
        except OdpError as error:
            outcome = f"{type(error).__name__}: {error}"
        ended = time.monotonic()
    charged, ledger, empty = [], [], 0
    for device in range(settings.count or 0):
        with Store.open(store_path(settings.state, device), durable=False) as store:
            # A session takes a round of its own, whose number says nothing.
            charged.append(tuple(each.terms.task_sha256 for each in store.charged()))
            ledger.append(tuple((line.state, line.refusal) for line in store.ledger()))
            empty += store.empty_contributions()
    return Observation.of(
        transcript.calls, devices=len(charged), but=but, outcome=outcome, charged=tuple(charged), ledger=tuple(ledger),
        ended=ended, empty=empty,
    )  # fmt: skip


def told_apart(
    prepare: Callable[[str], Callable[[], Observation]],
    first: str,
    second: str,
    *,
    seed: int = 1,
    resolution: float = RESOLUTION,
    least_batches: int = 1,
    most_batches: int = MOST_BATCHES,
    most_seconds: float = math.inf,
) -> str | None:
    """How two devices can be told apart by their transcripts; None where they cannot.

    ``prepare`` makes a run of a device, by its name. The runs of both come in an order that ``seed`` draws, in batches,
    until nothing hints at a difference, after ``least_batches``, or one is certain (``transcript_times``). After
    ``most_seconds`` no further batch begins, and the answer begins with ``UNDECIDED`` where something hints at one.
    """
    generator, began = random.Random(seed), time.monotonic()
    batches: tuple[list[list[Observation]], list[list[Observation]]] = ([], [])
    for number in range(1, most_batches + 1):
        order = [0, 1] * RUNS
        generator.shuffle(order)
        batch: tuple[list[Observation], list[Observation]] = ([], [])
        # To make a large store keeps a disk busy: all of them are there before the first run.
        runs_of_batch = [(arm, prepare((first, second)[arm])) for arm in order]
        for arm, run in runs_of_batch:
            batch[arm].append(run())
        for runs, observed in zip(batches, batch, strict=True):
            runs.append(observed)
        if not any(itertools.chain(*(run.charged for runs in batch for run in runs))):
            raise NoneContributed(batch[0][0].outcome)
        difference = first_difference(*batches, names=(first, second))
        if difference is not None:
            return difference
        # Each of the looks may be the false alarm.
        shift = first_shift_of(*batches, resolution=resolution, false_alarms=FALSE_ALARMS / most_batches)
        if shift is not None:
            return shift.text((first, second))
        shift = first_shift_of(*batches, resolution=resolution, false_alarms=_hint(batch[0][0]))
        if shift is None:
            if number >= least_batches:
                return None
            continue
        if time.monotonic() - began > most_seconds:
            return f"{UNDECIDED}: {shift.text((first, second))}"
    return None


def _hint(run: Observation) -> float:
    """Chance of all times together below which one of them hints at a shift: 5 % of that time alone, either way.

    However many times there are, a batch without overlap is a hint.
    """
    return 2 * 0.05 * len(run.times)


def tried(
    outside: Outside, kind: str, data: str, *, most_fixed: float, first: int = 0, seed: int = 1, **options: Any
) -> str | None:
    """How a device with ``data`` can be told apart from one without any, by a task of ``kind``; options of
    ``told_apart``.

    Raises LookupError where no task of the kind has so short a fixed time, NoneContributed where no device took part.
    """
    population, attack = outside.population_of(kind, most_fixed=most_fixed, first=first), KINDS[kind]
    others = [nothing] * (attack.devices - 1)
    templates = {name: outside.template(attack.data[name], *others) for name in ("empty", data)}

    def prepare(name: str) -> Callable[[], Observation]:
        folder = outside.prepared(templates[name])
        return functools.partial(
            outside.observe, population, folder, but=attack.polls, fresh=attack.fresh, **attack.host()
        )

    if attack.devices > 1 and attack.polls:
        # The number of the first round, 0, takes no byte in the messages of its session.
        prepare("empty")()
    return told_apart(prepare, "empty", data, seed=seed, **options)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps as many cores busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()

"""When a device sends does not depend on what a developer's program does with its data."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from fixed_times import impatient_times

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")


import odp
from device_runtime.host.provision import provision
from device_runtime.isolated.training import IsolatedTrainer
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round import computing_processes
from device_runtime.round.computations import NO_KEYS
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.fixed_times import FixedTimes, Window
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.secagg import Seat, Session
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work, open_assignment, open_model
from device_runtime.tasks.computing_terms import ComputingTerms
from device_runtime.view.overview import overview
from device_runtime.view.pages import _read
from odp.algorithms.computing_time import SHARE_OF_TIME
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.shares import secagg_config
from odp.algorithms.registry import algorithm_for
from odp.cli import person
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.models.litert.program import Program
from odp.models.litert.trained import network_message
from odp.privacy.mechanisms.discrete_gaussian import OperatingSystemNoise
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import open_task, sign_manifest, sign_task, task_sha256
from odp.transport.tls import TlsIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import common_pb2
from tests.device_runtime.conftest import World
from tests.models.litert import hostile
from tests.models.litert.compile_mlp import CLASSES, FEATURES, stored

#: Simulated time passes for a device, and real time for its processes: the largest step is long enough.
SECONDS = 64.0
EXAMPLES = odp.Examples({"x": odp.Tensor((FEATURES,), -2.0, 2.0)}, label="kind")
TRAINED, WITHOUT_EXAMPLES = 0, 1


class NetworkTask:
    """A task whose network was compiled before: ``odp.KerasModel`` needs TensorFlow."""

    def __init__(self, program: Program | None = None, **cohort: Any) -> None:
        self._program = program or stored()
        self._cohort = odp.Cohort(**{"minimum": 2, "goal": 3, "round_seconds": 1000, **cohort})

    def definition(self) -> common_pb2.TaskDefinition:
        definition = common_pb2.TaskDefinition(
            name="digits", population="people", privacy=common_pb2.PrivacyTerms(epsilon=4, delta=1e-6),
            cohort=self._cohort.to_proto(1e-6), computing_milliseconds=round(1000 * SECONDS),
        )  # fmt: skip
        definition.network.CopyFrom(network_message(self._program, None))
        EXAMPLES.write(definition)
        odp.DPFedAvg(rounds=2, batch=4, rate=0.2).write(definition)
        return definition


class Trainer(IsolatedTrainer):
    """Accepts every program: whether this machine restricts it is not what these tests are about."""

    def require(self, program: Any, *, most_examples: int) -> None:
        """Accepts all."""


class Clock:
    """Time passes only where a device waits; notes what was sent by then."""

    def __init__(self, sent: Callable[[], int]) -> None:
        self.now = 100.0
        self.waits: list[tuple[float, int]] = []
        self._sent = sent
        self.let_end = True

    def wait(self, seconds: float, finished: threading.Event) -> None:
        if self.let_end or finished.is_set():
            assert finished.wait(60)
        self.waits.append((seconds, self._sent()))
        self.now += seconds


@pytest.fixture
def worlds(tmp_path: Path, identity: TlsIdentity, platform: EmulatedPlatform) -> Iterator[Callable[..., World]]:
    """Worlds with a program; one for each test."""
    generator = np.random.default_rng(1)
    columns = {
        "x": generator.normal(size=(6, FEATURES)).astype(np.float32),
        "kind": generator.integers(0, CLASSES, 6),
    }
    with contextlib.ExitStack() as stack:

        def world(program: Program | None = None) -> World:
            made = World(tmp_path, identity, platform, NetworkTask(program))  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        provision(tmp_path / "devices-state", odp.data.ExampleColumns(columns, np.arange(6), np.array([0, 6, 6])))
        yield world


@pytest.fixture
def network(worlds: Callable[..., World]) -> World:
    return worlds()


@pytest.fixture
def processes() -> Iterator[ComputingProcesses]:
    with contextlib.closing(ComputingProcesses()) as made:
        yield made


def work_of(world: World) -> Work:
    assert world.server.assignment is not None
    return open_assignment(world.server.assignment, population="people", trainer=Trainer())


def times_of(clock: Clock) -> FixedTimes:
    return impatient_times(wait=clock.wait, monotonic=lambda: clock.now)


def take_part(world: World, device: int, processes: ComputingProcesses, fixed_times: FixedTimes) -> Outcome:
    participant = dataclasses.replace(world.participant(), fixed_times=fixed_times, processes=processes)
    with world.store(device) as store:
        return participant.take_part(store, work_of(world), Traffic())


@pytest.mark.parametrize(
    ("device", "make", "empty"),
    [
        (TRAINED, stored, False),
        (TRAINED, lambda: hostile.crashing(stored()), True),
        (WITHOUT_EXAMPLES, stored, True),
    ],
    ids=["trains", "crashes", "without examples"],
)
@pytest.mark.slow
def test_a_device_sends_at_the_same_time_whatever_its_training_did(
    worlds: Callable[..., World], processes: ComputingProcesses, device: int, make: Callable[[], Program], empty: bool
) -> None:
    network = worlds(make())
    clock = Clock(lambda: len(network.aggregator.submits))
    assert take_part(network, device, processes, times_of(clock)) is Outcome.SENT
    assert clock.waits == [(SHARE_OF_TIME * SECONDS, 0), ((1 - SHARE_OF_TIME) * SECONDS, 0)]
    (counted,) = network.aggregator.counted.values()
    assert (not any(counted.payload)) is empty
    assert len(counted.payload) == 4 * stored().size


@pytest.mark.parametrize("device", [TRAINED, WITHOUT_EXAMPLES])
@pytest.mark.slow
def test_r457_what_trains_is_ready_before_the_time_of_a_training_whatever_the_device_holds(
    network: World, processes: ComputingProcesses, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start takes longer than a training. Where only rows start it, the first device that has some is late."""
    clock, ready = Clock(lambda: 0), list[bool]()
    fixed_times = times_of(clock)
    begin = FixedTimes.computing

    def computing(times: FixedTimes, terms: ComputingTerms) -> Window:
        (template,) = (
            process for process in psutil.Process().children() if "computing_worker" in "".join(process.cmdline())
        )
        ready.append(bool(template.children(recursive=True)))
        return begin(times, terms)

    monkeypatch.setattr(FixedTimes, "computing", computing)
    assert take_part(network, device, processes, fixed_times) is Outcome.SENT
    assert ready == [True]


_NO_PROGRAM_STARTS = """
from device_runtime.isolated.training import IsolatedTrainer
from odp.errors import StateError
def unable(self):
    raise StateError("a process of the service could not be started")
IsolatedTrainer.process = unable
"""


@pytest.mark.parametrize("device", [TRAINED, WITHOUT_EXAMPLES])
def test_r345_a_program_that_cannot_be_started_does_not_tell_who_has_rows(
    network: World, processes: ComputingProcesses, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing_processes, "_PROGRAM", computing_processes._PROGRAM + _NO_PROGRAM_STARTS)
    clock = Clock(lambda: len(network.aggregator.submits))
    assert take_part(network, device, processes, times_of(clock)) is Outcome.SENT
    assert clock.waits == [(SHARE_OF_TIME * SECONDS, 0), ((1 - SHARE_OF_TIME) * SECONDS, 0)]
    (counted,) = network.aggregator.counted.values()
    assert not any(counted.payload)


def test_a_training_that_does_not_end_gives_the_empty_contribution_at_that_time(
    worlds: Callable[..., World], processes: ComputingProcesses
) -> None:
    network = worlds(hostile.endless(stored()))
    clock = Clock(lambda: len(network.aggregator.submits))
    clock.let_end = False
    assert take_part(network, TRAINED, processes, times_of(clock)) is Outcome.SENT
    assert clock.waits == [(SHARE_OF_TIME * SECONDS, 0), ((1 - SHARE_OF_TIME) * SECONDS, 0)]
    (counted,) = network.aggregator.counted.values()
    assert not any(counted.payload)


@pytest.mark.parametrize("make", [stored, lambda: hostile.crashing(stored())], ids=["trains", "crashes"])
@pytest.mark.slow
def test_a_device_of_a_session_trains_before_it_has_a_seat(
    tmp_path: Path, platform: EmulatedPlatform, processes: ComputingProcesses, make: Callable[[], Program]
) -> None:
    """In a session others wait for each message, so the program trains before the first, for the fixed time."""
    developer = SigningKey.generate()
    signed = sign_task(NetworkTask(make(), minimum=6, goal=8, aggregation="secagg+").definition(), developer)
    algorithm = algorithm_for(open_task(signed))
    broadcast = algorithm.server().broadcast(algorithm.server().start())
    model = open_model(signed, sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer))

    work, query = Work(model, 0, "127.0.0.1:1", "127.0.0.1:1"), algorithm.query(0)
    assert isinstance(query, DenseQuery)
    config = secagg_config(
        model.definition, query=query, task_sha256=model.task_sha256, round=0, model_sha256=model.model_sha256,
        attempt=0,
    )  # fmt: skip
    clock = Clock(lambda: 0)
    real = Participant(
        services=cast("Any", SimpleNamespace(catalogue_steps=None)), enclaves=cast("Any", None),
        gate=Gate(limits=Limits(min_cohort=6)),
        fixed_times=times_of(clock), processes=processes,
    )  # fmt: skip
    enclave = SimpleNamespace(policy=SimpleNamespace(sha256=bytes(32)), image_digest="sha384:00")
    slices = Slices(0, NO_KEYS, np.zeros((0, 0), dtype=np.float32), dict(broadcast.dense))
    participant: Any = SimpleNamespace(
        gate=real.gate, admitted=lambda store, work: (), tokens=SimpleNamespace(session_token=lambda *_: b""),
        verified_aggregator=lambda work, logged: SimpleNamespace(enclave=enclave), recorded=lambda *_: b"",
        verified_distributor=lambda work, logged: None, model_for=lambda *_: (slices, None),
        pipeline=SimpleNamespace(
            before_data=lambda store, work: None, contributing=real.pipeline.contributing, alone=real.pipeline.alone
        ),
    )  # fmt: skip
    path = tmp_path / "0.sqlite"
    with Store.open_or_create(path) as store:
        columns = {"x": np.ones((2, FEATURES), dtype=np.float32), "kind": np.array([0, 1])}
        store.fill_examples(columns, filled_from=b"data", time=0.0)
    seat = Seat(
        Session(work, Configuration.open(config), query, None), participant, lambda: Store.open(path),
        population="people", noise=OperatingSystemNoise(),
    )  # fmt: skip
    request = seat.sit_down(Traffic())
    assert request is not None
    assert request.WhichOneof("message") == "advert"
    assert sum(seconds for seconds, _ in clock.waits) == SECONDS
    assert seat._made is not None
    assert seat._vector(seat._made).any()


def test_a_person_sees_the_columns_that_a_program_of_the_developer_reads(
    network: World, processes: ComputingProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    assert take_part(network, TRAINED, processes, times_of(Clock(lambda: 0))) is Outcome.SENT
    with network.store(TRAINED) as store:
        found = overview(store, Gate(), now=0.0)
    (read,) = found["read"]
    assert (read["columns"], read["program"]) == (["x", "kind"], True)
    assert (read["epsilon"], read["delta"]) == (4.0, 1e-6)
    shown = _read(found)
    person._show(TRAINED, found)
    written = capsys.readouterr()
    printed = " ".join((written.out + written.err).split())
    for text in (shown, printed):
        assert "x, kind" in text
        assert "a program of the developer" in text
        assert "ε 4 at δ 1e-06" in text

"""What one person holds changes no contribution of the other people whose devices share a host.

The noise covers one contribution. If one person's rows could make others' contributions empty, they would move the sum
by more than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
from fixed_times import impatient_times

import odp
from device_runtime.round import computing_places, computing_processes
from device_runtime.round.computations import RoundComputation
from device_runtime.round.computing_places import PROCESS_BYTES, processes_of_machine
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.contribution import Contributing, There
from device_runtime.round.fixed_times import FixedTimes, Window
from device_runtime.store.store import Store
from device_runtime.tasks.computing_terms import ComputingTerms, Place
from odp.algorithms.computing_time import SAFETY, SHARE_OF_TIME
from odp.algorithms.registry import algorithm_for
from odp.errors import NotNow
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

#: The developer of a network states few operations, whatever it computes.
NETWORK = ComputingTerms(seconds=0.6, keys_seconds=0.0, worst_seconds=0.001, worst_bytes=0.0, place=Place.PROCESS)
PROCESS = dataclasses.replace(NETWORK, keys_seconds=0.1)
HERE = dataclasses.replace(NETWORK, place=Place.HERE)
EMPTY, PAYLOAD = b"nothing", b"payload"
SLICES = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})


class Computer:
    """Computes what a test likes; counts the computations that hold what they use."""

    def __init__(self, act: Callable[[], object], living: Living | None = None) -> None:
        self._act, self._living = act, living or Living()
        self._began = False

    def reserved(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def keys(self, window: Window) -> Int64Array:
        self._begin()
        return np.array([3], dtype=np.int64)

    def contribution(self, slices: Slices | None, window: Window) -> tuple[bytes, bytes | None]:
        self._begin()
        self._act()
        return PAYLOAD, None

    def end(self) -> None:
        if self._began:
            self._began = False
            self._living.change(-1)

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self._living.change(1)


class Living:
    """The computations that go on, and the most there were."""

    def __init__(self) -> None:
        self._lock, self._now, self.most = threading.Lock(), 0, 0

    def change(self, by: int) -> None:
        with self._lock:
            self._now += by
            self.most = max(self.most, self._now)


def contributions(
    shared: FixedTimes, terms: ComputingTerms, computers: list[Computer], *, keyed: bool = False
) -> list[bytes]:
    """What the devices of one host send, side by side."""

    def contribution(computer: Computer) -> bytes:
        with (
            shared.active,
            Contributing(shared, terms, computer, keyed=keyed, check=lambda payload: None, empty=EMPTY) as made,
        ):
            if keyed:
                made.keys()
            return made.contribution(None).payload

    with futures.ThreadPoolExecutor(len(computers)) as pool:
        return list(pool.map(contribution, computers))


def test_r387_a_training_that_takes_all_of_its_time_empties_no_contribution_of_the_others_of_its_host() -> None:
    """In real time. One lock for all trainings, which begin a few milliseconds apart, empties most of them."""
    devices = [Computer(lambda takes=takes: time.sleep(takes)) for takes in (2.0, *[0.02] * 4)]  # type: ignore[misc]
    shared = FixedTimes(speed=lambda: 1.0, processors=2, processes=2)
    assert contributions(shared, NETWORK, devices).count(PAYLOAD) == 4


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_r387_computations_in_place_end_in_time_where_all_devices_are_at_their_worst_case(speed: float) -> None:
    """Two hundred devices that come at once, in simulated time, on one processor that their threads share fairly."""
    terms = ComputingTerms(
        seconds=0.25, keys_seconds=0.0, worst_seconds=0.25 / SAFETY, worst_bytes=2**20, place=Place.HERE
    )
    host = FixedTimes(monotonic=lambda: 0.0, speed=lambda: speed)
    windows = [host.computing(terms) for _ in range(200)]
    ends = shared_processor([window._begin for window in windows], speed * terms.worst_seconds / SHARE_OF_TIME)
    late = [number for number, window in enumerate(windows) if ends[number] > window._computed_at + 1e-9]
    assert late == []


def shared_processor(begins: list[float], seconds: float) -> list[float]:
    """When jobs of so many ``seconds`` end that begin then, on a processor that goes from one to the next."""
    left = dict.fromkeys(range(len(begins)), seconds)
    ends, now = [0.0] * len(begins), 0.0
    while left:
        active = [number for number in left if begins[number] <= now + 1e-12]
        coming = min((begins[number] for number in left if number not in active), default=np.inf)
        if not active:
            now = coming
            continue
        step = min(min(left[number] for number in active) * len(active), coming - now)
        now += step
        for number in active:
            left[number] -= step / len(active)
            if left[number] <= 1e-12:
                ends[number] = now
                del left[number]
    return ends


def test_r387_few_computations_in_place_use_memory_at_a_time() -> None:
    terms = ComputingTerms(seconds=0.25, keys_seconds=0.0, worst_seconds=1e-3, worst_bytes=2**26, place=Place.HERE)
    host = FixedTimes(monotonic=lambda: 0.0, speed=lambda: 0.0)
    windows = [host.computing(terms) for _ in range(20)]
    open_windows = [sum(other._begin <= one._begin < other._computed_at - 1e-9 for other in windows) for one in windows]
    assert max(open_windows) * terms.worst_bytes <= 2**29


def test_r388_a_device_holds_its_place_from_its_keys_to_the_end_of_its_contribution() -> None:
    """Its process keeps its rows in between. Without places, all six live at a time."""
    living = Living()
    devices = [Computer(lambda: time.sleep(0.05), living) for _ in range(6)]
    shared = impatient_times(processors=2, processes=2)
    assert contributions(shared, PROCESS, devices, keyed=True) == [PAYLOAD] * 6
    assert living.most == 2


@pytest.mark.parametrize(
    ("processors", "memory", "container", "places"),
    [(4, 100, "max\n", 4), (64, 10, "max\n", 10), (64, 100, f"{3 * PROCESS_BYTES}\n", 3), (4, 0, "max\n", 1)],
)
def test_r388_processes_that_compute_at_a_time_fit_the_processors_and_the_memory_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processors: int, memory: int, container: str, places: int
) -> None:
    sizes = {"SC_PHYS_PAGES": memory, "SC_PAGE_SIZE": PROCESS_BYTES}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)))
    monkeypatch.setattr(computing_places, "_CONTAINER_BYTES", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text(container)
    assert processes_of_machine() == places


def test_r455_computations_of_several_tasks_use_no_more_processors_than_the_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server offers devices of one host several tasks. Those in place need most of one processor, and get 2/3 of it
    where two processes compute on two: the later ones of many would be late, and empty.
    """
    monkeypatch.setattr(computing_places, "LOOK_SECONDS", 1e-3)
    stop = threading.Event()
    shared = FixedTimes(processors=2, processes=2, speed=lambda: 0.0, stop=stop)

    def waits(*places: ComputingTerms) -> None:
        """A device of each would wait, until its host stops."""
        stop.set()
        for terms in places:
            with pytest.raises(NotNow), shared.place(terms):
                pytest.fail("it computes")
        stop.clear()

    with shared.place(HERE), shared.place(HERE), shared.place(PROCESS):
        waits(PROCESS)
    with shared.place(PROCESS), shared.place(PROCESS):
        waits(HERE, PROCESS)


def test_r455_computations_in_place_that_follow_one_another_keep_no_process_from_beginning() -> None:
    shared = FixedTimes(processors=1, processes=1, speed=lambda: 0.0)
    begun = threading.Event()

    def process() -> None:
        with shared.place(PROCESS):
            begun.set()

    thread = threading.Thread(target=process)
    with shared.place(HERE):
        thread.start()
        for _ in range(60_000):
            if shared._processors._waiting:
                break
            time.sleep(1e-3)
        assert not shared._processors.take(Place.HERE, lambda: True), "one that comes later joins"
        assert not begun.is_set()
    assert begun.wait(60)
    thread.join()


def test_a_device_that_waits_for_a_place_has_not_begun_where_its_host_stops() -> None:
    stop = threading.Event()
    shared = FixedTimes(processes=1, speed=lambda: 0.0, stop=stop)
    stop.set()
    with (
        shared.place(PROCESS),
        Contributing(shared, PROCESS, Computer(pytest.fail), keyed=False, check=lambda _: None, empty=EMPTY) as made,
        pytest.raises(NotNow, match="this host stops"),
    ):
        made.contribution(None)
    with shared.place(PROCESS):
        """It is free again."""


# Several tasks


class FakeTemplate:
    """Of a task, whose processes end with it."""

    def __init__(self, definition: bytes, catalogue: object, *, seconds: float) -> None:
        self.ended = False

    def fork(self) -> FakeTemplate:
        return self

    def close(self) -> None:
        self.ended = True


def test_r456_tasks_that_come_meanwhile_end_no_process_of_a_device_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server offers the devices of a host four tasks in turn; templates of two are kept. Each contribution whose
    process ended would be empty, and charged.
    """
    monkeypatch.setattr(computing_processes, "Template", FakeTemplate)
    processes = ComputingProcesses()
    forks = []
    for again in range(2):
        with contextlib.ExitStack() as computing:
            for number in range(4):
                of_task = processes.of(common_pb2.TaskDefinition(name=f"task-{number}"), (), seconds=1.0)
                computing.enter_context(of_task.reserved())
                forks.append(of_task.fork())
            assert not any(fork.ended for fork in forks[4 * again :])  # type: ignore[attr-defined]
    with processes.of(common_pb2.TaskDefinition(name="task-0"), (), seconds=1.0).reserved():
        assert sum(not template.ended for template in {*forks[4:]}) <= 2, "what is kept stays bounded"  # type: ignore[attr-defined]
    processes.close()


# A machine that has no process left


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(tmp_path / "0.sqlite", durable=False) as store:
        store.fill(np.arange(3), np.ones(3), filled_from=b"data")
        yield store


_SECOND_FORK_FAILS = """
import errno, os
forks, fork = iter((True, False, True)), os.fork
def limited():
    if not next(forks):
        raise BlockingIOError(errno.EAGAIN, "no process left")
    return fork()
os.fork = limited
"""


@pytest.mark.processes
def test_r389_a_fork_that_fails_ends_no_process_of_the_other_devices(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing_processes, "_PROGRAM", computing_processes._PROGRAM + _SECOND_FORK_FAILS)
    definition = odp.Statistics(
        name="films", queries={"items": odp.Histogram(bins=8)}, privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        cohort=odp.Cohort(minimum=2, goal=3), population="people",
    ).definition()  # fmt: skip
    algorithm, processes = algorithm_for(definition), ComputingProcesses()
    try:
        of_task = processes.of(definition, (), seconds=60.0)
        computation = RoundComputation(
            definition=definition, client=algorithm.client(), round=0, seed=7, now=0.0, keyed=False
        )
        devices = [
            There(store, computation, of_task, most_keys=0, payload_bytes=algorithm.query(0).payload_bytes)
            for _ in range(3)
        ]
        with of_task.reserved():
            """Their template is there."""
        devices[0]._process = devices[0]._begun(impatient_times().lasting(60.0))
        with pytest.raises(OSError, match="no process left"):
            devices[1].contribution(SLICES, impatient_times().lasting(60.0))
        for device in (devices[2], devices[0]):
            assert device.contribution(SLICES, impatient_times().lasting(60.0))
        for device in devices:
            device.end()
    finally:
        processes.close()

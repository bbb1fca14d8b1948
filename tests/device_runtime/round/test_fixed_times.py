"""What reads a person's data gets one time, on every device and whatever it does, in a thread or in a process.

Where real time is the promise, it is bounded below by the fixed time, and above by enough for a busy machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fixed_times import impatient_times

import odp
from device_runtime.round.admission import Admission
from device_runtime.round.computations import OwnData, RoundComputation
from device_runtime.round.computing_places import PROCESS_BYTES
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.contribution import ComputedPayload, Contributing, Here, There
from device_runtime.round.fixed_times import FixedTimes, Window
from device_runtime.round.pipeline import Pipeline
from device_runtime.store import database
from device_runtime.store.reader import beside
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.computing_terms import ComputingTerms, Place
from odp.algorithms.computing_time import machine_speed
from odp.algorithms.registry import algorithm_for
from odp.errors import PrivacyError, StateError, StoreUnreachable
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

QUICK = ComputingTerms(seconds=0.25, keys_seconds=0.25, worst_seconds=0.001, worst_bytes=0.0, place=Place.HERE)
EMPTY, ANSWER = b"nothing", b"payload"


class Computer:
    """Computes what a test likes."""

    def __init__(self, act: Callable[[Window], bytes]) -> None:
        self._act, self.ended = act, 0

    def reserved(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def keys(self, window: Window) -> Any:
        self._act(window)
        return np.array([3], dtype=np.int64)

    def contribution(self, slices: Slices | None, window: Window) -> tuple[bytes, bytes | None]:
        return self._act(window), b"own"

    def end(self) -> None:
        self.ended += 1


def contributing(fixed_times: FixedTimes, act: Callable[[Window], bytes], *, keyed: bool = False) -> Contributing:
    return Contributing(fixed_times, QUICK, Computer(act), keyed=keyed, check=lambda payload: None, empty=EMPTY)


def fails(window: Window) -> bytes:
    raise ValueError("a row of the person")


def eats(window: Window) -> bytes:
    raise MemoryError


@pytest.mark.parametrize(
    ("act", "payload"),
    [(lambda window: ANSWER, ANSWER), (fails, EMPTY), (eats, EMPTY), (lambda window: _late(window), EMPTY)],
    ids=["at once", "fails", "eats memory", "late"],
)
def test_r345_a_contribution_leaves_at_its_time_whatever_its_computation_did(
    act: Callable[[Window], bytes], payload: bytes
) -> None:
    made = contributing(FixedTimes(speed=lambda: 0.0), act)
    began = time.monotonic()
    found = made.contribution(None)
    assert time.monotonic() - began >= 0.75 * QUICK.seconds
    assert (found.payload, found.local_parameters) == (payload, b"own" if payload == ANSWER else None)
    made.leave()
    assert QUICK.seconds <= time.monotonic() - began < 30


def _late(window: Window) -> bytes:
    time.sleep(window.seconds_left + 0.2)
    return ANSWER


def test_r345_what_the_enclave_would_refuse_is_the_empty_contribution() -> None:
    """Its refusal would tell the host of the enclave something of the data."""

    def refuses(payload: bytes) -> None:
        raise ValueError("a number out of range")

    made = Contributing(
        impatient_times(), QUICK, Computer(lambda window: ANSWER), keyed=False, check=refuses, empty=EMPTY
    ).contribution(None)
    assert made == ComputedPayload(EMPTY, None)


def test_r345_keys_leave_at_their_time_and_a_device_that_could_not_read_asks_for_none() -> None:
    for act, wanted in ((lambda window: ANSWER, [3]), (fails, [])):
        made = contributing(FixedTimes(speed=lambda: 0.0), act, keyed=True)
        began = time.monotonic()
        assert made.keys().tolist() == wanted
        assert time.monotonic() - began >= QUICK.keys_seconds
        assert made.contribution(None).payload == (ANSWER if wanted else EMPTY)


def test_r345_a_store_that_cannot_be_read_is_an_error_and_not_before_its_time() -> None:
    def damaged(window: Window) -> bytes:
        raise StateError("the disk")

    made = contributing(FixedTimes(speed=lambda: 0.0), damaged)
    began = time.monotonic()
    with pytest.raises(StateError, match="the disk"):
        made.contribution(None)
    assert time.monotonic() - began >= 0.75 * QUICK.seconds


def test_r450_rows_that_another_program_holds_are_the_empty_contribution(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For how long an app's own writing holds the store follows from the data."""
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.01)

    class Ratings:
        definition = None

        def read(self, reader: Store) -> OwnData:
            reader.ratings()
            raise AssertionError("the store is held")

    computer = Here(store, cast("Any", Ratings()))
    made = Contributing(
        FixedTimes(speed=lambda: 0.0), QUICK, computer, keyed=False, check=lambda payload: None, empty=EMPTY
    )  # fmt: skip
    with beside(store.path, store.key) as holder:
        holder._connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnreachable, match="locked"):
            computer.keys(made._fixed_times.lasting(1.0))
        assert made.contribution(None).payload == EMPTY
        holder._connection.execute("ROLLBACK")


def test_r346_devices_of_one_host_wait_side_by_side_and_work_a_few_at_a_time() -> None:
    """Twenty devices: one after another they would take twenty times their time."""
    fixed_times, working, most = FixedTimes(threads=1, speed=lambda: 0.0), [0], [0]
    lock = threading.Lock()

    def computed(window: Window) -> bytes:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        time.sleep(1e-3)
        with lock:
            working[0] -= 1
        return ANSWER

    def take_part(_: int) -> bytes:
        with fixed_times.active:
            made = contributing(fixed_times, computed)
            found = made.contribution(None).payload
            made.leave()
        return found

    began = time.monotonic()
    with futures.ThreadPoolExecutor(20) as pool:
        assert list(pool.map(take_part, range(20))) == [ANSWER] * 20
    assert time.monotonic() - began < 20 * QUICK.seconds / 2
    assert most[0] <= 8


def test_r346_what_one_device_holds_moves_no_begin_of_another() -> None:
    """In simulated time: begins are apart by the worst case alone, and due times follow from begins."""

    def begins(seconds: float) -> list[tuple[float, float]]:
        now, release = [0.0], threading.Event()
        slept: list[tuple[float, float]] = []

        def wait(wanted: float, finished: threading.Event) -> None:
            slept.append((round(now[0], 9), round(wanted, 9)))

        fixed_times = FixedTimes(wait=wait, monotonic=lambda: now[0], speed=lambda: 0.0)
        try:
            for _ in range(4):
                made = contributing(fixed_times, lambda window: release.wait(60) and ANSWER if seconds else ANSWER)
                made.contribution(None)
                made.leave()
        finally:
            release.set()
        return slept

    assert begins(0.0) == begins(60.0)


def test_an_active_thread_gives_its_place_away_while_it_waits_and_takes_it_again() -> None:
    fixed_times = FixedTimes(threads=1, speed=lambda: 0.0)
    order: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def waits(seconds: float, finished: threading.Event) -> None:
        inside.set()
        assert go_on.wait(60)

    fixed_times._wait = waits

    def first() -> None:
        with fixed_times.active:
            fixed_times.sleep(1.0)
            order.append("first again")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    with fixed_times.active:
        order.append("second")
        go_on.set()
        time.sleep(0.05)
        order.append("second still")
    thread.join(60)
    assert order == ["second", "second still", "first again"]


# Processes


def task(**changes: Any) -> common_pb2.TaskDefinition:
    found: common_pb2.TaskDefinition = odp.Statistics(
        name="films", queries={"items": odp.Histogram(bins=8)}, privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        cohort=odp.Cohort(minimum=2, goal=3), population="people",
    ).definition()  # fmt: skip
    for name, value in changes.items():
        setattr(found, name, value)
    return found


@pytest.fixture(scope="module")
def processes() -> Iterator[ComputingProcesses]:
    found = ComputingProcesses()
    yield found
    found.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(tmp_path / "0.sqlite", durable=False) as store:
        store.fill(np.arange(3), np.ones(3), filled_from=b"data")
        yield store


def there(processes: ComputingProcesses, store: Store, *, length: int | None = None) -> There:
    definition = task()
    algorithm = algorithm_for(definition)
    of_task = processes.of(definition, (), seconds=60.0)
    computation = RoundComputation(
        definition=definition, client=algorithm.client(), round=0, seed=7, now=0.0, keyed=False
    )
    size = algorithm.query(0).payload_bytes if length is None else length
    computer = There(store, computation, of_task, most_keys=0, payload_bytes=size)
    with computer.reserved():
        return computer  # its template stays, as no other task needs one


SLICES = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})


def computed(computer: There, seconds: float = 30.0) -> tuple[bytes, bytes | None] | None:
    window = impatient_times().lasting(seconds)
    return window.compute(lambda: computer.contribution(SLICES, window))


@pytest.mark.processes
def test_a_process_computes_what_this_one_would(processes: ComputingProcesses, store: Store) -> None:
    client = algorithm_for(task()).client()
    own = algorithm_for(task()).data_of(store.ratings())
    computer = there(processes, store)
    assert computed(computer) == client.contribute(SLICES, own, round=0, seed=7)
    computer.end()


@pytest.mark.processes
def test_an_answer_of_another_length_is_none(processes: ComputingProcesses, store: Store) -> None:
    computer = there(processes, store, length=5)
    assert computed(computer) is None
    computer.end()


def _number(computer: There) -> int:
    assert computer._process is not None
    return computer._process._number


def _ended(number: int) -> bool:
    for _ in range(300):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.processes
@pytest.mark.parametrize("reading", [False, True])
def test_r347_a_process_that_does_not_end_is_killed_at_its_time(store: Store, reading: bool, tmp_path: Path) -> None:
    """It hangs in the computation, or in reading: the store is a pipe that nobody writes to."""
    slow = ComputingProcesses()
    try:
        computer = there(slow, store)
        if reading:
            os.mkfifo(tmp_path / "pipe")
            computer._path = tmp_path / "pipe"
        window = FixedTimes(speed=lambda: 0.0).lasting(0.5)

        def hang() -> tuple[bytes, bytes | None]:
            if reading:
                return computer.contribution(SLICES, window)
            process = computer._begun(window)
            return process._answer(window, most=10), None  # it waits for its slices, which never come

        assert window.compute(cast("Any", hang)) is None
        number = _number(computer)
        computer.end()
        assert _ended(number)
    finally:
        slow.close()


@pytest.mark.processes
def test_r347_a_process_has_a_limit_of_memory_and_its_device_sends_the_empty_contribution(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below what its template has: whatever was freed there, the rows need new memory, and there is none.
    monkeypatch.setattr("device_runtime.round.computing_processes.PROCESS_BYTES", -(2**26))
    small = ComputingProcesses()
    try:
        store.execute_many("INSERT INTO ratings (item, value) VALUES (?, 1.0)", [(item,) for item in range(10, 30_000)])
        computer = there(small, store)
        made = Contributing(
            impatient_times(), QUICK, computer, keyed=False, check=lambda payload: None, empty=EMPTY
        ).contribution(SLICES)
        assert made == ComputedPayload(EMPTY, None)
        assert _ended(_number(computer))
    finally:
        small.close()


@pytest.mark.processes
def test_r347_a_process_has_no_descriptor_of_the_host_and_ends_with_it(
    processes: ComputingProcesses, store: Store
) -> None:
    computer = there(processes, store)
    window = impatient_times().lasting(30.0)
    process = computer._begun(window)
    folder = Path(f"/proc/{process._number}/fd")
    for _ in range(300):
        links = [str(one.readlink()) for one in folder.iterdir() if one.is_symlink()]
        sockets = [link for link in links if link.startswith("socket:")]
        if len(sockets) == 1:
            break
        time.sleep(0.02)
    kinds = [link for link in links if not link.startswith(("socket:", "/dev/null")) and "sqlite" not in link]
    assert (len(sockets), kinds) == (1, []), "its channel, the store, and nothing"
    template = computer._processes._template
    assert template is not None
    assert template._process.poll() is None
    other = ComputingProcesses()
    ends_with = there(other, store)
    number = ends_with._begun(window)._number
    other.close()
    assert _ended(number)
    computer.end()


@pytest.mark.processes
def test_r347_what_may_take_long_or_much_memory_computes_in_a_process_and_not_in_its_host(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = odp.Events(service="films", type="seen", item="film", most_events=100_000)
    small, slow, large = (
        odp.Statistics(
            name="films", queries={"items": query}, privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
            cohort=odp.Cohort(minimum=2, goal=3), population="people",
        ).definition()
        for query in (odp.Histogram(bins=8), odp.Histogram(bins=8, events=events), odp.Histogram(bins=2**21))
    )  # fmt: skip
    terms = [ComputingTerms.of(definition) for definition in (small, slow, large)]
    assert [each.place for each in terms] == [Place.HERE, Place.PROCESS, Place.PROCESS]
    store.data("films").add_event("seen", {"film": 3}, time=0.0)
    monkeypatch.setattr(RoundComputation, "read", lambda *_: pytest.fail("the host itself read the rows"))
    algorithm = algorithm_for(slow)
    client = algorithm.client()
    model = SimpleNamespace(
        definition=slow, client=client, keyed=False, rows_per_request=0, queries=[algorithm.query(0)]
    )
    work = cast("Any", SimpleNamespace(definition=slow, model=model, round=0, computing=terms[1]))
    shared = pipeline(store, impatient_times())
    try:
        with shared.contributing(store, work, seed=7) as made:
            assert made.contribution(SLICES).payload != client.empty(0)
    finally:
        shared.processes.close()


# Before data are read


def pipeline(store: Store, fixed_times: FixedTimes) -> Pipeline:
    services: Any = SimpleNamespace()
    return Pipeline(
        admission=Admission(services), catalogues=CatalogueMemory(None, lambda *_: []), fixed_times=fixed_times,
        gate=cast("Any", SimpleNamespace(task=lambda *_: None)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("speed", "terms", "reason"),
    [
        (1e9, QUICK, "too slow"),
        (0.0, dataclasses.replace(QUICK, place=Place.PROCESS, worst_bytes=2.0 * PROCESS_BYTES), "memory"),
    ],
)
def test_r348_a_device_that_cannot_compute_a_task_declines_it_before_it_reads_data(
    store: Store, monkeypatch: pytest.MonkeyPatch, speed: float, terms: ComputingTerms, reason: str
) -> None:
    definition = task()
    declined: list[Any] = []
    monkeypatch.setattr(Store, "declined", lambda self, *given, **_: declined.append(given))
    work = cast(
        "Work",
        SimpleNamespace(definition=definition, computing=terms, terms=None, signed_task=None, charter=None, log=None),
    )
    with pytest.raises(PrivacyError, match=reason):
        pipeline(store, FixedTimes(speed=lambda: speed)).admitted(store, work, 0)
    assert len(declined) == 1


def test_r348_the_door_of_a_host_measures_the_machine(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference computation, where nobody says how fast it is."""
    measured: list[float] = []
    monkeypatch.setattr(machine_speed, "_measure", lambda: measured.append(1e9) or 1e9)
    monkeypatch.setattr(machine_speed, "_best", math.inf)
    monkeypatch.setattr(machine_speed, "_left", 2)
    with pytest.raises(PrivacyError, match="too slow"):
        FixedTimes().require(task(), QUICK)
    assert len(measured) == 2


@pytest.mark.slow
def test_r345_a_reader_is_gone_before_the_contribution_is_stored(store: Store) -> None:
    """Its lock would hold up the transaction, for as long as the data take to be read. In real time."""

    class Endless:
        definition = None

        def read(self, reader: Store) -> Any:
            reader.all(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000) "
                "SELECT count(*) FROM numbers, ratings"
            )

        def compute(self, own: Any, slices: Any) -> Any:
            raise NotImplementedError

    terms = dataclasses.replace(QUICK, seconds=8.0)
    fixed_times = FixedTimes(speed=lambda: 0.0)
    window = fixed_times.computing(terms)
    began = time.monotonic()
    computer = Here(store, cast("Any", Endless()))
    with pytest.raises(TimeoutError):
        computer.contribution(None, window)
    assert time.monotonic() - began < 0.75 * terms.seconds
    with store.transaction():
        store.execute("INSERT INTO ratings (item, value) VALUES (99, 1.0)")
    assert time.monotonic() - began < 0.75 * terms.seconds


def test_r345_reading_ends_when_its_time_is_over(store: Store) -> None:
    """A query that would take minutes, of a store that is open elsewhere."""
    end = time.monotonic() + 0.2
    with beside(store.path, store.key, over=lambda: time.monotonic() > end) as reader, pytest.raises(TimeoutError):
        reader.all(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000) "
            "SELECT count(*) FROM numbers"
        )
    assert time.monotonic() < end + 20
    assert len(store.ratings().items) == 3

"""A host that brings back old state, forks the enclave, charges at once or moves the clock (R15 to R20).

It keeps every version of everything that it ever stored, and starts the enclave from any mixture.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from odp.errors import OdpError, PrivacyError, StateError
from odp.v1 import common_pb2

Make = Callable[..., Any]


class Snapshots:
    """A round that was run to its end, and what the host had stored after each step."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.taken: dict[str, tuple[dict[str, bytes], dict[Any, list[bytes]]]] = {}
        self.take("before the round")
        world.open()
        self.take("opened")
        world.fill(range(3))
        self.take("three contributions")
        world.fill(range(3, 5))
        self.take("five contributions")
        world.persist(world.charge().writes)
        self.take("charge stored")
        world.core.commit()
        self.take("charged")
        world.persist(world.seal_release())
        self.take("release stored")
        world.core.commit()
        self.release = world.release()
        world.rows.clear()
        self.take("released")

    def take(self, name: str) -> None:
        rows = {key: list(held) for key, held in self.world.rows.items()}
        self.taken[name] = (dict(self.world.records), rows)


@pytest.fixture(scope="module")
def snapshots(make_world: Make) -> Snapshots:
    return Snapshots(make_world(minimum=3))


def _try_all(world: Any) -> list[bytes]:
    """Every release that a host gets out of an enclave by opening, filling and closing again."""
    got = []
    steps: list[Callable[[], object]] = [
        world.open,
        lambda: world.fill(range(10, 14)),
        lambda: world.settle(world.charge().writes),
        lambda: got.append(world.finish()),
    ]
    for step in steps:
        try:
            step()
        except (OdpError, AssertionError):  # a contribution that is refused
            continue
    return got


_NAMES = (
    "before the round", "opened", "three contributions", "five contributions", "charge stored", "charged",
    "release stored", "released",
)  # fmt: skip


@pytest.mark.parametrize(("records", "rows"), list(itertools.product(_NAMES, _NAMES)))
def test_r19_no_mixture_of_stored_states_gives_a_second_release_or_a_second_budget(
    snapshots: Snapshots, records: str, rows: str
) -> None:
    world = snapshots.world
    world.records = dict(snapshots.taken[records][0])
    world.rows = {key: list(held) for key, held in snapshots.taken[rows][1].items()}
    try:
        world.restart()
    except StateError:
        return
    assert set(_try_all(world)) <= {snapshots.release}


@pytest.mark.parametrize("missing", ["task/", "population/", "release/"])
def test_r19_a_record_that_is_gone_gives_no_second_release(snapshots: Snapshots, missing: str) -> None:
    world = snapshots.world
    everything, _ = snapshots.taken["released"]
    assert any(key.startswith(missing) for key in everything)
    world.records = {key: data for key, data in everything.items() if not key.startswith(missing)}
    world.rows = {}
    try:
        world.restart()
    except StateError:
        return
    assert set(_try_all(world)) <= {snapshots.release}


def _restart_and_read_the_release(world: Any) -> None:
    world.restart()
    world.release()


@pytest.mark.parametrize("name", ["opened", "charged", "released"])
def test_r22_no_flipped_byte_of_any_sealed_record_is_believed(snapshots: Snapshots, name: str) -> None:
    world = snapshots.world
    records, rows = snapshots.taken[name]
    for key, data in records.items():
        for place in {0, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[place] ^= 1
            world.rows = {key: list(held) for key, held in rows.items()}
            world.records = {**records, key: bytes(changed)}
            with pytest.raises(StateError):
                _restart_and_read_the_release(world)


def test_r19_forks_of_one_snapshot_that_charge_at_once_release_once(make_world: Make) -> None:
    first = make_world(minimum=3)
    first.open()
    first.fill(range(3))
    forks = [first]
    for number in range(3):
        fork = make_world(minimum=3)
        for name in (
            "population",
            "developer",
            "task",
            "task_sha256",
            "broadcasts",
            "sealed_keys",
            "platform",
            "policy",
        ):
            setattr(fork, name, getattr(first, name))
        fork.records, fork.rows = dict(first.records), {key: list(held) for key, held in first.rows.items()}
        fork.restart()
        fork.fill([20 + number])  # another set of contributions, under the same noise
        forks.append(fork)
    start = threading.Barrier(len(forks))
    released: list[bytes] = []
    refused: list[OdpError] = []

    def close(world: Any) -> None:
        start.wait()
        try:
            released.append(world.close())
        except OdpError as error:
            refused.append(error)

    threads = [threading.Thread(target=close, args=(fork,)) for fork in forks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(released) == 1
    assert len(refused) == 3
    assert all(isinstance(error, (StateError, PrivacyError)) for error in refused)


def test_r17_closing_at_once_charges_once_and_gives_everyone_the_same_bytes(small: Any) -> None:
    small.fill(range(4))
    start = threading.Barrier(8)
    got: list[bytes] = []
    lock = threading.Lock()

    def close() -> None:
        start.wait()
        with lock:  # the host stores the writes in their order, one close at a time
            got.append(small.close())

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(got)) == 1
    assert small.charges() == 1


_OF_THE_ENCLAVE = ("trusted_aggregator", "odp.privacy", "odp.algorithms", "odp.crypto")


@pytest.mark.parametrize("years", [-30, 30])
def test_r20_the_enclave_asks_no_clock_so_moving_it_changes_nothing(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    asked: list[str] = []
    real = time.time()
    own = threading.get_ident()

    def moved(name: str) -> Callable[[], float]:
        def read() -> float:
            # Threads that other tests left behind ask what they like, unless it is for an enclave.
            modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(None)]
            if threading.get_ident() == own or any(one.startswith(_OF_THE_ENCLAVE) for one in modules):
                asked.append(name)
            return real + years * 365.25 * 86400

        return read

    world = make_world(minimum=3)
    for name in ("time", "monotonic"):
        monkeypatch.setattr(time, name, moved(name))
    world.open()
    world.fill(range(3))
    signed = world.close()
    monkeypatch.undo()
    assert asked == []
    world.restart()
    assert world.close() == signed


def test_r24_a_release_is_worth_nothing_for_another_round_task_or_model(small: Any) -> None:
    small.fill(range(3))
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(small.close()).release)
    assert (release.task_sha256, release.round, release.model_sha256) == (small.task_sha256, 0, small.model(0))

"""What a device holds stays there: every byte that the services stored, logged or received is searched for it."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from e2e.killing import DEVICE_HOST, DEVICES, Platform, a_task
from e2e.world import World, small_task
from stores import decrypted

import odp
from device_runtime import Store, store_path
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.datasets import Ratings
from odp.signed.task import open_task, task_sha256
from odp.transport.front import Front, _Method

_PAGE_BYTES = 4096
_HASH_BITS = 24


class _Recorder:
    """Keeps the serialized bytes of every request that any server of this process receives."""

    def __init__(self) -> None:
        self.requests: dict[str, list[bytes]] = {}

    def service(self, front: Front, details: Any) -> Any:
        """As ``Front.service``, of a method that keeps what it parses."""
        name = details.method
        handler = next(filter(None, (each.service(details) for each in front._handlers)), None)
        if handler is None or name in front._methods:
            return front._methods.get(name)
        seen = self.requests.setdefault(name, [])

        def deserialize(data: bytes) -> Any:
            seen.append(data)
            return handler.request_deserializer(data) if handler.request_deserializer else data

        recorded = _Method(handler._replace(request_deserializer=deserialize), front._immediate.get(name))
        return front._methods.setdefault(name, front._handler(name, recorded))


class _Searched:
    """Data in which many byte strings are looked for: one whose first 8 bytes occur nowhere is ruled out at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._heads = np.zeros(2**_HASH_BITS, dtype=bool)
        for offset in range(min(8, max(0, len(data) - 7))):
            words = np.frombuffer(data, "<u8", count=(len(data) - offset) // 8, offset=offset)
            self._heads[self._hash(words)] = True

    def __contains__(self, pattern: bytes) -> bool:
        if len(pattern) >= 8 and not self._heads[self._hash(np.frombuffer(pattern, "<u8", count=1))].any():
            return False
        return pattern in self._data

    @staticmethod
    def _hash(words: np.ndarray) -> np.ndarray:
        """Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4)."""
        return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _HASH_BITS)


@dataclasses.dataclass
class _Secrets:
    """Byte strings that would betray one device, by what they are; each too long to occur by chance."""

    named: dict[str, bytes]

    def found_in(self, data: _Searched) -> list[str]:
        return [name for name, pattern in self.named.items() if pattern in data]


def _planted(ratings: Ratings) -> Ratings:
    """The same data with values that no other number of a run equals: distinct low bits in every mantissa."""
    odd = np.float32(1e-4) * (1 + np.arange(ratings.n_ratings, dtype=np.float32) % 997)
    return dataclasses.replace(
        ratings, values=(ratings.values * np.float32(0.9) + np.float32(0.3) - odd).astype(np.float32)
    )


def _secrets_of(world: World, device: int, status: Any) -> _Secrets:
    definition = open_task(status.task)
    client = algorithm_for(definition).client()
    task = task_sha256(status.task)
    with Store.open(store_path(world.root / "devices", device)) as store:
        identity, data, local = store.identity(), store.ratings(), store.local_parameters(task)
    assert local is not None
    named: dict[str, bytes] = {"device id": identity.device_id, "device secret": identity.secret}
    named["device seed"] = int(identity.seed).to_bytes(8, "little")
    named["pseudonym"] = domains.pseudonym(identity.secret, task)
    for entry in status.rounds:
        named[f"contribution id {entry.round}"] = domains.contribution_id(identity.secret, task, entry.round)
    wanted = client.keys({ROWS: data}, round=0, seed=identity.seed)
    for name, items in (("items", data.items), ("requested items", wanted)):
        for kind in ("<u2", "<u4", ">u4", "<i8"):
            named[f"{name} as {kind}"] = items.astype(kind).tobytes()
        named[f"{name} as text"] = ", ".join(map(str, items)).encode()
        named[f"{name} as dense text"] = ",".join(map(str, items)).encode()
        named[f"{name} as a varint field"] = bytes(items.astype(np.uint8))
    for place in range(len(data.values)):
        value = data.values[place]
        named[f"value {place} as <f8"] = np.array(value, "<f8").tobytes()
        named[f"value {place} as >f8"] = np.array(value, ">f8").tobytes()
        named[f"value {place} as text"] = f"{float(np.float32(value)):.6f}".encode()
    named["values as <f4"] = data.values[:3].astype("<f4").tobytes()
    factors = np.frombuffer(local[1], "<f8")
    assert len(factors) == 1 + definition.model.rank
    assert np.abs(factors).min() > 0, "a zero would be found everywhere"
    for place, factor in enumerate(factors):
        named[f"factor {place} as <f8"] = np.array(factor, "<f8").tobytes()
        named[f"factor {place} as >f8"] = np.array(factor, ">f8").tobytes()
    named["factors as <f4"] = factors.astype("<f4").tobytes()
    counts, _ = client.contribute(_no_slices(), {ROWS: data}, round=0, seed=identity.seed)
    named["payload of the round of counts"] = counts[:24]
    return _Secrets(named)


def _no_slices() -> Any:
    from odp.protocol.wire.model import Slices

    return Slices(0, np.zeros(0, np.int64), np.zeros((0, 3), np.float32), {"globals": np.ones((1, 2), np.float32)})


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> _Recorder:
    recording = _Recorder()
    monkeypatch.setattr(Front, "service", lambda front, details: recording.service(front, details))
    return recording


def test_no_byte_that_services_stored_logged_or_received_holds_a_planted_secret(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, recorder: _Recorder
) -> None:
    planted = _planted(ratings)
    world = World(tmp_path)
    with contextlib.ExitStack() as running:
        world.start(running)
        handle = world.connection.submit(small_task(planted, rank=2, training=odp.DPAM(steps=1)))
        # What is on disk in the middle of a round is searched too: contributions are erased at its end.
        status = world.finish(handle, world.devices(planted))
        stored_live = _files(tmp_path)
    stored = {**stored_live, **{f"{name} (after)": data for name, data in _files(tmp_path).items()}}
    received = {method: b"\0".join(requests) for method, requests in recorder.requests.items()}
    assert len(recorder.requests["/odp.v1.AggregatorService/Submit"]) >= 3 * planted.n_users
    assert len(recorder.requests["/odp.v1.DistributorService/Select"]) >= 2 * planted.n_users
    assert any("aggregator" in name for name in stored)
    assert any("server" in name for name in stored)

    # Items 1, 2, 3, .. are also the page numbers of a database: such a device could not be told from chance.
    searched = [user for user in range(planted.n_users) if np.diff(planted.user(user)[0]).max() > 3][::2]
    assert len(searched) >= 10
    secrets = {device: _secrets_of(world, device, status) for device in searched}
    for place, data in {**stored, **received, "logs": world.logs.getvalue().encode()}.items():
        content = _Searched(data)
        for device in searched:
            assert not secrets[device].found_in(content), f"device {device}: {place}"
    for device in searched:
        # The search itself works: the device's own store holds what nobody else does.
        own = _Searched(decrypted(store_path(world.root / "devices", device)))
        assert {"device secret", "value 0 as >f8", "factor 0 as <f8"} <= set(secrets[device].found_in(own))


def test_contributions_on_the_aggregators_disk_in_the_middle_of_a_round_hold_no_planted_secret(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    planted = _planted(ratings)
    world = World(tmp_path).start(stack)
    task = small_task(planted, rank=2, training=odp.DPAM(steps=1))
    handle = world.connection.submit(task)
    # All but one device: the round of counts stays open, with its contributions on disk.
    fewer = planted.select_users(range(planted.n_users - 1))
    devices = world.devices(fewer)
    try:
        status = handle.status()
        for status in handle.watch(poll_seconds=0.1):
            if status.rounds and status.rounds[-1].contributions == fewer.n_users:
                break
        stored = _files(tmp_path)
    finally:
        devices.stop()
    held = sum(len(data) for name, data in stored.items() if name.startswith("aggregator"))
    assert held > fewer.n_users * 200, "the contributions are on disk"
    for device in range(0, fewer.n_users, 7):
        with Store.open(store_path(world.root / "devices", device)) as store:
            identity, data = store.identity(), store.ratings()
        client = algorithm_for(open_task(status.task)).client()
        payload, _ = client.contribute(_no_slices(), {ROWS: data}, round=0, seed=identity.seed)
        for name, content in stored.items():
            assert payload[:24] not in content, name
            assert identity.secret not in content, name


@pytest.mark.processes
@pytest.mark.afresh  # memory that a template left would be searched, too
@pytest.mark.slow
def test_the_memory_of_the_hosts_holds_no_planted_secret(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """Hosts and server as processes, in the middle of a round and after it."""
    platform = Platform(tmp_path, stack)
    task = a_task()
    platform.submit(task)
    platform.start(DEVICE_HOST)
    hosts = {name: psutil.Process(child.process.pid) for name, child in platform.services.children.items()}
    for moment in ("in the middle of a round", "after it"):
        if moment == "after it":
            platform.until_logged("aggregator", "round_released", round=0)
        else:
            platform.until(lambda: platform.contributions(0) > DEVICES // 4, what="a quarter of the contributions")
        for process in hosts.values():
            process.suspend()
        try:
            searched = {name: _memory(process) for name, process in hosts.items()}
        finally:
            for process in hosts.values():
                process.resume()
        status = platform.status()
        ciphertext = _first_ciphertext(tmp_path)
        held = sum(ciphertext in data for data in searched.values())
        assert ciphertext == b"" or held, f"{moment}: the search finds what a host does hold"
        for device in range(0, DEVICES, 20):
            for what, secret in _of_counts(tmp_path, device, status).items():
                for name, data in searched.items():
                    assert secret not in data, f"{moment}: {what} of device {device} in the memory of {name}"


def _of_counts(root: Path, device: int, status: Any) -> dict[str, bytes]:
    """What a device holds and sends in the round of counts; each at least 16 bytes."""
    task = task_sha256(status.task)
    with Store.open(store_path(root / "devices", device)) as store:
        identity, data = store.identity(), store.ratings()
    payload, _ = (
        algorithm_for(open_task(status.task))
        .client()
        .contribute(_no_slices(), {ROWS: data}, round=0, seed=identity.seed)
    )
    return {
        "the secret": identity.secret,
        "the id": identity.device_id,
        "the pseudonym": domains.pseudonym(identity.secret, task),
        "the contribution's id": domains.contribution_id(identity.secret, task, 0),
        "the payload": payload[:24],
        "the items": data.items.astype("<i8").tobytes(),
    }


def _first_ciphertext(root: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(root / "aggregator" / "contributions.db")) as stored:
        row = stored.execute("SELECT ciphertext FROM contributions LIMIT 1").fetchone()
    return row[0][:64] if row else b""


def _memory(process: psutil.Process) -> bytes:
    """What a process could write to: heap, stacks, anonymous memory. Needs the right to look, as its parent has."""
    found = []
    with Path(f"/proc/{process.pid}/maps").open() as maps, Path(f"/proc/{process.pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                low, high = (int(part, 16) for part in span.split("-"))
                with contextlib.suppress(OSError, OverflowError):
                    memory.seek(low)
                    pages = np.frombuffer(memory.read(high - low), np.uint8).reshape(-1, _PAGE_BYTES)
                    found.append(pages[pages.any(axis=1)].tobytes())  # most are reserved and were never touched
    return b"".join(found)


def _files(root: Path) -> dict[str, bytes]:
    """Every file of the services; the devices' own folder is theirs."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] != "devices"
    }

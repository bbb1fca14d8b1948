"""Releases whose integers travel in pieces: the bound is lowered, so that small ones do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.errors import Busy, ConfigurationError, PrivacyError, StateError
from odp.numerics.arrays import Int64Array
from odp.signed.release import ReleaseRefused, checked_values, noisy_tensors, open_release, whole_values
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host import control

BINS = 300_000
DEVICES = 3
PIECES = 3


class StepNoise:
    """Noise that differs from place to place and is known."""

    def sample(self, ratio: float, count: int) -> Int64Array:
        return np.arange(count, dtype=np.int64) % 1_000 - 500


class Context:
    """As much of a gRPC context as a stream needs; ``end`` is the end of the call."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], object]] = []

    def add_callback(self, end: Callable[[], object]) -> bool:
        self.ends.append(end)
        return True

    def end(self) -> None:
        for end in self.ends:
            end()


class Host(StoredHost):
    """Fills and closes the round, and reads its values."""

    def fill(self) -> None:
        for device in range(DEVICES):
            sealed = self.world.sealed(device)
            assert self.core.submit(self.world.task_sha256, 0, sealed) is None
            self.storage.add([SealedContribution(self.world.task_sha256, 0, sealed)])

    def request(self, round: int = 0) -> aggregator_pb2.GetReleasedValuesRequest:
        return aggregator_pb2.GetReleasedValuesRequest(order=self.world.order(round, domains.CLOSE)[0])

    def values(self) -> list[bytes]:
        context = Context()
        replies = list(self.control.released_values(self.request(), context))  # type: ignore[arg-type]
        context.end()
        return [reply.chunk for reply in replies]

    def release(self) -> common_pb2.Release:
        signed = self.close_round()
        query = self.world.algorithm.query(0)
        return open_release(
            signed, task_sha256=self.world.task_sha256, round=0, model_sha256=self.world.model(0),
            declared=query.releases, signing_key=self.world.identity.signing.public,
        )  # fmt: skip

    def files(self) -> list[Path]:
        return sorted((self.state.root / "pieces").iterdir())


@pytest.fixture
def world(make_statistics: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", 2**20)
    return make_statistics(BINS, noise=StepNoise())


@pytest.fixture
def host(world: Any, tmp_path: Path) -> Iterator[Host]:
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        opened = Host(world, state)
        opened.open()
        yield opened
        opened.end()


def expected(host: Host) -> bytes:
    query = host.world.algorithm.query(0)
    total = query.new_sum()
    total.add([host.world.payload(device) for device in range(DEVICES)])
    ((name, sums),) = total.totals().items()
    assert name == query.releases[0].name
    return (sums + StepNoise().sample(1.0, BINS)).astype("<i8").tobytes()


def test_the_release_has_the_hash_of_its_values_which_come_in_pieces(host: Host) -> None:
    (noise,) = host.files()
    host.fill()
    release = host.release()
    assert (release.values_bytes, [len(tensor.integers) for tensor in release.tensors]) == (8 * BINS, [0])
    pieces = host.values()
    assert [len(piece) for piece in pieces] == [2**20, 2**20, 8 * BINS - 2 * 2**20]
    assert b"".join(pieces) == expected(host)
    assert release.values_sha256 == hashlib.sha256(expected(host)).digest()
    (tensor,) = release.tensors
    values = noisy_tensors(release, whole_values(release, pieces)).tensors[tensor.name]
    np.testing.assert_array_equal(values, np.frombuffer(expected(host), "<i8") * tensor.step)
    assert noise not in host.files(), "the noise is erased with the round"
    assert len(host.files()) == 1


def test_no_file_shows_the_values_and_no_order_reads_them_before_the_release(host: Host) -> None:
    host.fill()
    with pytest.raises(PrivacyError, match="no release in force"):
        host.values()
    host.close_round()
    inside = expected(host)[:64]
    assert all(inside not in path.read_bytes() for path in host.state.root.rglob("*") if path.is_file())


@pytest.mark.parametrize("moment", ["before the contributions", "before the close", "after the close"])
def test_a_restart_at_any_moment_gives_the_same_values(host: Host, moment: str) -> None:
    if moment == "before the contributions":
        host.restart()
    host.fill()
    if moment == "before the close":
        host.restart()
    first = host.close_round()
    if moment == "after the close":
        host.restart()
    assert host.close_round() == first
    assert b"".join(host.values()) == expected(host)


def test_a_death_between_the_pieces_and_the_record_of_a_release_leaves_one_release(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.fill()
    apply = host.storage.apply

    def dies(writes: Any) -> None:
        if any(record.pieces for record in writes):
            raise StateError("killed")
        apply(writes)

    monkeypatch.setattr(host.storage, "apply", dies)
    with pytest.raises(StateError, match="killed"):
        host.close_round()
    assert len(host.files()) == 2, "noise, and a release without a record"
    host.restart()
    assert len(host.files()) == 1
    release = host.release()
    assert whole_values(release, host.values()) == expected(host)


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "another piece"])
def test_noise_that_the_host_lost_or_changed_is_refused(host: Host, damage: str) -> None:
    host.fill()
    _damage(host.files()[0], damage)
    with pytest.raises(StateError, match=r"restore the (newest )?state folder"):
        host.close_round()


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "another piece"])
def test_values_that_the_host_lost_or_changed_are_refused(host: Host, damage: str) -> None:
    host.fill()
    release = host.release()
    _damage(host.files()[0], damage)
    with pytest.raises(StateError, match=r"restore the (newest )?state folder"):
        whole_values(release, host.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pieces: [pieces[1], pieces[0], pieces[2]], "their hash"),
        (lambda pieces: [pieces[0][:-1] + b"\1", *pieces[1:]], "their hash"),
        (lambda pieces: pieces[:-1], "bytes of the"),
        (lambda pieces: [*pieces, b"\0"], "more than the"),
    ],
)
def test_a_reader_refuses_values_that_the_release_does_not_name(host: Host, change: Any, message: str) -> None:
    host.fill()
    release = host.release()
    with pytest.raises(ReleaseRefused, match=message):
        list(checked_values(release, change(host.values())))


def test_few_servers_read_values_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_READING", 1)
    monkeypatch.setattr(control, "WAITING_READING", 0)
    host.restart()
    host.fill()
    host.close_round()
    context = Context()
    host.control.released_values(host.request(), context)  # type: ignore[arg-type]
    with pytest.raises(Busy, match="readers of releases"):
        host.values()
    context.end()
    assert len(host.values()) == PIECES


def test_a_short_release_has_its_integers_itself(make_statistics: Any, tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = Host(make_statistics(1_000, noise=StepNoise()), state)
        host.open()
        host.fill()
        release = host.release()
        assert (release.values_sha256, release.values_bytes, host.files()) == (b"", 0, [])
        assert len(release.tensors[0].integers) == 8 * 1_000
        with pytest.raises(ConfigurationError, match="has its integers itself"):
            host.values()
        host.end()


def _damage(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    size = 4 + 2**20 + 16
    if damage == "gone":
        path.unlink()
        return
    if damage == "a bit":
        data[size + 100] ^= 1
    elif damage == "cut":
        del data[size:]
    else:
        data[:size], data[size : 2 * size] = data[size : 2 * size], data[:size]
    path.write_bytes(data)

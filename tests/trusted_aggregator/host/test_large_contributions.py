"""Contributions in streams: counted once and whole, or nothing of them stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains, hpke
from odp.crypto.refusals import KEY_BYTES, refusal_holds
from odp.errors import Busy, ConfigurationError, Refusal, StateError
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.host import servicer
from trusted_aggregator.host.large_files import LargeFiles

CHUNK = 2**20


class Context:
    """As much of a gRPC context as a stream needs."""

    def cancel(self) -> None:
        raise AssertionError("no stream of these tests lasts long")


class Host(StoredHost):
    """A world with large contributions behind its real storage."""

    def send(self, sealed: bytes, **changes: Any) -> Refusal | None:
        refused = self.service.submit_stream(parts(self.world, sealed, **changes), Context())  # type: ignore[arg-type]
        return None if refused is None else refused.refusal

    def close(self) -> common_pb2.Release:
        return common_pb2.Release.FromString(self.close_round().release)

    def files(self) -> list[Path]:
        return [path for path in (self.state.root / "large").rglob("*") if path.is_file()]


def parts(world: Any, sealed: bytes, *, chunk: int = CHUNK, **header: Any) -> Iterator[Any]:
    fields = {"task_sha256": world.task_sha256, "round": 0, **header}
    yield aggregator_pb2.SubmitStreamRequest(header=aggregator_pb2.SubmitHeader(**fields))
    for start in range(0, len(sealed), chunk):
        yield aggregator_pb2.SubmitStreamRequest(chunk=sealed[start : start + chunk])


@pytest.fixture
def host(large: Any, tmp_path: Path) -> Iterator[Host]:
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        opened = Host(large, state)
        opened.open()
        yield opened
        opened.end()


def test_streams_are_counted_summed_and_their_files_erased_with_the_release(host: Host) -> None:
    for device in range(4):
        assert host.send(host.world.sealed(device), chunk=CHUNK - device) is None
    assert (host.count(), len(host.files())) == (4, 4)
    (tensor,) = host.close().tensors
    values = np.frombuffer(tensor.integers, "<i8") * tensor.step * np.sqrt(host.world.bins)
    np.testing.assert_allclose(values[:5], [1, 1, 1, 1, 0], atol=1e-2)
    assert abs(values[-1] - 4) < 1e-2
    assert host.files() == []


def test_a_repeated_stream_is_counted_once(host: Host) -> None:
    sealed = host.world.sealed(1)
    assert host.send(sealed) is None
    assert host.send(sealed) is Refusal.ALREADY_CONTRIBUTED
    assert host.send(host.world.sealed(1)) is Refusal.ALREADY_CONTRIBUTED, "sealed anew"
    assert (host.count(), len(host.files())) == (1, 1)


@pytest.mark.parametrize(
    "change", ["cut", "cut at a chunk", "a byte short", "a byte more", "twice", "nothing", "a bit"]
)
def test_a_stream_that_is_not_whole_leaves_nothing(host: Host, change: str) -> None:
    sealed = host.world.sealed(1)
    flipped = bytearray(sealed)
    flipped[-20] ^= 1
    changed = {
        "cut": sealed[:1_000_000], "cut at a chunk": sealed[:CHUNK], "a byte short": sealed[:-1],
        "a byte more": sealed + b"\0", "twice": sealed + sealed, "nothing": b"", "a bit": bytes(flipped),
    }[change]  # fmt: skip
    assert host.send(changed) is Refusal.MALFORMED
    assert (host.count(), host.files()) == (0, [])
    assert host.send(sealed) is None, "the device can still contribute"


def test_a_stream_that_is_too_long_is_not_read_on(host: Host) -> None:
    read = 0

    def endless() -> Iterator[Any]:
        nonlocal read
        yield from parts(host.world, b"")
        while True:
            read += 1
            yield aggregator_pb2.SubmitStreamRequest(chunk=bytes(CHUNK))

    assert host.service.submit_stream(endless(), Context()).refusal is Refusal.MALFORMED  # type: ignore[arg-type]
    assert read == 2, "one chunk fits, the second exceeds the length"


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (lambda world: iter([]), "must be its header"),
        (lambda world: iter([aggregator_pb2.SubmitStreamRequest(chunk=b"x")]), "must be its header"),
        (lambda world: iter([aggregator_pb2.SubmitStreamRequest()]), "must be its header"),
        (lambda world: iter([*parts(world, b""), *parts(world, b"")]), "chunks of 1 to"),
        (lambda world: iter([*parts(world, b""), aggregator_pb2.SubmitStreamRequest(chunk=b"")]), "chunks of 1 to"),
        (lambda world: parts(world, bytes(CHUNK + 1), chunk=CHUNK + 1), "chunks of 1 to"),
    ],
)
def test_a_stream_of_another_form_is_an_error(host: Host, stream: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        host.service.submit_stream(stream(host.world), Context())  # type: ignore[arg-type]
    assert host.files() == []


def test_a_stream_to_another_task_or_round_or_a_closed_one_is_refused_before_it_is_read(host: Host) -> None:
    def refused(**header: Any) -> Refusal | None:
        def only_header() -> Iterator[Any]:
            yield next(parts(host.world, b"", **header))
            raise AssertionError("read on")

        return host.service.submit_stream(only_header(), Context()).refusal  # type: ignore[arg-type]

    assert refused(task_sha256=bytes(32)) is Refusal.WRONG_TASK
    assert refused(round=1) is Refusal.WRONG_ROUND
    for device in range(3):
        assert host.send(host.world.sealed(device)) is None
    host.close()
    assert refused() is Refusal.ROUND_CLOSED


def test_a_contribution_sealed_in_another_way_or_for_another_context_is_malformed(host: Host) -> None:
    world = host.world
    plaintext = world.contribution(1).SerializeToString()
    info = domains.contribution_info(world.task_sha256, 0, world.model(0), world.policy.sha256)
    assert host.send(hpke.seal(world.round_key(), plaintext, info)) is Refusal.MALFORMED
    other = world.contribution(1, model_sha256=bytes(32)).SerializeToString()
    assert host.send(world.seal(other)) is Refusal.WRONG_MODEL
    assert host.send(host.world.sealed(1)) is None


def test_an_unbounded_payload_is_refused(host: Host) -> None:
    numbers = np.zeros(host.world.bins, dtype="<i4")
    numbers[0] = -(2**31)
    given = host.world.contribution(1)
    given.payload = numbers.tobytes()
    assert host.send(host.world.seal(given.SerializeToString())) is Refusal.OUT_OF_BOUNDS
    assert (host.count(), host.files()) == (0, [])


def test_a_restart_takes_every_acknowledged_contribution_back(host: Host) -> None:
    for device in range(3):
        assert host.send(host.world.sealed(device)) is None
    host.end()
    host.begin()
    assert (host.count(), len(host.files())) == (3, 3)
    assert host.send(host.world.sealed(2)) is Refusal.ALREADY_CONTRIBUTED
    assert host.close().contributions == 3


def test_a_file_that_a_power_cut_took_or_cut_is_not_counted_after_the_restart(host: Host) -> None:
    for device in range(4):
        assert host.send(host.world.sealed(device)) is None
    host.end()
    gone, cut = host.files()[:2]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:1000])
    host.begin()
    assert host.count() == 2


def test_a_full_disk_stops_the_program_and_nothing_is_acknowledged(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> bytes:
        raise StateError("state folder: disk full")

    monkeypatch.setattr(LargeFiles, "write", full)
    for device in (1, 2):
        with pytest.raises(StateError, match="disk full"):
            host.send(host.world.sealed(device))
    assert len(host.failures) == 1


def test_files_of_rounds_that_are_over_are_removed_at_the_start(host: Host) -> None:
    assert host.send(host.world.sealed(1)) is None
    left = host.state.root / "large" / f"{'ab' * 32}-3"
    left.mkdir()
    (left / "x").write_bytes(b"ciphertext of a round that was released")
    host.end()
    host.begin()
    assert not left.exists()
    assert len(host.files()) == 1


def test_more_streams_than_the_memory_is_meant_for_are_put_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "MAX_STREAMS", 1)
    host.end()
    host.begin()

    def others_within_the_first() -> Iterator[Any]:
        header, *chunks = parts(host.world, host.world.sealed(1))
        # Without a header, a stream takes no place.
        assert host.send(host.world.sealed(2)) is None
        yield header
        with pytest.raises(Busy, match="busy with other submissions"):
            host.send(host.world.sealed(3))
        yield from chunks

    assert host.service.submit_stream(others_within_the_first(), Context()) is None  # type: ignore[arg-type]
    assert host.send(host.world.sealed(3)) is None


def test_the_round_takes_no_more_than_the_declared_maximum(host: Host) -> None:
    """More could leave the 32 bits that the grid was chosen for: the maximum is twice the goal, which is 6."""
    query = host.world.algorithm.query(0)
    assert query.maximum == 12
    answers = [host.core.submit(host.world.task_sha256, 0, host.world.sealed(device)) for device in range(14)]
    assert answers == [None] * 12 + [Refusal.ROUND_CLOSED] * 2


def test_a_late_stream_is_refused_under_a_signature_by_its_first_bytes(host: Host) -> None:
    world = host.world
    key, late = world.round_key(), world.sealed(9)
    for device in range(3):
        assert host.send(world.sealed(device)) is None
    host.close()
    header = aggregator_pb2.SubmitHeader(task_sha256=world.task_sha256, sealed_key=late[:KEY_BYTES])
    stream = iter([aggregator_pb2.SubmitStreamRequest(header=header)])
    answer = host.service.submit_stream(stream, Context())  # type: ignore[arg-type]
    assert answer is not None
    assert answer.refusal is Refusal.ROUND_CLOSED
    assert refusal_holds(
        answer.signature, answer.refusal, signing_key=world.identity.signing.public, task_sha256=world.task_sha256,
        round=0, hpke_key=key, sealed=late, masked=b"",
    )  # fmt: skip

"""Masked rounds through the real storage and the enclave: exact sums, and hosts and devices that cheat."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains, seal
from odp.crypto.secure_aggregation.masked import Halves, mask, set_sha256
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.evaluation.noise import NoNoise
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.boundary.interface import HostSum, SealedContribution, Status
from trusted_aggregator.modes.masked.host_half import masked_sum
from trusted_aggregator.state.records import Writes, noise_key

SMALL, LARGE = 40, 300_000
CHUNK = 2**20


SECONDS = 60.0


class Context:
    """As much of a gRPC context as a stream needs."""

    def cancel(self) -> None:
        raise AssertionError("no stream of these tests lasts long")


class Host(StoredHost):
    """A masked world's enclave behind its real storage, and its devices."""

    def __init__(self, world: Any, state: StateFolder) -> None:
        self.halves: dict[int, Halves] = {}
        super().__init__(world, state)

    # Devices

    def halve(self, device: int) -> Halves:
        """The device's halves, made once."""
        if device not in self.halves:
            info = domains.masked_vector_info(self.world.task_sha256, 0)
            self.halves[device] = mask(self.world.payload(device), info=info)
        return self.halves[device]

    def sealed(self, device: int, secret: bytes | None = None) -> bytes:
        world = self.world
        given = world.contribution(device)
        given.payload = self.halve(device).secret if secret is None else secret
        info = domains.contribution_info(world.task_sha256, 0, world.model(0), world.policy.sha256)
        return seal(world.round_key(), given.SerializeToString(), info)

    def send(self, device: int, *, secret: bytes | None = None, vector: bytes | None = None) -> Refusal | None:
        sealed = self.sealed(device, secret)
        vector = self.halve(device).vector if vector is None else vector
        if self.world.bins == LARGE:
            refused = self.service.submit_stream(parts(self.world, sealed, vector), Context())  # type: ignore[arg-type]
            return None if refused is None else refused.refusal
        refused = self.service.submit(
            aggregator_pb2.SubmitRequest(
                task_sha256=self.world.task_sha256, round=0, sealed_contribution=sealed, masked_vector=vector
            )
        ).result(SECONDS)
        return None if refused is None else refused.refusal

    # The host, step by step

    def charge(self) -> Any:
        charged = self.core.charge(*self.world.order(0, domains.CLOSE))
        self.settle(charged.writes)
        return charged

    def half(self) -> HostSum:
        world = self.world
        return masked_sum(self.core.calls, self.storage, world.task_sha256, 0, length=4 * world.bins)

    def seal(self, masked: HostSum | None) -> Writes:
        """The sealed release, which the host does not store."""
        noise = self.storage.record(noise_key(self.world.task_sha256, 0))
        return self.core.seal_release(self.world.order(0, domains.CLOSE)[0], noise=noise, host_sum=masked)

    def release(self, masked: HostSum | None) -> common_pb2.Release:
        """The release, once it is stored and in force."""
        self.settle(self.seal(masked))
        return opened(self.close_round())

    def files(self) -> list[Path]:
        return [path for path in (self.state.root / "large").rglob("*") if path.is_file()]


def parts(world: Any, sealed: bytes, vector: bytes) -> Iterator[Any]:
    header = aggregator_pb2.SubmitHeader(task_sha256=world.task_sha256, round=0, sealed_contribution=sealed)
    yield aggregator_pb2.SubmitStreamRequest(header=header)
    for start in range(0, len(vector), CHUNK):
        yield aggregator_pb2.SubmitStreamRequest(chunk=vector[start : start + CHUNK])


def integers(release: common_pb2.Release) -> np.ndarray:
    (tensor,) = release.tensors
    return np.frombuffer(tensor.integers, "<i8")


def opened(signed: common_pb2.SignedRelease) -> common_pb2.Release:
    return common_pb2.Release.FromString(signed.release)


def true_sum(world: Any, devices: range) -> np.ndarray:
    return sum(np.frombuffer(world.payload(device), "<i4").astype(np.int64) for device in devices)


@pytest.fixture
def make_host(make_statistics: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Makes hosts of an open masked round whose minimum is 3."""
    hosts: list[Host] = []

    def make(bins: int = SMALL, **changes: Any) -> Host:
        world = make_statistics(bins, aggregation="masked", **{"noise": NoNoise(), **changes})
        hosts.append(Host(world, state))
        hosts[-1].open()
        return hosts[-1]

    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        yield make
        for host in hosts:
            host.end()


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host()


@pytest.mark.parametrize("bins", [SMALL, LARGE])
def test_the_sum_is_that_of_the_vectors_and_everything_is_erased(make_host: Callable[..., Host], bins: int) -> None:
    host = make_host(bins)
    for device in range(5):
        assert host.send(device) is None
    assert (host.count(), len(host.files())) == (5, 5 if bins == LARGE else 0)
    release = opened(host.close_round())
    np.testing.assert_array_equal(integers(release), true_sum(host.world, range(5)))
    assert release.contributions == 5
    assert host.files() == []
    with sqlite3.connect(host.state.root / "contributions.db") as database:
        assert database.execute("SELECT count(*) FROM contributions").fetchone() == (0,)


def test_it_is_noised_and_charged_as_an_unmasked_round(
    make_statistics: Callable[..., Any], make_host: Callable[..., Host]
) -> None:
    """40 sums, each off by the noise: at most 8 standard deviations, beyond with probability below 1e-13."""
    host = make_host(noise=None)
    for device in range(3):
        assert host.send(device) is None
    release = opened(host.close_round())
    plain = make_statistics(SMALL)
    plain.open()
    plain.fill(range(3))
    expected = plain.learn(plain.close())
    assert list(release.charges) == list(expected.charges)
    assert release.epsilon_spent == expected.epsilon_spent
    (charge,) = release.charges
    (tensor,) = release.tensors
    error = (integers(release) - true_sum(host.world, range(3))) * tensor.step / charge.noise_std
    assert np.abs(error).max() < 8
    assert np.abs(error).max() > 0.1, "there is noise: 40 draws below a tenth have a probability of 1e-44"


def test_neither_side_holds_a_vector(host: Host) -> None:
    assert host.send(1) is None
    plain = host.world.payload(1)
    held = b"".join(path.read_bytes() for path in host.state.root.rglob("*") if path.is_file())
    assert host.halve(1).vector in held, "the host has the masked vector"
    assert plain not in held
    assert host.halve(1).secret[:32] not in held, "and not its seed"
    (found,) = host.core.state.holdings.rounds()
    assert found._waiting == [host.halve(1).secret], "the enclave has the seed, and of the vector a hash"


@pytest.mark.parametrize("bins", [SMALL, LARGE])
@pytest.mark.slow
def test_a_restart_at_any_step_gives_the_same_bytes_once_charged(make_host: Callable[..., Host], bins: int) -> None:
    host = make_host(bins, noise=None)
    for device in range(4):
        assert host.send(device) is None
        host.restart()
    assert host.count() == 4
    assert host.send(2) is Refusal.ALREADY_CONTRIBUTED
    host.charge()
    host.restart()
    host.seal(host.half())  # the program dies before it stores it
    host.restart()
    host.storage.apply(host.seal(host.half()))  # .. and before the counters move
    host.restart()
    signed = host.close_round()
    host.restart()
    assert host.close_round() == signed
    assert host.files() == []


def test_a_host_cannot_release_a_set_below_the_minimum(host: Host) -> None:
    for device in range(2):
        assert host.send(device) is None
    with pytest.raises(PrivacyError, match="2 contributions and needs at least 3"):
        host.close_round()
    with pytest.raises(StateError, match="does not wait for a masked sum"):
        host.core.host_parts(host.world.task_sha256, 0, 0)
    lone = HostSum(host.halve(0).vector, set_sha256(host.world.task_sha256, 0, [host.halve(0).secret[32:]]))
    with pytest.raises(PrivacyError, match="not charged"):
        host.release(lone)


@pytest.mark.parametrize("change", ["one alone", "one left out", "one more", "nothing", "another round"])
def test_a_sum_over_another_set_than_the_enclaves_is_refused_and_the_right_one_released(
    host: Host, change: str
) -> None:
    for device in range(4):
        assert host.send(device) is None
    host.charge()
    right = host.half()
    digests = sorted(host.halve(device).secret[32:] for device in range(4))
    chosen = {
        "one alone": digests[:1], "one left out": digests[1:], "one more": sorted([*digests, bytes(32)]),
        "nothing": [], "another round": digests,
    }[change]  # fmt: skip
    name = set_sha256(host.world.task_sha256, int(change == "another round"), chosen)
    with pytest.raises(PrivacyError, match="host's set of masked vectors differs"):
        host.release(HostSum(right.sum, name))
    with pytest.raises(StateError, match="needs the host's sum"):
        host.release(None)
    state = host.core.round_state(host.world.task_sha256, 0)
    assert state is not None
    assert state.status is Status.CHARGED
    np.testing.assert_array_equal(integers(host.release(right)), true_sum(host.world, range(4)))


def test_a_sum_of_other_vectors_under_the_right_name_is_noise_and_not_a_persons_numbers(
    make_host: Callable[..., Host],
) -> None:
    """The host hands in one person's masked vector as the sum of all: the masks of the others stay.

    Uniform over 2^32, 300,000 numbers: their mean absolute value is 2^30 to 6 deviations of its estimate (2e-9).
    """
    host = make_host(LARGE)
    for device in range(4):
        assert host.send(device) is None
    host.charge()
    right = host.half()
    found = integers(host.release(HostSum(host.halve(0).vector, right.set_sha256)))
    assert abs(float(np.abs(found).mean()) - 2**30) < 6 * 2**31 / np.sqrt(12 * LARGE)
    person = np.frombuffer(host.world.payload(0), "<i4")
    assert np.count_nonzero(found == person) < 10


def test_a_sum_of_another_length_is_refused(host: Host) -> None:
    for device in range(3):
        assert host.send(device) is None
    host.charge()
    right = host.half()
    with pytest.raises(ConfigurationError, match="masked sum of 160 bytes"):
        host.release(HostSum(right.sum[:-4], right.set_sha256))


def test_a_seed_that_comes_twice_is_refused(host: Host) -> None:
    assert host.send(0) is None
    again = mask(
        host.world.payload(1),
        info=domains.masked_vector_info(host.world.task_sha256, 0),
        random_bytes=lambda count: host.halve(0).secret[:count],
    )
    assert again.vector != host.halve(0).vector
    assert host.send(1, secret=again.secret, vector=again.vector) is Refusal.MALFORMED
    host.restart()
    assert host.send(1, secret=again.secret, vector=again.vector) is Refusal.MALFORMED
    assert host.send(1) is None
    assert host.count() == 2


def test_a_masked_vector_that_comes_twice_is_refused(host: Host) -> None:
    """Counted twice, or stored once and named twice, it would spoil the sum."""
    assert host.send(0) is None
    copied = bytes(32) + host.halve(0).secret[32:]
    assert host.send(1, secret=copied, vector=host.halve(0).vector) is Refusal.MALFORMED
    assert host.count() == 1


@pytest.mark.parametrize("bins", [SMALL, LARGE])
@pytest.mark.parametrize("place", [0, 80, -1])
def test_a_flipped_bit_of_either_half_is_refused_and_leaves_nothing(
    make_host: Callable[..., Host], bins: int, place: int
) -> None:
    host = make_host(bins)
    flipped = bytearray(host.halve(1).vector)
    flipped[place] ^= 1
    assert host.send(1, vector=bytes(flipped)) is Refusal.MALFORMED
    secret = bytearray(host.halve(1).secret)
    secret[-1 if place else 40] ^= 1
    assert host.send(1, secret=bytes(secret)) is Refusal.MALFORMED
    assert (host.count(), host.files()) == (0, [])
    assert host.send(1) is None


def test_each_contribution_of_a_batch_is_compared_with_its_own_vector(host: Host) -> None:
    def request(device: int, of: int, round: int = 0) -> SealedContribution:
        return SealedContribution(host.world.task_sha256, round, host.sealed(device), host.halve(of).secret[32:])

    host.halves[5] = host.halve(1)  # another device with the same seed and vector
    batch = [request(1, 1), request(2, 1), request(3, 3, 7), request(4, 4), request(1, 1), request(5, 1), request(2, 2)]
    answers = host.core.submit_batch(batch)
    # What came before decides of a seed that comes twice: nobody signs that it never counts.
    assert [bool(answer and answer.signature) for answer in answers] == [False, True, *[False] * 5]
    assert [answer and answer.refusal for answer in answers] == [
        None,
        Refusal.MALFORMED,
        Refusal.WRONG_ROUND,
        None,
        Refusal.ALREADY_CONTRIBUTED,
        Refusal.MALFORMED,
        None,
    ]
    assert host.count() == 3


@pytest.mark.parametrize("length", [4, SMALL * 4 - 4, SMALL * 4 + 4])
def test_a_vector_of_another_length_is_refused_whatever_its_hash(host: Host, length: int) -> None:
    vector = bytes(length)
    secret = bytes(32) + hashlib.sha256(vector).digest()
    assert host.send(1, secret=secret, vector=vector) is Refusal.MALFORMED


def test_a_half_without_the_other_is_refused(host: Host) -> None:
    """Also where a device names the hash in the host's place: the sum would lack its vector."""
    sealed, digest = host.sealed(1), host.halve(1).secret[32:]
    alone = aggregator_pb2.SubmitRequest(task_sha256=host.world.task_sha256, round=0, sealed_contribution=sealed)
    assert host.service.submit(alone).result(SECONDS).refusal is Refusal.MALFORMED
    alone.sealed_contribution = sealed + digest
    assert host.service.submit(alone).result(SECONDS).refusal is Refusal.MALFORMED
    alone.sealed_contribution, alone.masked_sha256 = sealed, digest
    assert host.service.submit(alone).result(SECONDS).refusal is Refusal.MALFORMED
    assert host.count() == 0
    assert host.send(1) is None


def test_a_whole_vector_is_no_contribution_to_a_masked_round_and_a_masked_one_to_no_other(
    host: Host, make_statistics: Callable[..., Any]
) -> None:
    assert host.core.submit(host.world.task_sha256, 0, host.world.sealed(1)) is Refusal.MALFORMED
    plain = make_statistics(SMALL)
    plain.open()
    assert plain.core.host_part_bytes(plain.task_sha256, 0) == 0
    halves = mask(plain.payload(1), info=domains.masked_vector_info(plain.task_sha256, 0))
    given = plain.contribution(1)
    given.payload = halves.secret
    sealed = plain.seal(given.SerializeToString())
    answer = plain.core.submit(plain.task_sha256, 0, sealed, host_sha256=halves.secret[32:])
    assert answer is Refusal.MALFORMED
    assert plain.core.submit(plain.task_sha256, 0, plain.sealed(1), host_sha256=bytes(32)) is Refusal.MALFORMED
    assert plain.core.submit(plain.task_sha256, 0, plain.sealed(1)) is None


def test_vectors_that_a_power_cut_took_or_changed_are_not_counted_after_the_restart(
    make_host: Callable[..., Host],
) -> None:
    host = make_host(LARGE)
    for device in range(5):
        assert host.send(device) is None
    host.end()
    gone, changed = host.files()[:2]
    gone.unlink()
    changed.write_bytes(bytes(4 * LARGE))
    host.begin()
    assert host.count() == 3
    release = opened(host.close_round())
    assert release.contributions == 3
    assert integers(release)[-1] == 3 * integers(release)[:5].max(), "the last bin is everybody's"


def test_a_vector_that_is_lost_after_the_charge_releases_nothing(make_host: Callable[..., Host]) -> None:
    host = make_host(LARGE)
    for device in range(3):
        assert host.send(device) is None
    host.files()[0].unlink()
    with pytest.raises(StateError, match="1 of 3 masked vectors"):
        host.close_round()
    host.restart()
    with pytest.raises(PrivacyError, match="void"):
        host.close_round()


def test_the_set_is_named_in_pages(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trusted_aggregator.modes.masked.enclave_half.PAGE", 2)
    for device in range(5):
        assert host.send(device) is None
    np.testing.assert_array_equal(integers(opened(host.close_round())), true_sum(host.world, range(5)))


def test_a_dishonest_vector_spoils_the_sum_and_no_more(host: Host) -> None:
    """No bound is enforced on a masked vector: the documented price of this mode."""
    wild = np.full(SMALL, 2**30, dtype="<i4").tobytes()
    halves = mask(wild, info=domains.masked_vector_info(host.world.task_sha256, 0))
    assert host.send(0, secret=halves.secret, vector=halves.vector) is None
    for device in range(1, 4):
        assert host.send(device) is None
    found = integers(opened(host.close_round()))
    np.testing.assert_array_equal(found, true_sum(host.world, range(1, 4)) + 2**30)


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("when", ["before it sends", "in the middle of its vector", "before its answer", "for ever"])
@pytest.mark.slow
def test_the_sum_is_that_of_the_devices_that_were_counted_whoever_drops_out(
    make_host: Callable[..., Host], when: str, lost: int
) -> None:
    """None, 10 % and 30 % of 10 devices; all but those that never come again send once more after the restart."""
    host = make_host(LARGE if when == "in the middle of its vector" else SMALL)
    devices, gone = range(10), range(lost)
    for device in devices:
        if device in gone and when == "in the middle of its vector":
            cut = host.halve(device).vector[:CHUNK]
            assert host.send(device, vector=cut) is Refusal.MALFORMED
        elif device in gone and when in ("before it sends", "for ever"):
            host.halve(device)
        else:
            assert host.send(device) is None
    host.restart()
    back = range(0) if when == "for ever" else gone
    for device in back:
        assert host.send(device) is (Refusal.ALREADY_CONTRIBUTED if when == "before its answer" else None)
    counted = [device for device in devices if device not in gone or device in back]
    release = opened(host.close_round())
    assert release.contributions == len(counted)
    expected = sum(np.frombuffer(host.world.payload(device), "<i4").astype(np.int64) for device in counted)
    np.testing.assert_array_equal(integers(release), expected)

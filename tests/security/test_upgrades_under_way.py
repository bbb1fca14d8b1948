"""Hand-overs in the middle of rounds, of every mode and kind of task, and what hosts try with them (R370 ff., R392)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from in_process import InProcess
from stream_worlds import StreamWorld
from upgrade_worlds import KINDS, SECAGG

from odp.crypto import domains
from odp.crypto.refusals import refusal_holds
from odp.crypto.signing import verify
from odp.errors import Refusal, StateError
from odp.evaluation.noise import NoNoise
from odp.transport import owner_files
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.slots import EmulatedSlots
from odp.v1 import aggregator_pb2
from tests.hand_overs import NEW, OLD, OTHER, Endorsers, Upgrade, upgradable
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Refused, SealedContribution, Status
from trusted_aggregator.enclave.streams import _slot

Make = Callable[..., Any]
DEVICES = range(4)
#: At these, nothing is in force yet: the round has to be there after all programs died.
BEFORE = ("asked", "prepared")
STEPS = (
    *BEFORE, "the successor is named on the disk", "the successor is named in force", "the key was given",
    "the key was taken", "the records were read", "the records are on the new disk", "the records are in force",
)  # fmt: skip


class _Killed(Exception):
    """All processes die."""


@pytest.fixture(scope="module")
def platforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedPlatform]:
    return iter(EmulatedPlatform.open(tmp_path_factory.mktemp("platform")) for _ in itertools.count())


@pytest.fixture
def make(platforms: Iterator[EmulatedPlatform], coarse_composition: None) -> Make:
    """Makes a world in the middle of a round: ``round`` is open with four contributions, and its upgrade endorsed."""

    def under_way(kind: str, *, fill: bool = True) -> tuple[Any, Endorsers, int]:
        world_of, round = SECAGG if kind == "secagg+" else KINDS[kind]
        platform = next(platforms)
        world, endorsers = upgradable(lambda **changes: world_of(platform, "people", noise=NoNoise(), **changes))
        endorsers.endorse(NEW, world.policy)
        for before in range(round):
            _one_round(world, before)
        world.open(round)
        if fill:
            world.fill(_devices(world, round), round)
        return world, endorsers, round

    return under_way


def _devices(world: Any, round: int) -> range:
    """In a stream, each device waits two rounds."""
    return range(10 * round, 10 * round + 4) if isinstance(world, StreamWorld) else DEVICES


def _one_round(world: Any, round: int) -> None:
    world.open(round)
    world.fill(_devices(world, round), round)
    world.learn(world.close(round))


def _late(world: Any, round: int) -> tuple[aggregator_pb2.SubmitRequest, bytes]:
    """A contribution that comes after the hand-over, and the key that it is sealed to."""
    key = world.round_key(round)
    device = _devices(world, round).stop
    sealed = world.sealed(device, round)
    request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=round, sealed_contribution=sealed[:200])
    return request, key


def _is_signed(core: InProcess, world: Any, request: aggregator_pb2.SubmitRequest, key: bytes) -> bool:
    """Whether the refusal of a late contribution frees its device of the charge."""
    refused = core.sign_refusal(wire.sealed_of(request))
    return refusal_holds(
        refused.signature, refused.refusal, signing_key=core.state.identity.signing.public,
        task_sha256=world.task_sha256, round=request.round, hpke_key=key, sealed=request.sealed_contribution,
        masked=b"",
    )  # fmt: skip


def _voided(world: Any, round: int) -> list[bytes]:
    """The keys that the enclave of ``world`` signs to be void openings of the open round, with its key."""
    signed = world.core.round_key(world.task_sha256, round)
    assert signed is not None
    for one in signed.voided:
        stated = domains.voided_key(world.task_sha256, round, one.hpke_key)
        verify(world.identity.signing.public, one.signature, domains.VOIDED_KEY, stated)
    return [one.hpke_key for one in signed.voided]


@pytest.mark.parametrize("died", STEPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_r370_a_death_at_any_step_of_an_upgrade_in_the_middle_of_a_round_loses_nothing_in_silence(
    make: Make, kind: str, died: str
) -> None:
    world, endorsers, round = make(kind)
    request, key = _late(world, round)
    upgrade = Upgrade(world, endorsers)

    def kill(step: str) -> None:
        if step == died:
            raise _Killed

    with pytest.raises(_Killed):
        upgrade.run(kill, void_rounds=True)
    if upgrade.stored:
        core = upgrade.restart()
    else:
        upgrade.launch()
        world.restart()
        state = world.core.round_state(world.task_sha256, round)
        if died in BEFORE:
            assert (state.status, state.contributions) == (Status.OPEN, 4), "nothing happened"
        else:
            assert state is None
            assert _is_signed(world.core, world, request, key), "the old enclave, after its start"
        core = upgrade.run(void_rounds=True)
    if died != "the records are in force":
        assert _is_signed(core, world, request, key), "the new enclave"
    world = upgrade.move(core)
    world.rows.clear()
    world.open(round)
    assert _voided(world, round) == [key]
    assert world.round_key(round) != key
    world.fill(_devices(world, round), round)
    world.learn(world.close(round))
    assert world.charges() == round + 1, "each round once"
    for later in range(round + 1, len(world.algorithm.planned_releases())):
        _one_round(world, later)
    assert world.charges() == len(world.algorithm.planned_releases()), "the task ends with its planned rounds"


def test_r370_the_old_enclave_signs_no_refusal_before_the_end_of_the_round_is_in_force(make: Make) -> None:
    world, endorsers, round = make("dpam")
    request, key = _late(world, round)
    upgrade = Upgrade(world, endorsers)
    signed: dict[str, bool] = {}
    upgrade.run(lambda step: signed.update({step: _is_signed(world.core, world, request, key)}), void_rounds=True)
    assert [step for step in STEPS if not signed[step]] == list(STEPS[:3])


@pytest.mark.parametrize("kind", ["dpam", "masked stream", "stream"])
def test_r370_an_empty_round_ends_with_a_signature_too_and_one_with_contributions_is_waited_for(
    make: Make, kind: str
) -> None:
    world, endorsers, round = make(kind, fill=False)
    request, key = _late(world, round)
    first = Upgrade(world, endorsers)
    asked = first.request()
    world.fill(_devices(world, round), round)
    assert world.core.begin_hand_over(asked) == ()
    world.learn(world.close(round))
    world.open(round + 1)
    request, key = _late(world, round + 1)
    core = Upgrade(world, endorsers).run()
    assert _is_signed(world.core, world, request, key)
    assert _is_signed(core, world, request, key)


def test_r371_a_round_that_is_charged_is_never_void(make: Make) -> None:
    world, endorsers, round = make("dpam")
    world.settle(world.charge(round).writes)
    upgrade = Upgrade(world, endorsers)
    assert world.core.begin_hand_over(upgrade.request(void_rounds=True)) == ()
    world.learn(world.finish(round))
    world.open(round + 1)
    world = upgrade.move(upgrade.run(void_rounds=True))
    assert world.charges() == round + 1


def test_r375_no_copy_of_the_old_enclave_charges_a_round_that_is_void(make: Make) -> None:
    """It holds the round, its key and its contributions in memory; its host stores nothing of the other's."""
    world, endorsers, round = make("dpam")
    first, records = world.core, dict(world.records)
    world.restart()
    copy, world.core = world.core, first
    Upgrade(world, endorsers).run(void_rounds=True)
    with pytest.raises(StateError, match="rolled back"):
        copy.charge(*world.order(round, domains.CLOSE))
    with pytest.raises(StateError, match=r"rolled back|handed over"):
        world.restart(records)


def test_r375_a_copy_that_charged_first_keeps_the_round_from_being_void(make: Make) -> None:
    world, endorsers, round = make("dpam")
    request, key = _late(world, round)
    first = world.core
    world.restart()
    copy, world.core = world.core, first
    upgrade = Upgrade(world, endorsers)
    asked = upgrade.request(void_rounds=True)
    world.core.begin_hand_over(asked)  # its host stores none of it
    charged = copy.charge(*world.order(round, domains.CLOSE))
    for record in charged.writes:
        world.records[record.key] = record.data
    copy.commit()
    with pytest.raises(StateError, match="rolled back"):
        world.core.commit()
    assert not _is_signed(world.core, world, request, key)
    assert not world.core.state.populations[world.population].voided


def test_r375_a_host_that_brings_a_void_round_back_finds_it_closed(make: Make, tmp_path: Any) -> None:
    """The budget goes to the new code and back, and the chip did not erase the round's secret in time."""
    world, endorsers, round = make("dpam")
    request, key = _late(world, round)
    old_records, rows = dict(world.records), {key: list(value) for key, value in world.rows.items()}
    slots = world.identity.guest.slots
    secret_file = slots._path(world.task_sha256.hex())
    secret = secret_file.read_bytes()
    old_guest = world.guest
    there = Upgrade(world, endorsers)
    world = there.move(there.run(void_rounds=True))
    back = Upgrade(world, endorsers, image=OLD)
    world = back.move(back.run())
    secret_file.touch(mode=0o600)
    secret_file.write_bytes(secret)
    round_records = {name: data for name, data in old_records.items() if name.startswith(("round/", "noise/"))}
    world.restart({**world.records, **round_records}, rows)
    assert world.core.round_state(world.task_sha256, round) is None
    assert set(round_records) <= set(world.restored), "its host has to erase them"
    assert _is_signed(world.core, world, request, key)
    assert world.guest is not old_guest


def test_r373_a_stream_goes_on_where_it_was_and_admits_nobody_sooner(make: Make) -> None:
    world, endorsers, round = make("stream")
    assert len(world.core.state.streams._positions) == 1
    old_slots, old_core = world.identity.guest.slots, world.core
    upgrade = Upgrade(world, endorsers)
    world = upgrade.move(upgrade.run(void_rounds=True))
    world.rows.clear()
    world.open(round)
    too_soon = _devices(world, round - 1)[0]
    answers = world.core.submit_batch([SealedContribution(world.task_sha256, round, world.sealed(too_soon, round))])
    assert isinstance(answers[0], Refused)
    assert answers[0].refusal is Refusal.NOT_DUE
    world.fill(_devices(world, round), round)
    integers = world.finish_round(round)
    encoder = world.algorithm.query(0).encoder()
    expected = [
        encoder.step(sum(world.vector(device, each) for device in _devices(world, each))) for each in range(round + 1)
    ]
    assert integers.tolist() == expected[-1].tolist(), "past sums and noise state went along"
    # What the old enclave gave away it erases, as soon as its successor has it in force.
    assert old_core.state.streams._positions
    old_core.draw_nonce()
    assert not old_core.state.streams._positions
    assert [old_slots.read(_slot(world.task_sha256, turn)) for turn in range(2)] == [None, None]


@pytest.mark.parametrize("kind", ["stream", "masked stream"])
def test_r392_a_stream_survives_a_failed_counter_at_a_second_successor(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, endorsers, _ = make(kind)
    endorsers.endorse(OTHER, world.policy)
    world.persist(world.core.begin_hand_over(Upgrade(world, endorsers).request(void_rounds=True)))
    world.core.commit()  # this successor is named, and never takes over
    second = Upgrade(world, endorsers, image=OTHER)
    world.persist(world.core.begin_hand_over(second.request(void_rounds=True)))
    write, counters = owner_files.write_atomically, itertools.count(1)

    def failing(path: Any, data: bytes, *, mode: int) -> None:
        if path.name == "counters.json" and next(counters) == 2:
            raise StateError("disk full")
        write(path, data, mode=mode)

    monkeypatch.setattr(owner_files, "write_atomically", failing)
    with pytest.raises(StateError):
        world.core.commit()
    request = second.request(void_rounds=True)  # its nonce is drawn between the two counters
    world.core.commit()
    assert world.core.finish_hand_over(request).sealed_streams


def test_r392_an_old_enclave_that_died_at_the_take_over_erases_its_streams_at_its_next_start(make: Make) -> None:
    world, endorsers, _ = make("stream")
    slots = world.identity.guest.slots
    Upgrade(world, endorsers).run(void_rounds=True)
    slot_names = [_slot(world.task_sha256, turn) for turn in range(2)]
    assert any(slots.read(name) for name in slot_names)
    with pytest.raises(StateError, match="handed over"):
        world.restart()
    assert [slots.read(name) for name in slot_names] == [None, None]


def test_r392_a_start_before_the_successor_is_in_force_erases_no_stream(make: Make) -> None:
    world, endorsers, _ = make("stream")
    upgrade = Upgrade(world, endorsers)
    world.persist(world.core.begin_hand_over(upgrade.request(void_rounds=True)))
    world.core.commit()
    world.restart()
    request = upgrade.request(void_rounds=True)
    assert world.core.finish_hand_over(request).sealed_streams


def test_r392_no_package_leaves_while_the_keys_of_void_rounds_cannot_be_erased(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, endorsers, _ = make("dpam")
    upgrade = Upgrade(world, endorsers)
    request = upgrade.request(void_rounds=True)
    world.persist(world.core.begin_hand_over(request))

    def full(self: object, names: object) -> None:
        raise StateError("cannot erase")

    with monkeypatch.context() as patch:
        patch.setattr(EmulatedSlots, "erase", full)
        with pytest.raises(StateError, match="cannot erase"):
            world.core.commit()
        with pytest.raises(StateError, match="cannot erase"):
            world.core.finish_hand_over(request)
    assert world.core.finish_hand_over(request).sealed
    assert world.identity.guest.slots.read(world.task_sha256.hex()) is None


def test_r374_a_round_of_secagg_with_survivors_is_never_void(make: Make) -> None:
    """Its devices added the noise, and the host can unmask their sum: no enclave can call that back."""
    world, endorsers, round = make("secagg+", fill=False)
    world.core.announce(world.task_sha256, round, 4, b"s" * 32)
    upgrade = Upgrade(world, endorsers)
    assert world.core.begin_hand_over(upgrade.request(void_rounds=True)) == ()
    world.core.announce(world.task_sha256, round, 0, bytes(32))
    assert world.core.begin_hand_over(upgrade.request(void_rounds=True)) != ()

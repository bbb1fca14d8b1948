"""What enclaves sign about openings of rounds that hand-overs ended, for devices that come back late (R398, R399)."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess
from upgrade_worlds import KINDS

from odp.crypto import domains
from odp.crypto.refusals import MOST_VOIDED, void_holds
from odp.crypto.signing import SigningKey
from odp.errors import OdpError
from odp.evaluation.noise import NoNoise
from odp.trust.enclave.platform import EmulatedPlatform
from tests.hand_overs import NEW, OLD, Endorsers, Upgrade, upgradable
from trusted_aggregator.state.sealed_state import MOST_PAST_VOIDED, VoidedKey

DEVICES = range(4)
STEPS = (
    "asked", "prepared", "the successor is named on the disk", "the successor is named in force", "the key was given",
    "the key was taken", "the records were read", "the records are on the new disk", "the records are in force",
)  # fmt: skip


class _Killed(Exception):
    """All processes die."""


@pytest.fixture
def started(tmp_path: Path) -> tuple[Any, Endorsers]:
    """A world in the middle of round 0, and endorsers of both versions of the code."""
    platform, (world_of, _) = EmulatedPlatform.open(tmp_path / "platform"), KINDS["dpam"]
    world, endorsers = upgradable(lambda **changes: world_of(platform, "people", noise=NoNoise(), **changes))
    for image in (OLD, NEW):
        endorsers.endorse(image, world.policy)
    _fill(world, 0)
    return world, endorsers


def _fill(world: Any, round: int) -> None:
    """Opens a round, in which each device contributes."""
    world.rows.pop((world.task_sha256, round), None)
    world.open(round)
    world.fill(DEVICES, round)


def _upgraded(world: Any, endorsers: Endorsers) -> Any:
    """The world under the other version of the code; open rounds are void."""
    upgrade = Upgrade(world, endorsers, image=OLD if world.guest().image_digest == NEW else NEW)
    return upgrade.move(upgrade.run(void_rounds=True))


def _opening(world: Any, round: int) -> VoidedKey:
    return VoidedKey(world.task_sha256, round, world.round_key(round))


def _voided(world: Any, round: int, openings: Iterable[VoidedKey]) -> list[VoidedKey]:
    """Those of ``openings`` that the enclave signs to be void, with the key of an open round: it signs no others."""
    signed = world.core.round_key(world.task_sha256, round)
    assert signed is not None
    key = world.identity.signing.public
    stated = [
        [opening for opening in openings if void_holds(one, signing_key=key, **opening._asdict())]
        for one in signed.voided
    ]
    assert all(len(one) == 1 for one in stated)
    return [one[0] for one in stated]


def test_r398_what_is_void_stays_signed_once_others_filled_the_round_and_its_task_ended(
    started: tuple[Any, Endorsers],
) -> None:
    """With the key of each later round of the population, after each start, by each enclave that has the population."""
    world, endorsers = started
    voided, counted = [_opening(world, 0)], []
    world = _upgraded(world, endorsers)
    _fill(world, 0)
    world.learn(world.close(0))
    _fill(world, 1)
    assert _voided(world, 1, voided) == voided
    world.restart()
    assert _voided(world, 1, voided) == voided, "after a start"
    voided.append(_opening(world, 1))
    world = _upgraded(world, endorsers)
    for round in range(1, len(world.algorithm.planned_releases())):
        _fill(world, round)
        counted.append(_opening(world, round))
        assert _voided(world, round, [*voided, *counted]) == voided, "after a further hand-over"
        world.learn(world.close(round))
    for name in ("second", "third"):
        world.adopt(world.sign(world.definition(minimum=4, epsilon=0.5, name=name)))
        world.open(0)
        assert _voided(world, 0, [*voided, *counted]) == voided, "with another task of the population"
        voided.append(_opening(world, 0))
        world = _upgraded(world, endorsers)
        world.settle(world.abandon())


def test_r398_a_population_remembers_the_newest_void_openings_and_first_of_all_those_without_a_charge(
    started: tuple[Any, Endorsers],
) -> None:
    world, _ = started
    record = world.core.state.populations[world.population].record
    voided = [VoidedKey(b"t" * 32, number, number.to_bytes(32, "big")) for number in range(MOST_VOIDED + 7)]
    past, others = voided[:100], [one._replace(task_sha256=b"o" * 32) for one in voided[100:200]]
    handed = record.handed_to(None, voided=[*past, *others])
    assert handed.voided == (*past, *others)
    after = handed.after(ledger=record.ledger, abandoned=frozenset([b"t" * 32]))
    assert after.voided == (*past[-MOST_PAST_VOIDED:], *others)
    assert record.handed_to(None, voided=voided).voided == tuple(voided[-MOST_VOIDED:])
    assert dataclasses.replace(handed, voided=()).encode() != handed.encode()


@pytest.mark.parametrize("how", ["its owner ended it", "its owner owns the population no longer"])
def test_r398_the_open_round_of_a_task_that_is_ended_is_void_too_once_that_is_in_force(
    started: tuple[Any, Endorsers], how: str
) -> None:
    world, _ = started
    voided = _opening(world, 0)
    if how == "its owner ended it":
        writes = world.abandon()
    else:
        after = SigningKey.generate()
        writes = world.core.set_charter(world.other_owner(after))
        world.developer = after
    assert world.core.state.populations[world.population].voided == (), "not in force"
    world.settle(writes)
    world.adopt(world.sign(world.definition(minimum=4, epsilon=0.5, name="second")))
    world.open(0)
    assert _voided(world, 0, [voided]) == [voided]
    world.restart()
    assert _voided(world, 0, [voided]) == [voided]


def test_r399_the_end_of_a_task_makes_no_charged_round_void(started: tuple[Any, Endorsers]) -> None:
    world, _ = started
    world.settle(world.charge(0).writes)
    world.settle(world.abandon())
    assert world.core.state.populations[world.population].voided == ()


class _HostileHost:
    """Upgrades, kills, keeps copies and brings old state back; notes what enclaves sign and what they charge."""

    def __init__(self, world: Any, endorsers: Endorsers, seed: int) -> None:
        self.world, self.endorsers, self.random = world, endorsers, random.Random(seed)
        #: Enclaves that were replaced or killed, all of which this host keeps running.
        self.others: list[InProcess] = []
        self.states: list[tuple[dict[str, bytes], dict[Any, list[bytes]]]] = []
        self.void: set[bytes] = set()
        self.charged: set[bytes] = set()

    @property
    def round(self) -> int:
        """The round that is open, or charged, or has to be opened."""
        return len(self.world.broadcasts) - 1

    def note(self) -> None:
        """Takes what every enclave signs now."""
        for core in (self.world.core, *self.others):
            for round in range(self.round + 1):
                signed = core.round_key(self.world.task_sha256, round)
                self.void |= set() if signed is None else {one.hpke_key for one in signed.voided}
        assert not self.void & self.charged

    def step(self) -> None:
        """Does one thing."""
        world = self.world
        self.states.append((dict(world.records), {key: list(rows) for key, rows in world.rows.items()}))
        actions = [self.upgrade, self.copy, self.bring_back, self.charge_late, self.close]
        self.random.choice(actions)()
        self.note()
        if self.world.core.round_key(self.world.task_sha256, self.round) is None:
            _fill(self.world, self.round)
            self.note()

    def copy(self) -> None:
        self.others.append(self.world.core)
        self.world.restart()

    def bring_back(self) -> None:
        """Starts the enclave from old state."""
        newest = self.states[-1]
        try:
            self.world.restart(*self.random.choice(self.states))
        except OdpError:
            self.world.restart(*newest)

    def upgrade(self) -> None:
        """A hand-over to the other code, which dies after any step."""
        world, died = self.world, self.random.choice(STEPS)
        upgrade = Upgrade(world, self.endorsers, image=OLD if world.guest().image_digest == NEW else NEW)

        def kill(step: str) -> None:
            self.note()
            if step == died:
                raise _Killed

        self.others.append(world.core)
        try:
            with contextlib.suppress(_Killed):
                upgrade.run(kill, void_rounds=True)
            if upgrade.stored:
                core = upgrade.restart()
            else:
                world.restart()
                upgrade.launch()
                core = upgrade.run(void_rounds=True)
        except OdpError:  # a charged round has to close first
            world.restart()
            return
        self.world = upgrade.move(core)

    def charge_late(self) -> None:
        """Each enclave that was replaced charges the round that it knows."""
        world = self.world
        for core in self.others:
            for round in range(self.round + 1):
                signed = core.round_key(world.task_sha256, round)
                with contextlib.suppress(OdpError):
                    charged = core.charge(*world.order(round, domains.CLOSE))
                    before = dict(world.records)
                    world.persist(charged.writes)
                    try:
                        core.commit()
                    except OdpError:
                        world.records = before
                        raise
                    if signed is not None:
                        self.charged.add(signed.hpke_key)
        world.restart()

    def end(self) -> None:
        """The task ends, and another one begins."""
        self.world.settle(self.world.abandon())
        self.charge_late()
        self.world.adopt(self.world.sign(self.world.definition(minimum=4, epsilon=0.5, name="second")))
        self.world.open(0)
        self.note()

    def close(self) -> None:
        """The round is charged, and gets its release now or later."""
        signed = self.world.core.round_key(self.world.task_sha256, self.round)
        if signed is not None and self.round < 2:
            self.world.settle(self.world.charge(self.round).writes)
            self.charged.add(signed.hpke_key)
            if self.random.random() < 0.5:
                self.world.learn(self.world.finish(self.round))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_r399_no_enclave_signs_a_key_to_be_void_under_which_something_was_charged(
    started: tuple[Any, Endorsers], seed: int
) -> None:
    """Whatever its host does, at every moment, and whatever it does afterwards."""
    host = _HostileHost(*started, seed)
    host.upgrade()
    for _ in range(12):
        host.step()
    host.end()
    assert host.void
    assert host.charged

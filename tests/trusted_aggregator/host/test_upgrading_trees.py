"""An upgrade of a tree over TLS, with contributions at its leaves (R372)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_programs import SECONDS, Programs
from hand_overs import NEW, OLD, upgradable
from trees import TreeWorld

from odp.errors import ServiceError
from odp.trust.enclave import chip_end
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, common_pb2, hand_over_pb2

LEAVES = ("leaf-0", "leaf-1")


class TreePrograms(Programs):
    """A root with two leaves."""

    def plant(self, root: str, image: str) -> Any:
        """Starts root and leaves; the leaves' folders stay, whatever the version."""
        policy = self.world.policy.as_role("leaf")
        self.leaves = [self.start(name, image, policy=policy) for name in LEAVES]
        return self.start(root, image, leaves=tuple(leaf.control_address for leaf in self.leaves))

    def fell(self, root: Any) -> None:
        for program in (root, *self.leaves):
            program.stop()

    def fill(self, program: Any, round: int, devices: range) -> None:
        for device in devices:
            super().fill(self.leaves[self.world.leaf_of(device, round)], round, range(device, device + 1))


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[TreePrograms]:
    platform = EmulatedPlatform.open(tmp_path / "signing")
    world, endorsers = upgradable(lambda **changes: TreeWorld(platform, "people", **changes))
    endorsers.endorse(NEW, world.policy)
    with contextlib.ExitStack() as stack:
        yield TreePrograms(tmp_path, world, endorsers, stack)


@pytest.fixture
def old(programs: TreePrograms) -> Any:
    """The old programs: round 0 is open, with four contributions at the leaves."""
    running = programs.plant("old", OLD)
    running.orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=programs.world.charter), timeout=SECONDS)
    programs.open(running)
    programs.fill(running, 0, range(4))
    return running


def _contributions(release: common_pb2.SignedRelease) -> int:
    return common_pb2.Release.FromString(release.release).contributions


def test_r372_contributions_at_the_leaves_are_waited_for_and_leaves_know_the_new_root(
    programs: TreePrograms, old: Any
) -> None:
    told: list[tuple[int, int]] = []

    def close(rounds: hand_over_pb2.WaitingRounds) -> None:
        told.append((rounds.rounds, rounds.contributions))
        release = programs.close(old, 0)
        assert _contributions(release) == 4
        programs.world.learn(release.SerializeToString())

    programs.upgrade(old, waiting=close)
    assert told == [(1, 4)]
    programs.fell(old)
    new = programs.plant("new", NEW)
    programs.open(new, 1)
    programs.fill(new, 1, range(4))
    assert _contributions(programs.close(new, 1)) == 4


def test_r372_contributions_at_the_leaves_that_end_with_the_round_are_named_and_count_once(
    programs: TreePrograms, old: Any
) -> None:
    first = programs.key
    with pytest.raises(ServiceError, match=r"1 rounds with 4 contributions did not close .* --void-rounds"):
        programs.upgrade(old, seconds=0.0)
    programs.upgrade(old, seconds=0.0, void_rounds=True)
    programs.fell(old)
    new = programs.plant("new", NEW)
    programs.open(new)
    assert [one.hpke_key for one in programs.signed_key.voided] == [first]
    programs.fill(new, 0, range(1, 5))
    assert _contributions(programs.close(new, 0)) == 4
    assert programs.spent(new) > 0


def test_r382_leaves_tell_the_end_of_their_chips_certificate_too(
    programs: TreePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chip_end, "WARN_DAYS", 8 * 365.0)
    programs.plant("old", OLD)
    until = time.monotonic() + SECONDS
    while programs.log.getvalue().count(" chip_certificate_expires ") < 1 + len(LEAVES):
        assert time.monotonic() < until, programs.log.getvalue()
        time.sleep(0.01)

"""Sessions of SecAgg+ around a hand-over: those that began finish, others wait, numbers of attempts go on (R374)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odp._system.files.state_folder import StateFolder
from odp.crypto.secure_aggregation.session import Configuration
from odp.errors import StateError
from odp.v1 import aggregator_pb2, secagg_service_pb2 as wire
from tests.trusted_aggregator.modes.secagg.test_restarts import CLIENTS, MINIMUM, PACE, World, holds, until
from trusted_aggregator.host.upgrading import _keep
from trusted_aggregator.modes.secagg.rounds import SecAggRounds
from trusted_aggregator.rounds.host_half import ATTEMPTS, read_attempts

PAUSE = 60.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "old")
    made.begin()
    yield made
    made.storage.close()
    made.state.close()


def _next_attempt(world: World, folder: Path) -> int:
    """The number that the first session of the round has at the host of the successor."""
    request = aggregator_pb2.OpenRoundRequest.FromString(world.rounds._rounds[world.key].request)
    world.rounds.keep_attempts()
    history = aggregator_pb2.GetHandOversResponse(attempts=read_attempts(world.state))
    with StateFolder.open(folder, "aggregator") as state:
        _keep(state, history)
        rounds = SecAggRounds(state, world, world.rounds._log, pace=PACE, clock=lambda: 0.0)
        rounds.keep(world.key, request)
        rounds.opened(world.key)
        world.rounds.forget(world.key)
        config = rounds.join(world.key)
        assert config is not None
        return Configuration.open(config).attempt


def test_r374_a_session_that_began_is_under_way_until_it_is_over_and_goes_on_while_others_are_held(
    world: World,
) -> None:
    assert world.rounds.clients_under_way(world.key) == 0
    until(world, holds(world, 2))  # its clients are named
    world.rounds.hold(PAUSE)
    assert world.rounds.clients_under_way(world.key) >= 1
    world.run()
    assert world.rounds.clients_under_way(world.key) == 0
    assert {device.end for device in world.devices} == {wire.SecAggEnd.REASON_DONE}


def test_r374_a_session_that_gathers_does_not_begin_while_it_is_held_and_begins_afterwards(world: World) -> None:
    world.rounds.hold(PAUSE)
    while world.now < PAUSE:
        assert not holds(world, 2)(), "that the first client came, and no more"
        assert world.rounds.clients_under_way(world.key) == 0
        for device in world.devices:
            device.turn(world.rounds)
        world.now += PACE.silent / 2
    world.run()
    assert {device.end for device in world.devices} == {wire.SecAggEnd.REASON_DONE}


def test_r374_a_void_session_is_followed_by_none_while_it_is_held(world: World) -> None:
    until(world, holds(world, 2))
    world.rounds.hold(PAUSE)
    assert world.rounds.clients_under_way(world.key) >= 1
    for device in world.devices[: CLIENTS - MINIMUM + 1]:
        session = world.rounds.session(world.key, 0)
        assert session is not None
        session.leave(device.client.advert.identity, device.token)
    world.now += PACE.vector
    assert world.rounds.clients_under_way(world.key) == 0
    assert world.rounds.join(world.key) is None
    world.now += PAUSE
    assert world.rounds.join(world.key) is not None


def test_r374_the_next_session_has_a_number_that_its_devices_did_not_take_part_in(world: World, tmp_path: Path) -> None:
    """A device reveals its part once for each number: it would refuse one that it took part in."""
    until(world, holds(world, 2))
    session = world.rounds.session(world.key, 0)
    assert session is not None
    session.void("its clients died")
    world.rounds.hold(PAUSE)
    assert world.rounds.clients_under_way(world.key) == 0
    assert _next_attempt(world, tmp_path / "new") == 1


def test_a_session_that_gathered_has_used_up_no_number(world: World, tmp_path: Path) -> None:
    assert world.rounds.join(world.key) is not None
    world.rounds.hold(PAUSE)
    assert _next_attempt(world, tmp_path / "new") == 0


def test_the_numbers_outlive_a_start_of_the_old_host_and_a_damaged_file_is_named(world: World) -> None:
    until(world, holds(world, 2))
    world.rounds.keep_attempts()
    before = list(read_attempts(world.state))
    assert [one.attempts for one in before] == [1]
    world.rounds.forget(world.key)
    world.rounds = world.host()
    world.rounds.keep_only({})
    world.rounds.keep_attempts()
    assert list(read_attempts(world.state)) == before
    world.state.write_atomically(ATTEMPTS, b"\xff\xff\xff")
    with pytest.raises(StateError, match="session-attempts is damaged"):
        read_attempts(world.state)

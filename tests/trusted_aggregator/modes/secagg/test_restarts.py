"""Sessions of SecAgg+ whose host dies at every durable write, and hosts that put an older session back.

Everything runs in one thread, by the tests' own clock: what a host that died had in memory is gone, its store stays.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp._system.files.state_folder import StateFolder
from odp.algorithms.registry import algorithm_for
from odp.crypto import SigningKey, domains
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.session import Configuration
from odp.errors import Busy, PrivacyError, StateError
from odp.signed.task import sign_order, sign_task, task_sha256
from odp.transport.logs import Log
from odp.v1 import aggregator_pb2, secagg_service_pb2 as wire
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.modes.secagg.clients import Phase
from trusted_aggregator.modes.secagg.limits import Pace
from trusted_aggregator.modes.secagg.rounds import SecAggRounds

CLIENTS, MINIMUM = 8, 5
PACE = Pace(step=10.0, vector=20.0, silent=5.0)


class Killed(BaseException):
    """The host's process is gone."""


class Device:
    """A client that answers as a seat does: the same answer again gets the same message again."""

    def __init__(self, key: tuple[bytes, int], config: bytes, vector: np.ndarray, random: Callable[[int], bytes]):
        self.configuration = Configuration.open(config)
        self.client = Client(self.configuration, SigningKey.from_bytes(random(32)), random_bytes=random)
        self.token, self.vector, self.key = random(32), vector, key
        self.said: Any = self.client.advert
        self.next: Any = self.said
        self.answered = b""
        self.end: int | None = None

    def turn(self, rounds: SecAggRounds) -> None:
        """One call; a message that the host had got may be lost with the host."""
        session = rounds.session(self.key, self.configuration.attempt)
        if session is None:
            self.end = wire.SecAggEnd.REASON_VOIDED
            return
        answer = session.step(self.client.advert.identity, self.token, self.next)
        self.next = None
        if answer is None:
            return
        if answer.WhichOneof("answer") == "end":
            self.end = answer.end.reason
        elif answer.wait.repeat:
            self.next = self.said
        else:
            self.next = self.answer(answer)

    def answer(self, answer: wire.StepResponse) -> Any:
        digest = hashlib.sha256(answer.SerializeToString(deterministic=True)).digest()
        if digest != self.answered:
            kind = answer.WhichOneof("answer")
            told = getattr(answer, str(kind))
            acts = {
                "adverts": self.client.reveal, "reveals": self.client.share, "survivors": self.client.agree,
                "inbox": lambda inbox: self.client.mask(inbox, self.vector), "agreements": self.client.unmask,
            }  # fmt: skip
            self.said, self.answered = acts[str(kind)](told), digest
        return self.said


class World:
    """One round with eight clients; the host dies at one of its durable writes."""

    def __init__(self, root: Path) -> None:
        self.state = StateFolder.open(root, "aggregator")
        self.storage = SqliteStorage(self.state)
        self.now, self.writes, self.dies_at, self.charges = 0.0, 0, -1, 0
        #: How far the time of day is off.
        self.shift = 0.0
        self.before = False
        self.rng = np.random.default_rng(5)
        self.log = io.StringIO()

    def begin(self) -> None:
        """A new round, with new clients, at a host that has just started."""
        developer = SigningKey.from_bytes(self.rng.bytes(32))
        definition = odp.Statistics(
            name="asked", queries={"films": odp.Histogram(bins=6)}, privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
            cohort=odp.Cohort(minimum=MINIMUM, goal=CLIENTS, round_seconds=60, aggregation="secagg+"),
        ).definition()  # fmt: skip
        definition.developer_key = developer.public
        signed = sign_task(definition, developer)
        self.key = task_sha256(signed), 0
        order = aggregator_pb2.RoundOrder(task_sha256=self.key[0], round=0, model_sha256=b"m" * 32)
        data, signature = sign_order(order, developer, domains.OPEN)
        request = aggregator_pb2.OpenRoundRequest(task=signed, order=data, signature=signature)
        self.charged, self.writes = False, 0
        self.rounds = self.host()
        self.rounds.keep(self.key, request)
        self.rounds.opened(self.key)
        length = algorithm_for(definition).query(0).grid.size
        self.vectors = self.rng.integers(-9, 9, (CLIENTS, length))
        config = self.rounds.join(self.key)
        assert config is not None
        self.devices = [Device(self.key, config, vector, self.rng.bytes) for vector in self.vectors]

    # The store, as the host sees it
    def add_part(self, task_sha256: bytes, round: int, data: bytes) -> None:
        self.writes += 1
        dies = self.writes == self.dies_at
        if dies and self.before:
            raise Killed
        self.storage.add_part(task_sha256, round, data)
        if dies:
            raise Killed

    def parts(self, task_sha256: bytes, round: int) -> list[bytes]:
        return self.storage.parts(task_sha256, round)

    def erase(self, task_sha256: bytes, round: int) -> None:
        self.storage.erase(task_sha256, round)

    def host(self) -> SecAggRounds:
        log = Log("aggregator", stream=self.log)
        return SecAggRounds(
            self.state, self, log, pace=PACE, clock=lambda: self.now + 1000.0, wall=lambda: self.now + self.shift
        )  # fmt: skip

    def restart(self) -> None:
        self.rounds = self.host()
        self.rounds.restore(self.key, charged=self.charged)

    def close(self) -> np.ndarray | None:
        """Charges and unmasks where the session is ready, as the host's rounds do; the charge outlives the host."""
        session = self.rounds.session(self.key, 0)
        if not self.charged:
            if not self.rounds.survivors(self.key):
                return None
            self.charged_set = self.rounds.require_ready(self.key)
            self.charged, self.charges = True, self.charges + 1
        assert session is not None
        session.allow_unmasking()
        if not all(device.end is not None for device in self.devices):
            return None
        found = self.rounds.take_sum(self.key, None)
        assert found.set_sha256 == self.charged_set.set_sha256
        return np.frombuffer(found.sum, "<i8")

    def run(self, *, kill_after_turn: int = -1) -> np.ndarray:
        """To the end, whatever dies."""
        turns = 0
        for _ in range(200):
            for act in (*(lambda device=device: device.turn(self.rounds) for device in self.devices), self.close):
                turns += 1
                try:
                    found = act()
                except Killed:
                    self.restart()
                    continue
                if turns == kill_after_turn:
                    self.restart()
                elif found is not None:
                    return found
        raise AssertionError("the session never ended")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.storage.close()
    made.state.close()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.slow
def test_a_host_that_dies_at_any_durable_write_goes_on_and_the_sum_is_that_of_everybody(
    world: World, before: bool
) -> None:
    world.begin()
    world.run()
    writes = world.writes
    assert writes == 1 + 5 + 1 + CLIENTS, "the first client, five stages, the charge, and each client's shares"
    for number in range(1, writes + 1):
        world.begin()
        world.dies_at, world.before, world.charges = number, before, 0
        np.testing.assert_array_equal(world.run(), world.vectors.sum(axis=0), str(number))
        assert world.charges == 1
        assert {device.end for device in world.devices} == {wire.SecAggEnd.REASON_DONE}
        world.rounds.forget(world.key)
        assert world.storage.parts(*world.key) == []
    assert "secagg_void" not in world.log.getvalue()


@pytest.mark.slow
def test_a_host_that_dies_between_any_two_calls_goes_on_and_the_sum_is_that_of_everybody(world: World) -> None:
    """Every third of the calls of a session: what a stage had so far is lost, and comes again."""
    for turn in range(1, 8 * (CLIENTS + 1), 3):
        world.begin()
        world.charges = 0
        np.testing.assert_array_equal(world.run(kill_after_turn=turn), world.vectors.sum(axis=0), str(turn))
        assert world.charges == 1


def until(world: World, reached: Callable[[], bool], devices: range = range(CLIENTS)) -> None:
    for _ in range(30):
        if reached():
            return
        for number in devices:
            world.devices[number].turn(world.rounds)
    raise AssertionError("never reached")


def holds(world: World, parts: int) -> Callable[[], bool]:
    return lambda: len(world.storage.parts(*world.key)) >= parts


def test_a_host_that_puts_an_older_session_back_gets_no_second_list_of_survivors_agreed(world: World) -> None:
    """With both lists, a client's mask key and its own mask were both known: its vector would be open."""
    world.begin()
    until(world, holds(world, 4))  # shares are with the host
    old = world.storage.parts(*world.key)
    few = range(CLIENTS - 1)
    until(world, lambda: all(world.devices[number].said.DESCRIPTOR.name == "SecAggMasked" for number in range(CLIENTS)))
    for _ in range(2):
        for number in few:
            world.devices[number].turn(world.rounds)
    world.now += PACE.vector  # the last one's vector did not come in time
    until(world, lambda: all(world.devices[number].client.state.name == "AGREED" for number in few), few)
    world.storage.erase(*world.key)
    for part in old:
        world.storage.add_part(*world.key, part)
    world.restart()
    refused = 0
    for device in world.devices:
        device.next = device.said if device.said.DESCRIPTOR.name == "SecAggMasked" else None
    for _ in range(4):
        for number, device in enumerate(world.devices):
            try:
                device.turn(world.rounds)
            except (PrivacyError, StateError):
                refused += number in few
    assert refused >= CLIENTS - 1, "who agreed on one list answers no other"
    world.now += 10 * PACE.vector
    with pytest.raises(PrivacyError):
        world.rounds.require_ready(world.key)


def test_a_session_whose_clients_did_not_come_back_is_not_charged_and_one_of_too_few_is_void(world: World) -> None:
    world.begin()
    until(world, lambda: world.rounds.survivors(world.key) > 0)
    world.restart()
    assert world.rounds.survivors(world.key) == 0
    with pytest.raises(Busy, match="coming back after a restart"):
        world.rounds.require_ready(world.key)
    for device in world.devices:
        device.turn(world.rounds)
    assert world.rounds.survivors(world.key) == CLIENTS
    world.restart()
    assert world.rounds.survivors(world.key) == 0  # the session is here again
    world.now += PACE.silent
    with pytest.raises(PrivacyError, match="too few of the clients that agreed"):
        world.rounds.require_ready(world.key)


@pytest.mark.parametrize(("away", "alive"), [(15.0, True), (200.0, False)])
def test_time_goes_on_while_the_host_is_down(world: World, away: float, alive: bool) -> None:
    world.begin()
    until(world, holds(world, 2))  # everybody knows who is in the session
    world.now += away
    world.restart()
    session = world.rounds.session(world.key, 0)
    assert (session is not None and session.phase is Phase.RUNNING) == alive
    if alive:
        world.now += PACE.silent
        world.rounds.join(world.key)
        assert world.rounds.session(world.key, 0) is None, "a restart gives clients a moment, and no more"


@pytest.mark.parametrize("parts", range(1, 6), ids=lambda parts: f"{parts} stored parts")
def test_r379_a_clock_that_was_set_back_makes_no_stage_of_a_session_longer(world: World, parts: int) -> None:
    world.begin()
    until(world, holds(world, parts), range(1 if parts == 1 else CLIENTS))
    world.shift = -86_400.0
    world.restart()
    assert world.rounds.session(world.key, 0) is not None
    # Nobody comes back: what is left ends within the longest of its times, or gathers clients as before.
    world.now += max(PACE.vector, 60.0)
    session = world.rounds.session(world.key, 0)
    if parts == 1:
        assert session is not None
        assert session.gathering
        # Fewer than the goal begin at once: the first one's patience is over.
        for number in (*range(CLIENTS - 1), *range(CLIENTS - 1)):
            world.devices[number].turn(world.rounds)
        assert not session.gathering
    elif session is not None:
        with pytest.raises(PrivacyError, match="too few of the clients that agreed"):
            world.rounds.require_ready(world.key)


def test_r384_a_round_whose_devices_die_after_their_vectors_uses_up_its_attempts(world: World) -> None:
    """A device that made its vector joins no further session, so that nobody comes to the attempts that follow."""
    world.begin()
    until(world, lambda: all(device.said.DESCRIPTOR.name == "SecAggMasked" for device in world.devices))
    for _ in range(4 * 600):
        world.now += 10.0
        if world.rounds.failure(world.key):
            break
    assert "its 4 sessions ended without a sum (the last: too few devices came to it" in world.rounds.failure(world.key)
    assert world.now < 4000.0


def test_the_first_session_of_a_round_gathers_its_devices_for_as_long_as_it_takes(world: World) -> None:
    world.begin()
    for _ in range(100):
        world.now += 86_400.0
        assert world.rounds.join(world.key) is not None
    assert world.rounds.failure(world.key) == ""


def test_a_charged_round_whose_stored_session_is_gone_has_no_sum_and_no_other_session(world: World) -> None:
    world.begin()
    until(world, lambda: world.rounds.survivors(world.key) > 0)
    world.charged = True
    world.storage.erase(*world.key)
    world.restart()
    with pytest.raises(PrivacyError, match="round 0 is void: its session is gone; its charge stays"):
        world.rounds.take_sum(world.key, None)
    assert world.rounds.join(world.key) is None

"""Several distributors of one server: which of them devices are told, and what happens where one fails."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from odp.errors import ServiceError, ServiceUnavailable
from odp.signed.task import task_sha256
from odp.transport.logs import Log
from odp.v1 import common_pb2
from server.distributors import AGAIN_SECONDS, Copy, Distributors
from server.storage import PublishedModel

TASK, OTHER = (common_pb2.SignedTask(definition=bytes([number])) for number in (1, 2))
MODEL = common_pb2.SignedManifest(manifest=b"m")
KEY = task_sha256(TASK)


class Held:
    """A distributor that keeps what it takes, or fails."""

    def __init__(self) -> None:
        self.models: list[bytes] = []
        self.forgotten: list[bytes] = []
        self.fails = False
        self.fails_after = -1

    def publish(self, task: Any, model: Any, tables: bytes | Iterator[bytes]) -> None:
        self._require_alive()
        taken: list[bytes] = []
        for chunk in [tables] if isinstance(tables, bytes) else tables:
            if len(taken) == self.fails_after:
                raise ServiceUnavailable("the disk is full")
            taken.append(chunk)
        self.models.append(b"".join(taken))

    def forget_task(self, order: bytes, signature: bytes) -> None:
        self._require_alive()
        self.forgotten.append(order)

    def _require_alive(self) -> None:
        if self.fails:
            raise ServiceUnavailable("nobody is there")


class Three:
    def __init__(self) -> None:
        self.held = [Held(), Held(), Held()]
        self.now = 0.0
        self.logged = io.StringIO()
        copies = [Copy(f"host-{number}:1", one) for number, one in enumerate(self.held)]
        self.all = Distributors(copies, Log("server", stream=self.logged), monotonic=lambda: self.now)


@pytest.fixture
def three() -> Three:
    return Three()


def test_devices_are_told_all_in_turn(three: Three) -> None:
    three.all.publish(TASK, MODEL, b"rows")
    assert [one.models for one in three.held] == [[b"rows"]] * 3
    told = [three.all.one_holding(KEY) for _ in range(6)]
    assert told == [f"host-{number}:1" for number in (0, 1, 2, 0, 1, 2)]
    assert not three.all.lagging()


def test_one_that_fails_is_passed_over_and_tried_again(three: Three) -> None:
    three.held[1].fails = True
    three.all.publish(TASK, MODEL, b"rows")
    assert three.all.holding(KEY) == ("host-0:1", "host-2:1")
    assert "distributor_lacks_model" in three.logged.getvalue()
    assert three.all.holding(task_sha256(OTHER)) == ("host-0:1", "host-1:1", "host-2:1")

    three.held[1].fails = False
    three.all.publish(OTHER, MODEL, b"other")
    assert three.held[1].models == [], "it rests, and no round waits for it"
    assert not three.all.lagging()

    three.now += AGAIN_SECONDS
    assert three.all.lagging()
    three.all.publish(TASK, MODEL, b"rows")
    assert three.all.holding(KEY) == ("host-0:1", "host-1:1", "host-2:1")
    assert three.all.lagging(), "it still lacks the model of the other task"
    three.all.publish(OTHER, MODEL, b"other")
    assert three.held[1].models == [b"rows", b"other"]
    assert not three.all.lagging()


def test_a_model_that_nobody_took_is_an_error_and_all_are_tried_next_time(three: Three) -> None:
    for one in three.held:
        one.fails = True
    with pytest.raises(ServiceUnavailable, match="nobody is there"):
        three.all.publish(TASK, MODEL, b"rows")
    assert len(three.all.holding(KEY)) == 3, "devices are told somebody"
    for one in three.held:
        one.fails = False
    three.all.publish(TASK, MODEL, b"rows")
    assert [one.models for one in three.held] == [[b"rows"]] * 3


def test_a_stream_reaches_all_or_is_an_error(three: Three) -> None:
    chunks = [bytes([number]) * 1000 for number in range(50)]
    three.all.publish(TASK, MODEL, iter(chunks))
    assert [one.models for one in three.held] == [[b"".join(chunks)]] * 3
    three.held[2].fails_after = 3
    with pytest.raises(ServiceUnavailable, match="disk is full"):
        three.all.publish(TASK, MODEL, iter(chunks))
    assert len(three.held[0].models) == 2, "the others took all of it"


def test_a_stream_that_breaks_is_taken_by_nobody(three: Three) -> None:
    def broken() -> Iterator[bytes]:
        yield b"first"
        raise ServiceError("the developer went away")

    with pytest.raises(ServiceError, match="the developer went away"):
        three.all.publish(TASK, MODEL, broken())
    assert [one.models for one in three.held] == [[]] * 3


def test_a_task_is_forgotten_everywhere_or_again(three: Three) -> None:
    three.held[0].fails = True
    with pytest.raises(ServiceUnavailable):
        three.all.forget_task(b"order", b"")
    assert [one.forgotten for one in three.held] == [[], [b"order"], [b"order"]]


def test_check_ins_are_spread_over_those_that_hold_the_model(world: Any, definition: Any) -> None:
    held = ["a.example:7201", "b.example:7201"]
    world.submit(definition)
    board = world.board(distributors=lambda task: tuple(held))
    world.run(world.driver(board=board))
    told = [board.answer("viewers").assignment.distributor_address for _ in range(4)]
    assert sorted(told[:2]) == sorted(told[2:]) == held
    del held[0]
    board.refresh()
    assert {board.answer("viewers").assignment.distributor_address for _ in range(4)} == set(held)


def test_models_are_told_with_all_that_hold_them(world: Any, definition: Any) -> None:
    held = ["a.example:7201", "b.example:7201"]
    world.submit(definition)
    world.storage.published_models = lambda: [PublishedModel("viewers", TASK, MODEL)]
    board = world.board(distributors=lambda task: tuple(held) if task == KEY else ())
    assert {board.model("viewers").distributor_address for _ in range(4)} == set(held)

"""When devices come back that find no open round: a window that follows from public times alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from odp.v1 import common_pb2
from server.board import LATER, NEXT, NEXT_SECONDS, SOON, Addresses, Board
from server.rounds import SETTLED_SECONDS
from server.storage import OpenRound


class _Rounds:
    """A board, and the rounds that its storage has now."""

    def __init__(self) -> None:
        self.now = 100.0
        self.open: list[OpenRound] = []
        storage: Any = SimpleNamespace(open_rounds=lambda: list(self.open), published_models=list)
        addresses = Addresses(lambda task: ("distributor.example:7201",), "aggregator.example:7202")
        self.board = Board(cast("Any", storage), addresses=addresses, monotonic=lambda: self.now)

    def set(self, round: int | None, *, paused: bool = False) -> None:
        model = None if round is None else common_pb2.SignedManifest()
        self.open = [OpenRound("people", common_pb2.SignedTask(), round, model, paused=paused)]
        self.board.refresh()

    @property
    def window(self) -> tuple[int, int]:
        retry = self.board.answer("people").retry
        return retry.min_seconds, retry.max_seconds


@pytest.fixture
def rounds() -> _Rounds:
    return _Rounds()


def test_a_device_comes_back_sooner_for_a_moment_after_a_round_closed(rounds: _Rounds) -> None:
    rounds.set(0)
    assert rounds.board.answer("people").HasField("assignment")
    rounds.set(None)
    assert rounds.window == NEXT
    rounds.now += NEXT_SECONDS / 2
    rounds.board.refresh()
    assert rounds.window == NEXT, "a change of something else"
    rounds.now += NEXT_SECONDS / 2
    assert rounds.window == SOON
    rounds.board.refresh()
    assert rounds.window == SOON, "a step that takes longer is not asked for as often"
    rounds.set(1)
    assert rounds.board.answer("people").assignment.round == 1
    rounds.set(None)
    assert rounds.window == NEXT


def test_a_round_that_this_server_did_not_see_open_is_not_about_to_be_followed_by_one(rounds: _Rounds) -> None:
    assert rounds.window == LATER
    assert rounds.board.answer("people").retry.without_task
    rounds.set(None)
    assert rounds.window == SOON
    assert not rounds.board.answer("people").retry.without_task, "the last release may still be made"
    rounds.set(None, paused=True)
    assert rounds.window == LATER
    assert not rounds.board.answer("people").retry.without_task, "it may still be made then, too"


def test_a_device_of_the_round_before_asks_within_the_least_time_that_a_round_waits_for_it() -> None:
    assert NEXT[1] < SOON[1] < SETTLED_SECONDS

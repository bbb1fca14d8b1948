"""Places to receive requests in: silent callers push each other, and no place is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from odp.errors import Busy
from odp.transport.dispatcher import Reception
from odp.transport.limits import Limits

FOUR = Limits(request_bytes=2**20, receiving_bytes=4 * 2**20, queued_bytes=2**20, share_of_address=1.0, arrived=8)


class OneCall:
    """A call that is received once ``here`` is set, and ends as its front would end it."""

    def __init__(self, connection: str) -> None:
        self.connection, self.address = connection, "a"
        self.here = asyncio.Event()
        self.received = False
        self.task: asyncio.Task[None] | None = None

    def end_now(self, error: Exception) -> None:
        assert isinstance(error, Busy)
        assert self.task is not None
        self.task.cancel()

    def start(self, reception: Any) -> OneCall:
        self.task = asyncio.get_running_loop().create_task(self._receive(reception))
        return self

    async def _receive(self, reception: Any) -> None:
        try:
            await reception.enter(self)
            await self.here.wait()
            self.received = True
        finally:
            reception.leave(self)

    @property
    def over(self) -> bool:
        assert self.task is not None
        return self.task.done()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def _on_a_loop(scene: Callable[[Reception], Awaitable[None]], limits: Limits = FOUR) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        await scene(Reception(loop, limits, lambda: Busy("busy", 1.0, 2.0)))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await _settle()

    asyncio.run(play())


def test_a_newcomer_gets_a_place_while_silent_connections_hold_all() -> None:
    async def scene(reception: Reception) -> None:
        silent = [OneCall(str(number // 4)).start(reception) for number in range(12)]
        await _settle()
        honest = OneCall("honest").start(reception)
        honest.here.set()
        await _settle()
        assert honest.received
        assert sum(call.over for call in silent) <= 3, "the calls that wait push nobody"

    _on_a_loop(scene)


def test_the_next_call_of_a_connection_follows_when_one_is_received() -> None:
    async def scene(reception: Reception) -> None:
        calls = [OneCall("one").start(reception) for _ in range(6)]
        for call in calls:
            call.here.set()
        await _settle()
        assert all(call.received for call in calls)

    _on_a_loop(scene)


def test_a_call_that_waits_too_long_is_told_to_come_back() -> None:
    async def scene(reception: Reception) -> None:
        calls = [OneCall("one").start(reception) for _ in range(3)]
        assert calls[2].task is not None
        error = (await asyncio.gather(calls[2].task, return_exceptions=True))[0]
        assert isinstance(error, Busy)

    _on_a_loop(scene, Limits(queue_seconds=0.05))


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(st.sampled_from(["come", "send", "leave"]), st.integers(0, 5)), max_size=40))
def test_whatever_callers_do_no_place_is_lost(steps: list[tuple[str, int]]) -> None:
    async def scene(reception: Reception) -> None:
        calls: list[OneCall] = []
        for step, number in steps:
            if step == "come":
                calls.append(OneCall(str(number)).start(reception))
            elif calls:
                call = calls[number % len(calls)]
                if step == "send":
                    call.here.set()
                elif call.task is not None:
                    call.task.cancel()
                    continue  # what follows may come in the same moment
            await _settle()
        for call in calls:
            call.here.set()
        await _settle()
        assert all(call.over for call in calls)
        last = OneCall("last").start(reception)
        last.here.set()
        await _settle()
        assert last.received

    _on_a_loop(scene)

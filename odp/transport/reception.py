"""A limit on the calls that are received at once: each may take memory up to its size limit.

A newcomer gets a place at once where its connection has few. Where all places are taken, the connection with the most
gives up the one that it has held longest: silent callers push each other, while a request that is really on its way
takes moments. Further calls of a connection wait for a place that becomes free: they push nobody and cost little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from odp.errors import Busy
from odp.transport.call import Call
from odp.transport.fairness import Fair
from odp.transport.limits import Limits


class Reception:
    """The places of a listener; use it only on the loop's thread. ``busy`` is the error for calls without a place."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, busy: Callable[[], Busy]) -> None:
        self._loop = loop
        self._limits = limits
        self._busy = busy
        self._receiving: Fair[Call] = Fair(
            most=limits.receiving, most_of_address=limits.of_address(limits.receiving), newest=False
        )
        self._arrived: Fair[Call] = Fair(
            most=limits.arrived, most_of_address=limits.of_address(limits.arrived), newest=True
        )
        self._places: dict[Call, asyncio.Future[None]] = {}

    async def enter(self, call: Call) -> None:
        """Waits for a place; ``leave`` comes in any case. Raises Busy; a call that loses its place later ends so."""
        connection = call.connection
        few = self._receiving.of_connection(connection) < self._limits.receiving_per_connection
        if few and not self._arrived.of_connection(connection):
            self._receive(call)
            return
        self._places[call] = place = self._loop.create_future()
        evicted = self._arrived.add(call)
        if evicted is not None and not (lost := self._places.pop(evicted)).done():
            lost.set_exception(self._busy())
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await place
        except TimeoutError:
            raise self._busy() from None
        finally:
            if self._arrived.discard(call):
                del self._places[call]

    def leave(self, call: Call) -> None:
        """Ends the reception of a call, which may have no place any more, or not yet."""
        # A place that somebody else took is not free.
        if self._receiving.discard(call):
            self._pass_on(call.connection)

    def _receive(self, call: Call) -> None:
        evicted = self._receiving.add(call)
        if evicted is not None:
            evicted.end_now(self._busy())

    def _pass_on(self, connection: str) -> None:
        while (following := self._arrived.take_of(connection) or self._arrived.take()) is not None:
            place = self._places.pop(following)
            if not place.done():  # otherwise its caller has just gone, and the place is for the next one
                self._receive(following)
                place.set_result(None)
                return

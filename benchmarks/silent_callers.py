"""A program that plays hostile callers of one service; ``benchmarks.silent.Attackers`` starts it.

``python silent_callers.py ADDRESS CA CONNECTIONS CALLS METHOD[,METHOD..] [IDENTITY]`` answers the lines of its stdin:

- ``silence``: on every connection open CALLS calls that never send their request; what ends is opened again, a few
  thousand times at most
- ``pause``: cancel them all
- ``flood COUNT BYTES METHOD``: send COUNT calls at once, each with a request of BYTES bytes, and count their ends
"""

from __future__ import annotations

import asyncio
import collections
import sys
from pathlib import Path
from typing import Any

import grpc.aio

REOPENINGS = 4000
PAUSE_SECONDS = 0.5
CALL_SECONDS = 600.0


class Callers:
    def __init__(
        self, address: str, ca: bytes, connections: int, calls: int, methods: list[str], shown: bytes | None
    ) -> None:
        credentials = grpc.ssl_channel_credentials(ca, shown, shown)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels = [grpc.aio.secure_channel(address, credentials, options=options) for _ in range(connections)]
        self.calls, self.methods = calls, methods
        self.tasks: list[asyncio.Task[None]] = []
        self.left = 0

    async def silence(self) -> str:
        self.left = REOPENINGS
        for channel in self.channels:
            await channel.channel_ready()
        opened = asyncio.Semaphore(0)
        for channel in self.channels:
            for number in range(self.calls):
                method = self.methods[number % len(self.methods)]
                self.tasks.append(asyncio.create_task(self._keep_open(channel, method, opened)))
        for _ in self.tasks:
            await opened.acquire()
        return "silent"

    async def pause(self) -> str:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        return "paused"

    async def flood(self, count: int, size: int, method: str) -> str:
        message = bytes(size)
        ends: collections.Counter[str] = collections.Counter()

        async def one(number: int) -> None:
            call: Any = self.channels[number % len(self.channels)].unary_unary(method)
            try:
                await call(message, timeout=60.0)
                ends["OK"] += 1
            except grpc.aio.AioRpcError as error:
                ends[error.code().name] += 1

        await asyncio.gather(*(one(number) for number in range(count)))
        return " ".join(f"{code}={number}" for code, number in sorted(ends.items()))

    async def _keep_open(self, channel: grpc.aio.Channel, method: str, opened: asyncio.Semaphore) -> None:
        first = True
        while self.left:
            self.left -= 1
            call: Any = channel.stream_unary(method)(timeout=CALL_SECONDS)
            if first:
                opened.release()
                first = False
            try:
                await call
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                call.cancel()


async def main() -> None:
    address, ca, connections, calls, methods, *shown = sys.argv[1:]
    identity = Path(shown[0]).read_bytes() if shown else None
    callers = Callers(address, Path(ca).read_bytes(), int(connections), int(calls), methods.split(","), identity)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, *given = line.split()
        if order == "flood":
            answer = await callers.flood(int(given[0]), int(given[1]), given[2])
        else:
            answer = await getattr(callers, order)()
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())

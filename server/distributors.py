"""The distributors of a server: copies of one service, each with an enclave of its own, that hold the same models.

A device is told one of them, in turn, of those that hold what it needs, and stays with it for a round: what it seals is
for one enclave. A distributor that does not take a model is passed over, and tried again.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from odp.errors import OdpError, ServiceUnavailable
from odp.signed.task import task_sha256
from odp.transport.logs import Log, short
from odp.v1 import common_pb2
from server.clients import Distributor

#: Seconds after which a distributor that failed is tried again; a round does not wait for it before.
AGAIN_SECONDS = 20.0
# Chunks of a table that one distributor may be behind the others.
_CHUNKS_BEHIND = 4


class Copy(NamedTuple):
    """A distributor at ``address``, host:port as devices reach it."""

    address: str
    distributor: Distributor


class Distributors:
    """Implements ``server.clients.Distributor`` with several. Thread-safe.

    Args:
      copies: one or more.
      log: says which of them lack something.
      monotonic: seconds.
    """

    def __init__(self, copies: Sequence[Copy], log: Log, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._copies = tuple(copies)
        self._log = log
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Of each address: tasks whose newest model it may lack, and until when it is not tried.
        self._lacks: dict[str, set[bytes]] = {copy.address: set() for copy in copies}
        self._rests_until: dict[str, float] = {}
        self._address_turn = itertools.count()

    def holding(self, task: bytes) -> tuple[str, ...]:
        """The addresses of those that hold the newest model of a task (its SHA-256), as far as is known; never none."""
        with self._lock:
            addresses = tuple(copy.address for copy in self._copies if task not in self._lacks[copy.address])
        return addresses or tuple(copy.address for copy in self._copies)

    def one_holding(self, task: bytes) -> str:
        """One of ``holding``, in turn."""
        addresses = self.holding(task)
        return addresses[next(self._address_turn) % len(addresses)]

    def lagging(self) -> bool:
        """Whether one of them lacks a model, and should be tried again now."""
        now = self._monotonic()
        with self._lock:
            return any(lacks and self._rests_until.get(address, 0.0) <= now for address, lacks in self._lacks.items())

    def publish(
        self, task: common_pb2.SignedTask, model: common_pb2.SignedManifest, tables: bytes | Iterator[bytes]
    ) -> None:
        """Publishes to all: bytes are taken where one of them took them, a stream where all did.

        Raises as ``DistributorClient.publish``, with the first one's error, where that is not so.
        """
        if len(self._copies) == 1:
            self._copies[0].distributor.publish(task, model, tables)
        elif isinstance(tables, bytes):
            self._publish_bytes(task, model, tables)
        else:
            self._publish_stream(task, model, tables)

    def forget_task(self, order: bytes, signature: bytes) -> None:
        """Drops the models everywhere. Raises as one of them does: then it is to be done again."""
        failures = self._each(self._copies, lambda copy: copy.distributor.forget_task(order, signature))
        for error in failures.values():
            raise error

    def _publish_bytes(self, task: common_pb2.SignedTask, model: common_pb2.SignedManifest, tables: bytes) -> None:
        key, now = task_sha256(task), self._monotonic()
        with self._lock:
            resting = {address for address, until in self._rests_until.items() if until > now}
        tried = [copy for copy in self._copies if copy.address not in resting] or list(self._copies)
        failures = self._each(tried, lambda copy: copy.distributor.publish(task, model, tables))
        with self._lock:
            for copy in self._copies:
                if copy in tried and copy.address not in failures:
                    self._lacks[copy.address].discard(key)
                    self._rests_until.pop(copy.address, None)
                else:
                    self._lacks[copy.address].add(key)
            for address in failures:
                self._rests_until[address] = self._monotonic() + AGAIN_SECONDS
        if len(failures) == len(tried):
            raise failures[tried[0].address]
        for address, error in failures.items():
            self._log.warning("distributor_lacks_model", address=address, task=short(key), reason=str(error))

    def _publish_stream(
        self, task: common_pb2.SignedTask, model: common_pb2.SignedManifest, tables: Iterator[bytes]
    ) -> None:
        # No distributor reads the source itself: each takes what it can, and the slowest says how fast.
        streams = {copy.address: _Stream() for copy in self._copies}

        def send(copy: Copy) -> None:
            stream = streams[copy.address]
            with contextlib.closing(stream):
                copy.distributor.publish(task, model, iter(stream))

        with ThreadPoolExecutor(max_workers=len(self._copies)) as threads:
            sent = [threads.submit(send, copy) for copy in self._copies]
            broken: BaseException | None = None
            try:
                for chunk in tables:
                    for stream in streams.values():
                        stream.put(chunk)
            except BaseException as error:
                broken = error
            for stream in streams.values():
                stream.end(broken)
            failures = [error for error in (future.exception() for future in sent) if error is not None]
        if broken is not None:
            raise broken
        for failure in failures:
            raise failure

    def _each(self, copies: Sequence[Copy], work: Callable[[Copy], None]) -> dict[str, OdpError]:
        """The failures of ``work``, which runs for all copies at once, by address."""

        def attempt(copy: Copy) -> OdpError | None:
            try:
                work(copy)
            except OdpError as error:
                return error
            return None

        with ThreadPoolExecutor(max_workers=len(copies)) as threads:
            failures = list(threads.map(attempt, copies))
        return {copy.address: error for copy, error in zip(copies, failures, strict=True) if error is not None}


class _Stream:
    """Chunks from one thread to another, a few at a time; closed by the one that takes them."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[bytes | BaseException | None] = queue.Queue(_CHUNKS_BEHIND)
        self._closed = threading.Event()

    def put(self, chunk: bytes) -> None:
        """Waits for room; drops the chunk where nobody takes any more."""
        self._put(chunk)

    def end(self, error: BaseException | None) -> None:
        """The stream is complete, or ends with ``error``."""
        self._put(error)

    def close(self) -> None:
        self._closed.set()

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            if isinstance(chunk, BaseException):
                raise ServiceUnavailable("the table's bytes ended early; publish it again") from chunk
            yield chunk

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._chunks.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

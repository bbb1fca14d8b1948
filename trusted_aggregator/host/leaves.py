"""The leaves of a tree, as the host of the root orders them: opened, counted, closed, erased; and one that died, later.

Whatever a leaf misses while it is down, it gets when it answers again: every second the root asks each leaf what it
holds, and gives it the rounds that it lacks. A leaf that does not answer when a round closes is waited for; after
``grace_seconds`` the round closes without it, where the minimum of the round allows.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from odp.errors import Busy, OdpError, PrivacyError, StateError
from odp.transport.channel import LONG_DEADLINE, call, read_stream
from odp.transport.logs import Log, short
from odp.v1 import aggregator_pb2, leaf_pb2, leaf_pb2_grpc
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import SealedContribution, Status
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.rounds.host_half import Key

#: How long a round that could close waits for a leaf that does not answer.
GRACE_SECONDS = 60.0
_Reply = TypeVar("_Reply")

# For a leaf that takes back what its host stored.
_OPEN_SECONDS = 120.0
_ASK_SECONDS = 5.0
_SYNC_SECONDS = 1.0
# Of 1 MiB each.
_PIECES_TOGETHER = 16
# After which a server may ask again to close a round that waits for a leaf.
_AGAIN_SECONDS = 1.0, 3.0


class LeafClient:
    """The control listener of one leaf, at ``address``. Raises ServiceError, ServiceUnavailable, Busy."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self.address = address
        self._stub = leaf_pb2_grpc.LeafServiceStub(channel)

    def greet(self, nonce: bytes) -> leaf_pb2.GreetResponse:
        """Evidence over ``nonce``, and the leaf's own nonce."""
        request = leaf_pb2.GreetRequest(nonce=nonce)
        return self._call(self._stub.Greet, request, "get the evidence of a leaf", _ASK_SECONDS)

    def open_part(self, delegation: leaf_pb2.Delegation) -> None:
        """Gives it its part of a round; returns once it took back what its host stored."""
        request = leaf_pb2.OpenPartRequest(delegation=delegation)
        self._call(self._stub.OpenPart, request, "open a round at a leaf", _OPEN_SECONDS)

    def parts(self, root: bytes, leaf: int, wanted: Sequence[Key]) -> dict[Key, int]:
        """Number of contributions of each part that it holds; it erases all others than ``kept``."""
        request = leaf_pb2.ListPartsRequest(
            root=root, leaf=leaf,
            kept=[aggregator_pb2.GetRoundRequest(task_sha256=task, round=round) for task, round in wanted],
        )  # fmt: skip
        reply: leaf_pb2.ListPartsResponse = self._call(
            self._stub.ListParts, request, "ask a leaf what it holds", _ASK_SECONDS
        )
        return {(part.task_sha256, part.round): part.contributions for part in reply.parts}

    def close_part(self, key: Key) -> Iterator[bytes]:
        """Closes its part of a round: the pieces of its sealed sum."""
        request = leaf_pb2.ClosePartRequest(task_sha256=key[0], round=key[1])
        what = "close a round at a leaf"
        replies = call(self._stub.ClosePart, request, timeout=LONG_DEADLINE, what=what, address=self.address)
        return (piece.data for piece in read_stream(replies, what=what, address=self.address))

    def _call(self, method: Callable[..., _Reply], request: object, what: str, timeout: float) -> _Reply:
        return call(method, request, timeout=timeout, what=what, address=self.address)


@dataclass
class _Leaf:
    """One leaf; ``lock`` is held during each exchange with it, so that none erases what another just opened."""

    number: int
    client: LeafClient
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[Key, int] = field(default_factory=dict)
    #: Why it did not answer last; empty if it did.
    trouble: str = ""


class TreeLeaves:
    """Implements ``trusted_aggregator.modes.tree.host_half.Leaves``. Thread-safe.

    Args:
        core: the enclave of the root.
        storage: where the sums of the leaves are kept until their round is released.
        clients: one for each leaf, in the order of their numbers: the same at every start.
        root: 32 random bytes that name this host's state.
        log: where leaves come and go.
        failed: called where a sum could not be stored: the program has to stop.
        grace_seconds: how long a round that could close waits for a leaf.
        monotonic: seconds that never go back.
    """

    def __init__(
        self, core: AggregatorCalls, storage: Storage, clients: Sequence[LeafClient], *, root: bytes, log: Log,
        failed: Callable[[StateError], None], grace_seconds: float = GRACE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._core, self._storage, self._root, self._log = core, storage, root, log
        self._failed, self._grace, self._monotonic = failed, grace_seconds, monotonic
        self._leaves = [_Leaf(number, client) for number, client in enumerate(clients)]
        self._closing = threading.Lock()
        self._missing_since: dict[Key, float] = {}
        self._stop, self._wake = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(leaf,), name=f"leaf-{leaf.number}", daemon=True)
            for leaf in self._leaves
        ]

    def start(self) -> None:
        """Begins to watch the leaves."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the watch. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def sync(self) -> None:
        """Asks every leaf once what it holds, and gives it what it lacks."""
        self._each(self._sync)

    def open(self, key: Key) -> None:
        self._each(lambda leaf: self._delegate(leaf, key))

    def contributions(self, key: Key) -> int:
        self._each(self._count)
        return sum(leaf.counts.get(key, 0) for leaf in self._leaves)

    def close(self, key: Key, order: bytes, signature: bytes) -> None:
        with self._closing:
            if not self._check_close(order, signature, self.contributions(key)):
                return  # charged before
            # One after the other: a sum can be large.
            missing = [leaf for leaf in self._leaves if not self._tried(leaf, lambda leaf: self._hand_in(leaf, key))]
            if missing:
                self._require_enough(key, order, signature, missing)
            self._missing_since.pop(key, None)

    def forget(self, key: Key) -> None:
        for leaf in self._leaves:
            leaf.counts.pop(key, None)
        self._wake.set()

    def _hand_in(self, leaf: _Leaf, key: Key) -> None:
        """Brings a leaf's sum to the enclave, and stores it. Raises ServiceError, StateError where it is not whole."""
        waiting: list[SealedContribution] = []
        whole = False
        for piece in leaf.client.close_part(key):
            whole = self._core.give_part(leaf_pb2.GivePart(task_sha256=key[0], round=key[1], piece=piece)).yes
            waiting.append(SealedContribution(*key, piece))
            if len(waiting) >= _PIECES_TOGETHER:
                self._store(waiting)
                waiting = []
        self._store(waiting)
        if not whole:
            raise StateError(f"the sum of leaf {leaf.number} ended early; it is asked for again")

    def _store(self, pieces: Sequence[SealedContribution]) -> None:
        try:
            self._storage.add(pieces)
        except StateError as error:
            self._failed(error)
            raise

    def _check_close(self, order: bytes, signature: bytes, contributions: int) -> bool:
        """Whether the leaves have to close their parts of a round. Raises as ``Tree.check_close``."""
        request = leaf_pb2.CheckClose(order=order, signature=signature, contributions=contributions)
        return self._core.check_close(request).yes

    def _require_enough(self, key: Key, order: bytes, signature: bytes, missing: Sequence[_Leaf]) -> None:
        """Returns if a round may close without these leaves. Raises Busy otherwise."""
        since = self._missing_since.setdefault(key, self._monotonic())
        names = ", ".join(f"{leaf.number} ({leaf.client.address}: {leaf.trouble or 'no sum'})" for leaf in missing)
        left = self._grace - (self._monotonic() - since)
        try:
            self._check_close(order, signature, 0)
        except PrivacyError as error:
            raise Busy(f"{error}; it waits for leaf {names}", *_AGAIN_SECONDS) from error
        if left > 0:
            raise Busy(f"round {key[1]} waits {left:.0f} s more for leaf {names}", *_AGAIN_SECONDS)
        self._log.warning("leaf_left_out", task=short(key[0]), round=key[1], leaves=names)

    def _each(self, do: Callable[[_Leaf], object]) -> None:
        """``do`` for every leaf at once."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(self._leaves)) as pool:
            for _ in pool.map(lambda leaf: self._tried(leaf, do), self._leaves):
                pass

    def _tried(self, leaf: _Leaf, do: Callable[[_Leaf], object]) -> bool:
        """Whether ``do`` did it; its error is logged once, and kept for whoever waits for the leaf."""
        try:
            with leaf.lock:
                do(leaf)
        except OdpError as error:
            if leaf.trouble != str(error):
                self._log.warning("leaf_fails", leaf=leaf.number, address=leaf.client.address, reason=str(error))
            leaf.trouble = str(error)
            return False
        if leaf.trouble:
            self._log.event("leaf_answers", leaf=leaf.number, address=leaf.client.address)
            leaf.trouble = ""
        return True

    def _delegate(self, leaf: _Leaf, key: Key) -> None:
        greeting = leaf.client.greet(self._core.leaf_nonce(leaf_pb2.AskLeafNonce(leaf=leaf.number)).nonce)
        part = leaf_pb2.DelegateRound(task_sha256=key[0], round=key[1], leaf=leaf.number, greeting=greeting)
        leaf.client.open_part(self._core.delegate(part))
        leaf.counts.setdefault(key, 0)

    def _kept(self) -> dict[Key, Status]:
        return {
            (state.task_sha256, state.round): state.status
            for state in self._core.round_states()
            if state.status in (Status.OPEN, Status.CHARGED)
        }

    def _count(self, leaf: _Leaf) -> None:
        leaf.counts.update(leaf.client.parts(self._root, leaf.number, list(self._kept())))

    def _sync(self, leaf: _Leaf) -> None:
        wanted = self._kept()
        held = leaf.client.parts(self._root, leaf.number, list(wanted))
        leaf.counts.update(held)
        for key, status in wanted.items():
            if key not in held and status is Status.OPEN:
                # It may have handed in its sum before it died: then it takes no more.
                with contextlib.suppress(StateError):
                    self._delegate(leaf, key)

    def _watch(self, leaf: _Leaf) -> None:
        while not self._stop.is_set():
            self._tried(leaf, self._sync)
            self._wake.wait(_SYNC_SECONDS)
            self._wake.clear()

"""Which connections of a listener are ended: those that send what no call explains, and those that are too many.

gRPC reads headers, settings and pings of strangers before a program hears of a call, and some of it costs memory or
time without a limit. So every byte of a connection has to be explained by calls: by what they have sent, and by what
they may still send. A connection whose bytes nothing explains is ended, whichever kind of frame they are. Its address
can open no new connection for a while, which grows with what it did; connections that it has stay.

A connection is new until one of its calls has been answered. New ones have few places, so that nobody fills a listener
with connections that never ask anything.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from odp.transport.fairness import address_of
from odp.transport.kernel_sockets import Traffic
from odp.transport.limits import AHEAD_BYTES, FIRST_WINDOW_BYTES, Limits

#: Overhead of frames and TLS around a message.
_FRAMING = 1.25
#: Of the bytes that a caller receives, a share that its acknowledgements of them may have.
_ACKNOWLEDGING = 1 / 32
#: What keeps a connection alive without a call, in bytes per second.
_ALIVE_RATE = 64.0
#: A suspect connection is certain once the loop has turned this often with no call to begin, or after these seconds.
_NEW_TURNS, _NEW_SECONDS = 8, 0.15
_KNOWN_TURNS, _KNOWN_SECONDS = 32, 5.0
#: What a look may be late for it to count: a program that stood still had no chance to begin calls.
_LATEST_LOOK = 0.05
#: The largest sum of waits of one address, in seconds.
_LONGEST_WAIT = 60.0
_LARGEST_GROWTH = 16
#: New connections that an address may close unused: this number at once, and this number per second.
_UNUSED_AT_ONCE, _UNUSED_RATE = 64.0, 8.0
#: What gRPC may hold of a byte: a header that refers to an earlier one, until the block of headers ends.
_MEMORY_OF_A_BYTE = 256
#: Connections stay below the limit at which gRPC takes nobody any more.
_SHARE_OF_CONNECTIONS = 7 / 8


class Progress:
    """What the calls of one connection explain; the listener counts it.

    Attributes:
      calls: calls under way.
      expected: messages that a call waits for.
      answered: calls that were answered, also with an error, if their caller was admitted.
      message_bytes: what calls have received.
      messages: the number of these messages.
    """

    __slots__ = ("answered", "calls", "expected", "message_bytes", "messages")

    def __init__(self) -> None:
        self.calls = self.expected = self.answered = self.message_bytes = self.messages = 0

    def done(self) -> Done:
        """What has ended or arrived by now."""
        return Done(self.answered, self.messages, self.message_bytes)


class Done(NamedTuple):
    """Calls that were answered, and messages that have arrived, as ``Progress`` counts them."""

    answered: int = 0
    messages: int = 0
    message_bytes: int = 0

    def explained_since(self, before: Done, limits: Limits) -> float:
        """The bytes that these explain, and those before do not."""
        counted = self.answered - before.answered + self.messages - before.messages
        return counted * limits.metadata_bytes + _FRAMING * (self.message_bytes - before.message_bytes)


_NOTHING = Done()


@dataclass(frozen=True)
class _Warning:
    """When a connection had too many bytes that nothing explains: the seconds watched, and the loop's idle turns."""

    watched: float
    idle_turns: int


@dataclass
class _Connection:
    traffic: Traffic
    address: str
    since: float
    done: Done = _NOTHING
    #: Bytes that no call explains yet.
    unexplained: float = 0.0
    #: Of the first look that saw too many; None while there are not.
    warned: _Warning | None = None
    active: float = 0.0
    #: Whether a message arrived since the look before.
    receives: bool = False

    @property
    def is_new(self) -> bool:
        return self.done.answered == 0

    def is_unanswered(self, idle_turns: int) -> bool:
        """Whether it is new, or known and sends bytes although no call of it waits for the listener."""
        return self.is_new or (self.warned is not None and idle_turns >= self.warned.idle_turns + _NEW_TURNS)


@dataclass(frozen=True)
class Verdict:
    """The connections to end, by number, with the reason of each."""

    ended: dict[int, str]
    #: Whether the listener should look again soon.
    busy: bool


class Connections:
    """Judges the connections of one listener, on one thread, while another counts what calls do.

    ``clock`` gives seconds that only grow.
    """

    def __init__(self, limits: Limits, *, most: int, clock: Callable[[], float]) -> None:
        """``most``: connections that gRPC takes."""
        self._limits, self._clock = limits, clock
        self._most = max(1, int(_SHARE_OF_CONNECTIONS * most))
        self._progress: dict[str, Progress] = {}
        self._connections: dict[int, _Connection] = {}
        # By address, the end of its wait, and what each further connection adds to it.
        self._kept_out: dict[str, tuple[float, float]] = {}
        self._unused: dict[str, tuple[float, float]] = {}
        self._before = clock()
        self._calm_resident = math.inf
        self._begun = self._begun_before = self._idle_turns = 0
        self._watched = 0.0
        self._lock = threading.Lock()
        self._closed_before: set[str] = set()

    def begin(self, peer: str) -> Progress:
        """Counts one more call under way of a connection; its end is counted there. Thread-safe."""
        with self._lock:
            if (progress := self._progress.get(peer)) is None:
                progress = self._progress[peer] = Progress()
            progress.calls += 1
            self._begun += 1
        return progress

    def turned(self) -> None:
        """The event loop has turned. On the loop's thread.

        gRPC hands calls over one by one: only if none began since the turn before have those that arrived begun.
        """
        if self._begun == self._begun_before:
            self._idle_turns += 1
        self._begun_before = self._begun

    def kept_out(self) -> list[str]:
        """The addresses (``address_of``) that may open no connection now, those with the longest wait first."""
        now = self._clock()
        self._kept_out = {name: entry for name, entry in self._kept_out.items() if entry[0] > now - _LONGEST_WAIT}
        waiting = {address: until for address, (until, _) in self._kept_out.items() if until > now}
        return sorted(waiting, key=waiting.__getitem__, reverse=True)

    def judge(self, open_now: Callable[[], Iterable[Traffic]], *, resident: int = 0, pause: float = 0.0) -> Verdict:
        """Decides about all connections that are open now.

        ``resident`` is the program's memory in bytes; ``pause`` the seconds that were to pass since the look before.
        """
        now = self._clock()
        seconds, self._before = now - self._before, now
        self._watched += min(seconds, pause + _LATEST_LOOK)
        # What calls have received by now has arrived before the sockets are looked at: nothing is explained too early.
        with self._lock:
            done = {peer: each.done() for peer, each in self._progress.items()}
        self._update({traffic.id: traffic for traffic in open_now()}, done, now, seconds)
        ended: dict[int, str] = {}
        excess = {id: self._excess(each) for id, each in self._connections.items()}
        busy = False
        for id, each in self._connections.items():
            # What calls had sent that were refused before anybody read it is still in the window of a known one.
            unread = 0 if each.is_new else FIRST_WINDOW_BYTES
            if excess[id] <= self._limits.unasked_bytes + unread:
                each.warned = None
            elif each.warned is None:
                each.warned = _Warning(self._watched, self._idle_turns)
            if each.warned is not None and self._is_certain(each, each.warned, excess[id]):
                ended[id] = "bytes without a request"
            # A block of headers that never ends lets no message of its connection through (RFC 9113, section 6.10).
            busy = busy or each.is_new or (each.warned is not None and not each.receives)
        self._end_beyond_sum(excess, ended)
        self._end_beyond_memory(excess, ended, resident)
        for id in ended:
            self._keep_out(self._connections[id].address, now)
        self._end_beyond_number(ended)
        for id in ended:
            del self._connections[id]
        return Verdict(ended, busy)

    def _is_certain(self, each: _Connection, warned: _Warning, excess: float) -> bool:
        """Whether no call that has just arrived can explain the bytes: the listener has begun all that it could, or
        there are more bytes than such calls may have.
        """
        ahead = FIRST_WINDOW_BYTES if each.is_new else self._limits.ahead_bytes
        if excess > self._limits.unasked_bytes + ahead:
            return True
        # A loop that hangs may itself be a victim of the attack.
        most_turns, seconds = (_NEW_TURNS, _NEW_SECONDS) if each.is_new else (_KNOWN_TURNS, _KNOWN_SECONDS)
        return self._idle_turns >= warned.idle_turns + most_turns or self._watched - warned.watched > seconds

    def _update(self, open_now: dict[int, Traffic], done: dict[str, Done], now: float, seconds: float) -> None:
        for id in self._connections.keys() - open_now.keys():
            closed = self._connections.pop(id)
            closed.done = done.get(closed.traffic.peer, closed.done)
            if closed.is_new:
                self._count_unused(closed.address, now)
        self._forget_closed({traffic.peer for traffic in open_now.values()})
        for id, traffic in open_now.items():
            if (each := self._connections.get(id)) is None:
                silent = dataclasses.replace(traffic, received=0, acknowledged=0)
                each = self._connections[id] = _Connection(silent, address_of(traffic.peer), since=now, active=now)
            each.unexplained += traffic.received - each.traffic.received
            explained = _ALIVE_RATE * seconds + _ACKNOWLEDGING * (traffic.acknowledged - each.traffic.acknowledged)
            each.traffic = traffic
            latest = done.get(traffic.peer, each.done)
            each.receives = latest.messages > each.done.messages
            if latest != each.done or self._calls(each):
                each.active = now
            each.unexplained = max(0.0, each.unexplained - explained - latest.explained_since(each.done, self._limits))
            each.done = latest

    def _forget_closed(self, peers: set[str]) -> None:
        with self._lock:
            closed = {peer for peer, each in self._progress.items() if not each.calls and peer not in peers}
            # One that opened since the look at the sockets is in the next one.
            for peer in closed & self._closed_before:
                del self._progress[peer]
        self._closed_before = closed

    def _excess(self, each: _Connection) -> float:
        """The bytes that neither finished calls explain nor those under way."""
        if (progress := self._progress.get(each.traffic.peer)) is None:
            return each.unexplained
        of_calls = progress.calls * (AHEAD_BYTES + self._limits.metadata_bytes) + (
            progress.expected * _FRAMING * self._limits.request_bytes
        )
        return max(0.0, each.unexplained - of_calls - progress.done().explained_since(each.done, self._limits))

    def _end_beyond_sum(self, excess: dict[int, float], ended: dict[int, str]) -> None:
        # Of known ones, calls that have just arrived may be many at once.
        new = {id: size for id, size in excess.items() if self._connections[id].is_new and id not in ended}
        why = "bytes without a request, of all new connections together"
        ended.update(dict.fromkeys(_beyond_sum(new, self._limits.unasked_all_bytes), why))

    def _end_beyond_memory(self, excess: dict[int, float], ended: dict[int, str], resident: int) -> None:
        most = self._limits.unasked_memory_bytes
        sizes = {id: size for id, size in excess.items() if self._connections[id].is_unanswered(self._idle_turns)}
        grown = resident - self._calm_resident
        # Without such bytes, it is the program's own work that needs more memory.
        if sum(sizes.values()) <= most / _MEMORY_OF_A_BYTE:
            self._calm_resident = resident
        elif grown > most:
            # Of known ones, the requests of many calls may need it that the loop has not begun yet.
            beyond_requests = grown > most + self._limits.receiving_bytes + self._limits.queued_bytes
            left = {
                id: size
                for id, size in sizes.items()
                if (beyond_requests or self._connections[id].is_new) and id not in ended
            }
            why = "bytes without a request that take memory"
            ended.update(dict.fromkeys(_beyond_sum(left, most / _MEMORY_OF_A_BYTE), why))

    def _end_beyond_number(self, ended: dict[int, str]) -> None:
        left = {id: each for id, each in self._connections.items() if id not in ended}
        new = {id: each for id, each in left.items() if each.is_new and not self._calls(each)}
        for id in _largest_first(new, self._limits.new_connections):
            ended[id] = "too many new connections"
            del left[id]
        idle = {id: each for id, each in left.items() if not self._calls(each)}
        counted = Counter(each.address for each in left.values())
        most_of_address = self._limits.of_address(self._most)
        for address, number in counted.items():
            if number <= most_of_address:
                continue
            of_address = {id: each for id, each in idle.items() if each.address == address}
            for id in _oldest_first(of_address)[: number - most_of_address]:
                ended[id] = "too many connections of one address"
                del left[id], idle[id]
        beyond = len(left) - self._most
        if beyond > 0:
            for id in _largest_first(idle, max(0, len(idle) - beyond)):
                ended[id] = "too many connections"

    def _calls(self, each: _Connection) -> int:
        progress = self._progress.get(each.traffic.peer)
        return 0 if progress is None else progress.calls

    def _count_unused(self, address: str, now: float) -> None:
        if len(self._unused) > self._most:
            self._unused = {name: entry for name, entry in self._unused.items() if _left(entry, now) > 0}
        number = 1.0 + _left(self._unused.get(address, (0.0, now)), now)
        self._unused[address] = number, now
        if number > _UNUSED_AT_ONCE:
            self._keep_out(address, now)

    def _keep_out(self, address: str, now: float) -> None:
        """Adds to the wait of an address, more each time that it comes back to do the same, and more while many others
        wait: all of them together cost the listener a small share of its time.
        """
        until, step = self._kept_out.get(address, (now, self._limits.penalty_seconds))
        if until < now:
            until, step = now, min(2 * step, _LARGEST_GROWTH * self._limits.penalty_seconds)
        waiting = sum(end > now for end, _ in self._kept_out.values()) + 1
        self._kept_out[address] = min(until + step * waiting, now + _LONGEST_WAIT), step


def _left(entry: tuple[float, float], now: float) -> float:
    number, at = entry
    return max(0.0, number - _UNUSED_RATE * (now - at))


def _beyond_sum(sizes: dict[int, float], most: float) -> list[int]:
    """Those to end, the largest first, so that the sum of the others is at most ``most``."""
    total, beyond = sum(sizes.values()), []
    for id in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= most:
            break
        beyond.append(id)
        total -= sizes[id]
    return beyond


def _oldest_first(connections: dict[int, _Connection]) -> list[int]:
    """New connections first; of each kind, those first that have done nothing for longest."""
    return sorted(connections, key=lambda id: (not connections[id].is_new, connections[id].active))


def _largest_first(connections: dict[int, _Connection], most: int) -> list[int]:
    """Those to end so that ``most`` are left: of the address with the most of them, its oldest, again and again.

    Of addresses with the same number, the one whose oldest connection comes first in ``_oldest_first`` loses it.
    """
    order = _oldest_first(connections)
    ranks = {id: rank for rank, id in enumerate(order)}
    of_address: dict[str, list[int]] = {}
    for id in reversed(order):
        of_address.setdefault(connections[id].address, []).append(id)
    largest = [(-len(ids), ranks[ids[-1]], ids) for ids in of_address.values()]
    heapq.heapify(largest)
    ended = []
    for _ in range(len(connections) - most):
        _, _, ids = heapq.heappop(largest)
        ended.append(ids.pop())
        if ids:
            heapq.heappush(largest, (-len(ids), ranks[ids[-1]], ids))
    return ended

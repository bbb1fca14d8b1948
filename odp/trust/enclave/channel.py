"""The socket between an enclave and its host: frames, the host's client, the enclave's loop.

A frame is a header of 12 bytes, the length of the payload (4) and the number of the call (8), big-endian, then the
payload: a request or a reply of the enclave's ``Interface`` (``calls``). Calls are pipelined: any number may be under
way, answers come in any order.

The host is the attacker. What it sends is bounded, parsed and checked inside the enclave; whatever a frame holds, the
answer is one failure of a closed set, and the loop goes on. Only a frame that cannot be told from the next (too long,
or cut) ends the loop, and the enclave with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from odp.crypto.hpke import DecryptionError
from odp.crypto.signing import SignatureError
from odp.errors import BudgetExceeded, ConfigurationError, OdpError, PopulationFull, PrivacyError, StateError
from odp.refusing import places
from odp.v1.enclave_pb2 import Done, EnclaveReply, EnclaveRequest, Failure, Ping

#: A reply holds at most a release of 15 MiB twice (plain and sealed) and a ledger; the longest message fits four times.
MAX_FRAME_BYTES = 64 * 2**20
#: Those that draw noise, charge, or go over all contributions or a whole model: as long as their caller waits.
LONG_CALL_SECONDS = 300.0
#: No other call takes this long, behind one of these: an enclave that does not answer is taken for dead.
CALL_SECONDS = LONG_CALL_SECONDS + 120.0
_LONG_CALLS = frozenset(
    {"check_task", "open_round", "charge", "seal_release", "release", "host_parts", "install", "chunk", "abandon"}
)
#: How often an enclave shows that it is alive, and how long it may take: it has one thread that waits for nothing else.
PING_SECONDS = 10.0
PONG_SECONDS = 60.0

_HEADER = struct.Struct("!IQ")
_READ_BYTES = 2**18
_SMALL_BYTES = 2**16
_LONG_BYTES = 2**20

Handler = Callable[[Any], Message | None]
ManyHandler = Callable[[Sequence[Any]], Sequence[Message | Exception]]


@dataclass(frozen=True)
class Encoded:
    """A request that is encoded already, in ``pieces`` that follow each other; ``call`` is its kind."""

    call: str
    pieces: Sequence[bytes]


class Connection:
    """One end of the socket. Many threads may call ``send``, one may call ``receive``; ``close`` ends it."""

    def __init__(self, opened: socket.socket) -> None:
        opened.settimeout(None)
        self._socket = opened
        self._reader = opened.makefile("rb", buffering=_READ_BYTES)
        self._sending = threading.Lock()

    def send(self, number: int, message: Message | Encoded) -> None:
        """Sends one frame.

        Raises:
            ConfigurationError: the message is longer than a frame may be; nothing was sent.
            StateError: the other end is gone.
        """
        pieces = message.pieces if isinstance(message, Encoded) else (message.SerializeToString(),)
        if (length := sum(map(len, pieces))) > MAX_FRAME_BYTES:
            raise ConfigurationError(f"Expected a message of at most {MAX_FRAME_BYTES} bytes, got {length}")
        parts = _joined([_HEADER.pack(length, number), *pieces])
        try:
            with self._sending:
                for part in parts:
                    self._socket.sendall(part)
        except OSError as error:
            raise StateError("the enclave ended, or its host did; start the program again") from error

    def receive(self) -> tuple[int, bytes] | None:
        """(number, payload) of the next frame; None if the other end closed between two frames, or was killed.

        Raises:
            StateError: a frame is too long or was cut.
        """
        try:
            if not (header := self._reader.read(_HEADER.size)):
                return None
            if len(header) == _HEADER.size:
                length, number = _HEADER.unpack(header)
                if length > MAX_FRAME_BYTES:
                    raise StateError(f"a frame of {length} bytes came, more than {MAX_FRAME_BYTES}")
                payload = self._reader.read(length)
                if len(payload) == length:
                    return number, payload
        except ConnectionResetError:  # killed before it read what was sent
            return None
        except (OSError, ValueError) as error:  # ValueError: closed by this end meanwhile
            raise StateError("the enclave's socket broke") from error
        raise StateError("the enclave's socket was closed in the middle of a frame")

    def close(self) -> None:
        """Ends both directions; a thread that waits in ``receive`` returns. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _joined(pieces: Sequence[bytes]) -> list[bytes]:
    """The same bytes in fewer pieces: long ones stay as they are, because a copy costs more than a call."""
    joined: list[bytes] = []
    short: list[bytes] = []
    for piece in pieces:
        if len(piece) <= _SMALL_BYTES:
            short.append(piece)
            continue
        joined += [b"".join(short), piece]
        short = []
    return [*joined, b"".join(short)] if short else joined


# Errors cross as a kind and a line


class EnclaveCrash(Exception):
    """An unforeseen error in the enclave: its place in the code, without any data."""


class NotHeld(OdpError):
    """The enclave does not have the requested object."""


_ERRORS: dict[Failure.Kind, type[Exception]] = {
    Failure.KIND_UNSPECIFIED: EnclaveCrash,
    Failure.KIND_CONFIGURATION: ConfigurationError,
    Failure.KIND_PRIVACY: PrivacyError,
    Failure.KIND_BUDGET: BudgetExceeded,
    Failure.KIND_STATE: StateError,
    Failure.KIND_SIGNATURE: SignatureError,
    Failure.KIND_DECRYPTION: DecryptionError,
    Failure.KIND_NOT_HELD: NotHeld,
    Failure.KIND_POPULATION_FULL: PopulationFull,
}


def failure_of(error: BaseException) -> Failure:
    """The failure message of an error: the kind of the nearest class of the closed set; otherwise only its place."""
    kinds = {kind: number for number, kind in _ERRORS.items() if number}
    for kind in type(error).__mro__:
        if kind in kinds:
            return Failure(kind=kinds[kind], message=str(error))
    return Failure(message=f"{type(error).__name__} in {places(error)}")


def error_of(failure: Failure) -> Exception:
    """The error of a failure message, as an instance of the same class."""
    kind = _ERRORS.get(failure.kind, EnclaveCrash)
    return DecryptionError() if kind is DecryptionError else kind(failure.message)


# The host's side


class Client:
    """Calls the enclave, from many threads.

    Args:
        connection: the host's end; taken over.
        replies: the message of the enclave's replies.
        ended: called once when the enclave is gone, unless ``close`` asked for that: the program has to stop.
        crashed: a callback with the place in the code of an unforeseen error; the enclave continues.
        seconds: the longest time of one call; by default as long as its kind may take.
        ping, pong: seconds between two signs of life, and until the next one has to come.
    """

    def __init__(
        self,
        connection: Connection,
        replies: type[Message],
        *,
        ended: Callable[[StateError], None],
        crashed: Callable[[str], None] = lambda where: None,
        seconds: float | None = None,
        ping: float = PING_SECONDS,
        pong: float = PONG_SECONDS,
    ) -> None:
        self._connection, self._replies = connection, replies
        self._tell_ended, self._tell_crashed, self._seconds = ended, crashed, seconds
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Callable[[Any], None]] = {}
        self._closing = False
        self._error: StateError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="enclave", daemon=True)
        self._thread.start()
        self._heard = time.monotonic()
        # Two: sending to an enclave that reads nothing any more may block.
        threading.Thread(target=self._ping, args=(ping,), name="enclave-ping", daemon=True).start()
        threading.Thread(target=self._watch, args=(ping + pong,), name="enclave-watch", daemon=True).start()

    def call(self, request: Message | Encoded) -> Any:
        """The enclave's reply.

        Raises:
            OdpError, EnclaveCrash: what the enclave raised.
            StateError: the enclave is gone, or did not answer in time.
        """
        answered = threading.Lock()
        answered.acquire()
        found: list[Any] = []

        def done(answer: Any) -> None:
            found.append(answer)
            answered.release()

        self.send(request, done)
        if (seconds := self._seconds) is None:
            kind = request.call if isinstance(request, Encoded) else request.WhichOneof("call")
            seconds = LONG_CALL_SECONDS if kind in _LONG_CALLS else CALL_SECONDS
        if not answered.acquire(timeout=seconds):
            self._end(StateError(f"the enclave did not answer within {seconds:.0f} s; start the program again"))
            answered.acquire()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def send(self, request: Message | Encoded, done: Callable[[Any], None]) -> None:
        """Sends a request; ``done`` gets the answer or the error, once, in the thread that reads the socket."""
        number = next(self._numbers)
        with self._lock:
            error: Exception | None = self._error
            if error is None:
                self._pending[number] = done
        if error is None:
            try:
                self._connection.send(number, request)
            except StateError:
                self._end(_gone())  # calls ``done``, too
            except ConfigurationError as too_long:
                with self._lock:
                    error = too_long if self._pending.pop(number, None) is not None else None
        if error is not None:
            done(error)

    def post(self, request: Message) -> None:
        """Sends a request without an answer. Raises StateError if the enclave has ended."""
        if self._error is not None:
            raise self._error
        try:
            self._connection.send(0, request)
        except StateError:
            self._end(_gone())
            raise self._error or _gone() from None

    def close(self) -> None:
        """Closes the connection, which ends the enclave. Idempotent."""
        self._closing = True
        self._over.set()
        self._connection.close()
        self._thread.join()

    def _read(self) -> None:
        try:
            while (frame := self._connection.receive()) is not None:
                self._heard = time.monotonic()
                number, payload = frame
                reply: Any = self._replies.FromString(payload)
                with self._lock:
                    done = self._pending.pop(number, None)
                if done is None:
                    continue
                if reply.WhichOneof("answer") != "failure":
                    done(reply)
                    continue
                if reply.failure.kind == Failure.KIND_UNSPECIFIED:
                    self._tell_crashed(reply.failure.message)
                done(error_of(reply.failure))
        except (StateError, DecodeError):
            pass
        self._end(_gone())

    def _ping(self, seconds: float) -> None:
        while not self._over.wait(seconds):
            self.send(EnclaveRequest(ping=Ping()), lambda _: None)

    def _watch(self, most: float) -> None:
        """Closes the connection to an enclave without any sign of life: calls without a deadline wait for it, too.

        Time in which this thread did not run says nothing: a paused container, or a stopped process.
        """
        looked = time.monotonic()
        while not self._over.wait(most / 4):
            now = time.monotonic()
            if now - looked > most / 2:
                self._heard = now
            looked, silent = now, now - self._heard
            if silent > most:
                self._end(StateError(f"the enclave showed no sign of life for {silent:.0f} s; start the program again"))

    def _end(self, error: StateError) -> None:
        self._over.set()
        with self._lock:
            first = self._error is None
            if self._error is None:
                self._error = error
            error = self._error
            pending, self._pending = self._pending, {}
        for done in pending.values():
            done(error)
        if first and not self._closing:
            self._connection.close()
            self._tell_ended(error)


def _gone() -> StateError:
    return StateError("the enclave ended by itself; start the program again, it goes on from what was stored")


# The enclave's side


@dataclass(frozen=True)
class Route:
    """The handler of one kind of request: ``lane`` is its thread; None is the reading thread, for requests that take no
    time.
    """

    lane: str | None
    handle: Handler
    #: Handles a long request as it came, without parsing: a parsed field is a copy, and each access makes another.
    handle_long: Callable[[bytes], Message] | None = None


@dataclass(frozen=True)
class BatchRoute:
    """Requests that are handled in batches on their own thread: all that wait when it is free, up to ``most``.

    ``handle`` gives one answer or error for each, in their order.
    """

    handle: ManyHandler
    most: int


class _Lane:
    """A thread that handles requests sequentially."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[int, Handler, Message]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, number: int, handle: Handler, request: Message) -> None:
        self._waiting.put((number, handle, request))

    def _run(self) -> None:
        while True:
            number, handle, request = self._waiting.get()
            if not _answer(self._connection, number, handle, request):
                return


class _BatchLane:
    """A thread that handles the waiting requests of one kind in batches."""

    def __init__(self, name: str, connection: Connection, route: BatchRoute) -> None:
        self._connection, self._route = connection, route
        self._waiting: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, number: int, request: Message) -> None:
        self._waiting.put((number, request))

    def _run(self) -> None:
        while True:
            taken = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(taken) < self._route.most:
                    taken.append(self._waiting.get_nowait())
            requests = [request for _, request in taken]
            answers: Sequence[Message | Exception]
            try:
                answers = self._route.handle(requests)
            except Exception as error:
                answers = [error] * len(taken)
            for (number, request), answer in zip(taken, answers, strict=True):
                if not _answer(self._connection, number, functools.partial(_given, answer), request):
                    return


def serve(connection: Connection, requests: type[Message], routes: Mapping[str, Route | BatchRoute]) -> None:
    """Answers messages of the type ``requests`` until the host closes the socket; ``routes`` maps their fields.

    Requests of one lane are handled in the order in which they came. Threads that still work when this returns are
    daemons: the process may end.

    Raises:
        StateError: the host broke the framing.
    """
    single = [route for route in routes.values() if isinstance(route, Route)]
    lanes = {name: _Lane(name, connection) for name in sorted({route.lane for route in single if route.lane})}
    batches = {
        name: _BatchLane(name, connection, route) for name, route in routes.items() if isinstance(route, BatchRoute)
    }
    numbers = requests.DESCRIPTOR.fields_by_name
    long = {numbers[name].number: route for name, route in routes.items() if isinstance(route, Route)}
    while (frame := connection.receive()) is not None:
        number, payload = frame
        # A message begins with the number of its first field, which has 5 bits.
        begun = long.get(payload[0] >> 3) if len(payload) > _LONG_BYTES and payload[0] < 0x80 else None
        if begun is not None and begun.lane is not None and begun.handle_long is not None:
            lanes[begun.lane].put(number, functools.partial(_handle_long, begun.handle_long, payload), requests())
            continue
        try:
            request = requests.FromString(payload)
        except DecodeError:
            request = requests()
        if (route := routes.get(request.WhichOneof("call") or "")) is None:
            route = _ALIVE if request.WhichOneof("call") == "ping" else _UNKNOWN
        if isinstance(route, BatchRoute):
            batches[request.WhichOneof("call") or ""].put(number, request)
        elif route.lane is not None:
            lanes[route.lane].put(number, route.handle, request)
        elif not _answer(connection, number, route.handle, request):
            return


def _answer(connection: Connection, number: int, handle: Handler, request: Message) -> bool:
    """Handles one request; False if the host has ended."""
    try:
        reply = handle(request)
    except Exception as error:
        reply = EnclaveReply(failure=failure_of(error))
    try:
        if reply is not None:
            connection.send(number, reply)
    except ConfigurationError as too_long:
        failure = failure_of(too_long)
        return _answer(connection, number, lambda _: EnclaveReply(failure=failure), request)
    except StateError:
        return False
    return True


def _handle_long(handle: Callable[[bytes], Message], payload: bytes, _request: Message) -> Message | None:
    return handle(payload)


def _given(answer: Message | Exception, _request: Message) -> Message:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _refuse(_request: Message) -> Message:
    raise ConfigurationError("the enclave takes no such request")


def _alive(_request: Message) -> Message:
    return EnclaveReply(done=Done())


_UNKNOWN = Route(None, _refuse)
_ALIVE = Route(None, _alive)

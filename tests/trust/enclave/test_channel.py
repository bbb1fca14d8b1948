"""The socket between host and enclave: nothing is lost, mixed up or believed, and the end of either end is noticed."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.hpke import DecryptionError
from odp.crypto.signing import SignatureError
from odp.errors import BudgetExceeded, ConfigurationError, DataError, PopulationFull, PrivacyError, StateError
from odp.transport.channel import LONG_DEADLINE
from odp.trust.enclave import channel
from odp.trust.enclave.channel import (
    BatchRoute,
    Client,
    Connection,
    EnclaveCrash,
    NotHeld,
    Route,
    error_of,
    failure_of,
    serve,
)
from odp.v1.aggregator_enclave_pb2 import AggregatorEnclaveRequest
from odp.v1.attestation_pb2 import GetEvidenceRequest, GetEvidenceResponse
from odp.v1.distributor_enclave_pb2 import (
    AskModels,
    DistributorEnclaveReply as Reply,
    DistributorEnclaveRequest as Request,
    InstallModel,
    TableChunk,
)
from odp.v1.distributor_pb2 import SelectRequest
from odp.v1.enclave_pb2 import Failure

SECONDS = 60.0


def ask(nonce: bytes) -> Request:
    return Request(evidence=GetEvidenceRequest(nonce=nonce))


def echo(request: Request) -> Reply:
    return Reply(evidence=GetEvidenceResponse(policy=request.evidence.nonce))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, inside = socket.socketpair()
    yield host, inside
    host.close()
    inside.close()


class Pair:
    """A host's client and an enclave that serves ``routes`` in a thread."""

    def __init__(
        self, sockets: tuple[socket.socket, socket.socket], routes: Mapping[str, Route | BatchRoute], **settings: float
    ):
        self.ended: list[StateError] = []
        self.crashed: list[str] = []
        self.inside = Connection(sockets[1])
        self.served = threading.Thread(target=self._serve, args=(routes,), daemon=True)
        self.served.start()
        self.client = Client(
            Connection(sockets[0]), Reply, ended=self.ended.append, crashed=self.crashed.append, **settings
        )

    def _serve(self, routes: Mapping[str, Route | BatchRoute]) -> None:
        with contextlib.suppress(StateError):
            serve(self.inside, Request, routes)


@pytest.fixture
def pair(sockets: tuple[socket.socket, socket.socket]) -> Iterator[Callable[..., Pair]]:
    opened: list[Pair] = []

    def start(routes: Mapping[str, Route | BatchRoute], **settings: float) -> Pair:
        opened.append(Pair(sockets, routes, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.client.close()
        each.served.join(SECONDS)


# Frames


@pytest.mark.parametrize("size", [0, 1, 2**16 - 50, 2**16, 5_000_000])
def test_a_frame_of_any_size_arrives_whole(sockets: tuple[socket.socket, socket.socket], size: int) -> None:
    sent, received = Connection(sockets[0]), Connection(sockets[1])
    message = Request(chunk=TableChunk(data=bytes(range(256)) * (size // 256) + bytes(size % 256)))
    thread = threading.Thread(target=lambda: [sent.send(number, message) for number in (7, 2**64 - 1)])
    thread.start()
    for number in (7, 2**64 - 1):
        frame = received.receive()
        assert frame is not None
        assert (frame[0], Request.FromString(frame[1])) == (number, message)
    thread.join()


def test_the_end_between_two_frames_is_no_error(sockets: tuple[socket.socket, socket.socket]) -> None:
    received = Connection(sockets[1])
    Connection(sockets[0]).close()
    assert received.receive() is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0", "middle of a frame"),
        (struct.pack("!IQ", 10, 1) + bytes(9), "middle of a frame"),
        (struct.pack("!IQ", channel.MAX_FRAME_BYTES + 1, 1), "more than"),
        (b"\xff" * 12, "more than"),
    ],
)
def test_a_frame_that_is_cut_or_too_long_is_refused(
    sockets: tuple[socket.socket, socket.socket], data: bytes, reason: str
) -> None:
    received = Connection(sockets[1])
    sockets[0].sendall(data)
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(StateError, match=reason):
        received.receive()


def test_a_message_that_fits_no_frame_is_not_sent(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 100)
    sent, received = Connection(sockets[0]), Connection(sockets[1])
    with pytest.raises(ConfigurationError, match="at most 100 bytes"):
        sent.send(1, ask(bytes(200)))
    sent.send(2, ask(b"next"))
    frame = received.receive()
    assert frame is not None
    assert frame[0] == 2


# Calls


def test_answers_reach_their_callers_whatever_the_order(pair: Callable[..., Pair]) -> None:
    opened = pair({"evidence": Route("ask", echo), "select": Route("other", lambda _: Reply())})
    with futures.ThreadPoolExecutor(16) as pool:
        nonces = [number.to_bytes(16, "big") for number in range(400)]
        answers = list(pool.map(lambda nonce: opened.client.call(ask(nonce)).evidence.policy, nonces))
    assert answers == nonces


def test_a_long_call_does_not_hold_up_another_lane(pair: Callable[..., Pair]) -> None:
    release = threading.Event()

    def slow(_: Request) -> Reply:
        assert release.wait(SECONDS)
        return Reply()

    opened = pair({"install": Route("change", slow), "evidence": Route("ask", echo)})
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.client.call, Request(install=InstallModel()))
        assert opened.client.call(ask(b"quick")).evidence.policy == b"quick"
        assert not waiting.done()
        release.set()
        waiting.result(SECONDS)


class Batches:
    """A batch handler that holds its first batch until ``go``, and remembers what it was given."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def __call__(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        self.sizes.append(len(requests))
        self.began.set()
        assert self.go.wait(SECONDS)
        return [
            ConfigurationError("refused") if request.evidence.nonce == b"bad" else echo(request) for request in requests
        ]


def sent(pair: Pair, nonces: Sequence[bytes]) -> list[futures.Future[Reply | Exception]]:
    found = []
    for nonce in nonces:
        answer: futures.Future[Reply | Exception] = futures.Future()
        pair.client.send(ask(nonce), answer.set_result)
        found.append(answer)
    return found


def test_requests_that_wait_are_handled_together_and_each_gets_its_own_answer(pair: Callable[..., Pair]) -> None:
    batches = Batches()
    opened = pair({"evidence": BatchRoute(batches, most=3), "models": Route(None, lambda _: Reply())})
    first = sent(opened, [b"0"])
    assert batches.began.wait(SECONDS)
    rest = sent(opened, [b"1", b"bad", b"3", b"4"])
    opened.client.call(Request(models=AskModels()))  # what was sent before it was read, and waits
    batches.go.set()
    answers = [answer.result(SECONDS) for answer in first + rest]
    assert batches.sizes == [1, 3, 1]
    assert [str(answer) for answer in answers if isinstance(answer, Exception)] == ["refused"]
    assert [answer.evidence.policy for answer in answers if isinstance(answer, Reply)] == [
        b"0",
        b"1",
        b"3",
        b"4",
    ]


def test_a_batch_that_fails_whole_is_an_error_of_each_and_the_enclave_goes_on(pair: Callable[..., Pair]) -> None:
    def handle(requests: Sequence[Request]) -> list[Reply | Exception]:
        if any(request.evidence.nonce == b"crash" for request in requests):
            raise ValueError("secret")
        return [echo(request) for request in requests]

    opened = pair({"evidence": BatchRoute(handle, most=8)})
    with pytest.raises(EnclaveCrash, match="ValueError in") as caught:
        opened.client.call(ask(b"crash"))
    assert "secret" not in str(caught.value)
    assert opened.client.call(ask(b"next")).evidence.policy == b"next"


def test_requests_of_one_lane_keep_their_order_and_a_post_is_not_answered(pair: Callable[..., Pair]) -> None:
    taken: list[bytes] = []

    def take(request: Request) -> None:
        taken.append(request.chunk.data)

    opened = pair({"chunk": Route(None, take), "evidence": Route(None, echo)})
    for number in range(50):
        opened.client.post(Request(chunk=TableChunk(data=bytes([number]))))
    opened.client.call(ask(b"after"))
    assert taken == [bytes([number]) for number in range(50)]


# Errors


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("x=1"), PrivacyError("rule"), BudgetExceeded("no ε left"), StateError("rolled back"),
        SignatureError("not the developer's"), NotHeld("model"), DecryptionError(), PopulationFull("16 rounds"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_crosses_as_itself(pair: Callable[..., Pair], error: Exception) -> None:
    def fail(_: Request) -> Reply:
        raise error

    opened = pair({"evidence": Route("ask", fail)})
    with pytest.raises(type(error)) as caught:
        opened.client.call(ask(b""))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert opened.crashed == []


def test_an_error_below_the_closed_set_crosses_as_its_nearest_class() -> None:
    found = error_of(failure_of(DataError("line 3")))
    assert (type(found), str(found)) == (ConfigurationError, "line 3")


def test_an_unforeseen_error_crosses_without_what_it_said_and_the_enclave_goes_on(pair: Callable[..., Pair]) -> None:
    def rating_of_item_17(_: Request) -> Reply:
        raise ZeroDivisionError("rating 4.5 of item 17")

    opened = pair({"select": Route("ask", rating_of_item_17), "evidence": Route("ask", echo)})
    with pytest.raises(EnclaveCrash) as caught:
        opened.client.call(Request(select=SelectRequest()))
    assert "4.5" not in str(caught.value)
    assert str(caught.value).startswith("ZeroDivisionError in rating_of_item_17:")
    assert opened.crashed == [str(caught.value)]
    assert opened.client.call(ask(b"on")).evidence.policy == b"on"


def test_an_unknown_kind_of_failure_is_a_crash_not_a_success() -> None:
    failure = Failure.FromString(Failure(message="?").SerializeToString() + b"\x08\x63")  # kind 99
    assert type(error_of(failure)) is EnclaveCrash


def test_an_answer_that_fits_no_frame_is_an_error_of_its_call_alone(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 2000)

    def large(_: Request) -> Reply:
        return Reply(evidence=GetEvidenceResponse(policy=bytes(3000)))

    opened = pair({"select": Route("ask", large), "evidence": Route("ask", echo)})
    with pytest.raises(ConfigurationError, match="at most 2000"):
        opened.client.call(Request(select=SelectRequest()))
    with pytest.raises(ConfigurationError, match="at most 2000"):
        opened.client.call(ask(bytes(3000)))
    assert opened.client.call(ask(b"on")).evidence.policy == b"on"


def test_requests_that_the_role_does_not_know_are_refused(pair: Callable[..., Pair]) -> None:
    opened = pair({"evidence": Route("ask", echo)})
    for request in (Request(), Request(install=InstallModel())):
        with pytest.raises(ConfigurationError, match="no such request"):
            opened.client.call(request)


# The end of one end


def test_when_the_enclave_dies_every_caller_is_told_and_the_program_once(pair: Callable[..., Pair]) -> None:
    waiting, over = threading.Semaphore(0), threading.Event()

    def never(_: Request) -> Reply:
        waiting.release()
        over.wait(SECONDS)
        return Reply()

    opened = pair({"install": Route("a", never), "select": Route("b", never)})
    requests = [Request(install=InstallModel()), Request(select=SelectRequest())] * 3
    with futures.ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(opened.client.call, request) for request in requests]
        assert waiting.acquire(timeout=SECONDS)
        assert waiting.acquire(timeout=SECONDS)
        opened.inside.close()
        errors = [call.exception(SECONDS) for call in calls]
    assert {type(error) for error in errors} == {StateError}
    assert "ended by itself; start the program again" in str(errors[0])
    with pytest.raises(StateError, match="ended by itself"):
        opened.client.call(ask(b"late"))
    with pytest.raises(StateError, match="ended by itself"):
        opened.client.post(ask(b"late"))
    opened.client.close()
    over.set()
    assert len(opened.ended) == 1


def test_a_host_that_closes_is_not_told_that_the_enclave_died(pair: Callable[..., Pair]) -> None:
    opened = pair({"evidence": Route("ask", echo)})
    opened.client.call(ask(b""))
    opened.client.close()
    opened.client.close()
    opened.served.join(SECONDS)
    assert not opened.served.is_alive()
    assert opened.ended == []


def test_an_enclave_that_does_not_answer_in_time_is_taken_for_dead(pair: Callable[..., Pair]) -> None:
    stop = threading.Event()

    def never(_: Request) -> Reply:
        stop.wait(SECONDS)
        return Reply()

    opened = pair({"evidence": Route("ask", never)}, seconds=0.05)
    with pytest.raises(StateError, match="did not answer within"):
        opened.client.call(ask(b""))
    stop.set()
    assert len(opened.ended) == 1


def test_an_enclave_that_hangs_is_noticed_though_nobody_waits_with_a_deadline(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """It reads nothing, as a stopped process: what was sent to it fills the socket, and senders wait in vain."""
    ended, answered = threading.Event(), threading.Event()
    client = Client(Connection(sockets[0]), Reply, ended=lambda _: ended.set(), ping=0.02, pong=0.2)
    large = Request(chunk=TableChunk(data=bytes(2**22)))
    threading.Thread(target=client.send, args=(large, lambda _: answered.set()), daemon=True).start()
    assert ended.wait(SECONDS)
    assert answered.wait(SECONDS)
    with pytest.raises(StateError, match="no sign of life"):
        client.call(ask(b""))
    client.close()


def test_an_enclave_is_not_taken_for_dead_for_time_in_which_its_host_did_not_run_either(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container was paused for an hour: the signs of life of that time were neither asked for nor given."""
    ended, looked = threading.Event(), threading.Semaphore(0)

    class Time:
        now, step = 0.0, 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += cls.step
            looked.release()
            return cls.now

    monkeypatch.setattr(channel, "time", Time)
    client = Client(Connection(sockets[0]), Reply, ended=lambda _: ended.set(), ping=0.01, pong=0.03)

    def look(times: int) -> None:
        for _ in range(times):
            assert looked.acquire(timeout=SECONDS)

    look(5)
    Time.now += 3600.0
    look(5)
    assert not ended.is_set()
    Time.step = 0.01
    assert ended.wait(SECONDS)
    client.close()


def test_an_enclave_that_works_for_long_shows_that_it_is_alive(pair: Callable[..., Pair]) -> None:
    """Its call takes longer than a sign of life may, and is answered."""
    work = threading.Event()

    def slow(request: Request) -> Reply:
        work.wait(2.0)
        return echo(request)

    opened = pair({"evidence": Route("ask", slow)}, ping=0.02, pong=1.0)
    assert opened.client.call(ask(b"x")).evidence.policy == b"x"
    assert opened.ended == []


@pytest.mark.parametrize("call", ["open_round", "charge", "seal_release", "install"])
def test_questions_wait_for_calls_that_compute_for_long(call: str) -> None:
    assert call in channel._LONG_CALLS
    assert {
        field.name for kind in (AggregatorEnclaveRequest, Request) for field in kind.DESCRIPTOR.fields
    } >= channel._LONG_CALLS
    assert channel.LONG_CALL_SECONDS <= LONG_DEADLINE < channel.CALL_SECONDS


def test_an_enclave_that_sends_no_messages_is_taken_for_dead(sockets: tuple[socket.socket, socket.socket]) -> None:
    ended = threading.Event()
    client = Client(Connection(sockets[0]), Reply, ended=lambda _: ended.set())
    sockets[1].sendall(struct.pack("!IQ", 3, 1) + b"\xff\xff\xff")
    assert ended.wait(SECONDS)
    client.close()


# A host that attacks


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda body: _frame(body))), max_size=8))
def test_whatever_a_host_sends_the_enclave_answers_or_ends(pieces: list[bytes]) -> None:
    host, inside = socket.socketpair()
    seen: list[str] = []

    def note(request: Request) -> Reply:
        seen.append(request.WhichOneof("call") or "")
        return Reply()

    with host, inside:
        host.sendall(b"".join(pieces))
        host.shutdown(socket.SHUT_WR)
        with contextlib.suppress(StateError):
            serve(Connection(inside), Request, {"evidence": Route(None, note), "chunk": Route(None, note)})
    assert set(seen) <= {"evidence", "chunk"}


def _frame(body: bytes) -> bytes:
    return struct.pack("!IQ", len(body), 5) + body

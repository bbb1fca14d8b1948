"""What clients can take of a host's sessions: silent ones, many of one address, and more than there is memory for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.errors import Busy, ConfigurationError
from odp.transport.fairness import address_of
from odp.v1 import secagg_service_pb2 as wire, secure_aggregation_pb2 as messages
from trusted_aggregator.modes.secagg.clients import Phase
from trusted_aggregator.modes.secagg.limits import MEBIBYTE, Memory, Pace, SessionLimits, session_bytes
from trusted_aggregator.modes.secagg.session import LiveSession

PACE = Pace(step=10.0, vector=20.0, silent=5.0)
FAR = "192.0.2.7"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def configured(maximum: int = 8, **changes: Any) -> Configuration:
    values = {
        "task_sha256": bytes(32), "round": 0, "model_sha256": bytes(32), "length": 10, "bits": 32, "bound": 1000,
        "maximum": maximum, "minimum": 4, "corrupt": 0.1, "dropout": 0.1, "lying_server": True, **changes,
    }  # fmt: skip
    return Configuration.open(messages.SecAggConfig(**values).SerializeToString(deterministic=True))


class Table:
    """A session, and clients that answer it."""

    def __init__(
        self, clock: Clock, *, limits: SessionLimits | None = None, memory: Memory | None = None, **changes: Any
    ) -> None:
        self.configuration = configured(**changes)
        self.session = LiveSession(
            self.configuration, goal=self.configuration.ring.maximum, patience=60.0, pace=PACE, clock=clock,
            limits=limits, memory=memory,
        )  # fmt: skip
        self.clients: list[Client] = []

    def come(self, clients: int, *, address: str = FAR) -> list[wire.StepResponse | None]:
        """So many new clients ask for a seat."""
        new = [Client(self.configuration, SigningKey.generate()) for _ in range(clients)]
        self.clients += new
        return [self.step(client, client.advert, address=address) for client in new]

    def step(self, client: Client, message: Any = None, *, address: str = FAR) -> wire.StepResponse | None:
        return self.session.step(client.advert.identity, bytes(32), message, address=address)

    def everybody(self, kind: str) -> list[wire.StepResponse]:
        answers = [self.step(client) for client in self.clients]
        assert all(answer is not None and answer.WhichOneof("answer") == kind for answer in answers), answers
        return [answer for answer in answers if answer is not None]

    def seated(self) -> Sequence[bool]:
        return [self.session.holds(client.advert.identity) for client in self.clients]


def test_r198_silent_clients_take_no_seat_from_those_that_come_after_them() -> None:
    """A stranger fills every seat and falls silent: the session's largest size is all that it ever holds."""
    clock = Clock()
    table = Table(clock, limits=SessionLimits(seats_per_address=1000))
    table.session._goal = 9  # so that it gathers on: a session that is full begins
    table.come(8)
    (full,) = table.come(1)
    assert full is not None
    assert full.end.reason == wire.SecAggEnd.REASON_DROPPED
    clock.now = PACE.silent + 1.0
    table.step(table.clients[3])  # one of the first eight is still here
    for _ in range(20):
        assert table.come(1) == [None]
        clock.now += PACE.silent + 1.0
        table.step(table.clients[3])
    assert len(table.session._members) <= 8
    assert table.seated()[3]
    assert not any(table.seated()[:3])


def test_r198_clients_of_one_address_have_few_seats_and_others_come_in() -> None:
    clock = Clock()
    table = Table(clock, limits=SessionLimits(seats_per_address=3))
    table.come(3)
    with pytest.raises(Busy, match="3 clients of your address are in the session") as refused:
        table.come(1)
    assert "--secagg-seats" in str(refused.value)
    assert 0.0 < refused.value.low_seconds < refused.value.high_seconds
    assert table.come(2, address="192.0.2.8") == [None, None]
    clock.now = PACE.silent + 1.0
    assert table.come(1) == [None], "seats of clients that fell silent are free again"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "", "unix:/run/x"])
def test_a_device_host_of_this_machine_plays_as_many_devices_as_a_session_has(address: str) -> None:
    table = Table(Clock(), limits=SessionLimits(seats_per_address=3))
    table.come(8, address=address)
    table.everybody("adverts")


def test_r390_clients_of_one_ipv6_network_have_the_seats_of_one_address() -> None:
    table = Table(Clock(), limits=SessionLimits(seats_per_address=3))
    for n in range(3):
        table.come(1, address=address_of(f"ipv6:%5B2001:db8::{n}%5D:50051"))
    with pytest.raises(Busy):
        table.come(1, address=address_of("ipv6:%5B2001:db8::9%5D:50051"))
    assert table.come(1, address=address_of("ipv6:%5B2001:db8:0:1::9%5D:50051")) == [None]


def test_r198_sessions_begin_where_there_is_memory_and_gather_on_until_there_is() -> None:
    clock = Clock()
    needed = session_bytes(configured(), 8)
    memory = Memory(needed + 10)
    first, second = Table(clock, memory=memory), Table(clock, memory=memory, round=1)
    first.come(8)
    first.everybody("adverts")
    second.come(8)
    assert [second.step(client) for client in second.clients] == [None] * 8
    assert second.session.gathering
    clock.now = PACE.step  # nobody reveals: the first session is void, and gives its memory back
    assert first.session.phase is Phase.VOID
    for client in second.clients:
        second.step(client)
    second.everybody("adverts")
    second.session.void("over")
    assert memory.take(memory.most), "nothing is kept"


def test_a_session_that_is_over_gives_its_memory_back_once() -> None:
    memory = Memory(session_bytes(configured(), 8))
    table = Table(Clock(), memory=memory)
    table.come(8)
    table.everybody("adverts")
    assert not memory.take(1)
    for _ in range(3):
        table.session.void("over")
    assert memory.take(memory.most)
    assert not memory.take(1)


def held_by(root: object) -> int:
    """Bytes of what is reached from ``root`` by attributes and containers; of a message, twice its encoded length."""
    total, seen, waiting = 0, set[int](), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, Clock, Memory)):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, Message):
            total += 2 * one.ByteSize()
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif hasattr(one, "__dict__"):
            waiting += [vars(one), *vars(one).values()]
    return total


@pytest.mark.parametrize("size", [20, 60])
@pytest.mark.slow
def test_a_session_never_holds_more_than_it_reserved(size: int) -> None:
    """With all that it keeps for its clients: each has all others for neighbours, and answers every step."""
    table = Table(Clock(), maximum=size, minimum=size, corrupt=0.3, dropout=0.2, length=5000)
    clients = [Client(table.configuration, SigningKey.generate()) for _ in range(size)]
    table.clients = clients
    vector = np.zeros(5000, dtype=np.int64)

    def answers(kind: str, answer: wire.StepResponse, client: Client) -> wire.StepRequest:
        if kind == "adverts":
            return wire.StepRequest(reveal=client.reveal(answer.adverts))
        if kind == "reveals":
            return wire.StepRequest(shares=client.share(answer.reveals))
        if kind == "inbox":
            return wire.StepRequest(masked=client.mask(answer.inbox, vector))
        if kind == "survivors":
            return wire.StepRequest(agreement=client.agree(answer.survivors))
        return wire.StepRequest(unmask=client.unmask(answer.agreements))

    most = 0
    for client in clients:
        table.step(client, client.advert)
    for kind in ("adverts", "reveals", "inbox", "survivors", "agreements"):
        if kind == "agreements":
            table.session.allow_unmasking()
        for client, answer in zip(clients, table.everybody(kind), strict=True):
            # A message of its own for each, as the network gives it.
            request = wire.StepRequest.FromString(answers(kind, answer, client).SerializeToString())
            table.step(client, getattr(request, request.WhichOneof("message") or ""))
            most = max(most, held_by(table.session))
    reserved = session_bytes(table.configuration, size)
    assert most < reserved < 8 * most
    assert table.session.finish().tolist() == [0] * 5000


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"memory": MEBIBYTE - 1}, {"seats_per_address": 0}])
def test_limits_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"secagg_(memory|seats)="):
        SessionLimits(**wrong)

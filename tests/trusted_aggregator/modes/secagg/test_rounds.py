"""Sessions of SecAgg+ behind real gRPC and TLS, with clients that vanish, come late, lie, or are lied to.

The clock is the tests' own, and the service never waits: every answer follows from what was sent before it.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

import odp
from odp._system.files.state_folder import StateFolder
from odp.algorithms.registry import algorithm_for
from odp.cli.services import aggregator_app
from odp.crypto import SigningKey, domains
from odp.crypto.blind_rsa import blind, finalize
from odp.crypto.blind_signer import BlindSigner
from odp.crypto.roster import hash_of
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.crypto.secure_aggregation.session import Configuration
from odp.errors import Busy, ConfigurationError, PrivacyError, ServiceError
from odp.signed.task import sign_order, sign_task, task_sha256
from odp.transport.channel import call, connect
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import identity_for
from odp.trust.enrolment.token_key import TokenKey
from odp.v1 import (
    aggregator_pb2,
    common_pb2,
    enrolment_pb2,
    secagg_service_pb2 as wire,
    secagg_service_pb2_grpc,
    secure_aggregation_pb2 as messages,
)
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.modes.secagg import rounds as secagg_rounds
from trusted_aggregator.modes.secagg.admission import WithToken
from trusted_aggregator.modes.secagg.clients import Phase
from trusted_aggregator.modes.secagg.limits import MEBIBYTE, Pace, SessionLimits
from trusted_aggregator.modes.secagg.rounds import SecAggRounds, kept
from trusted_aggregator.modes.secagg.servicer import NAME, SecureAggregationService, secagg_servicer

STEPS = ("advertise", "reveal", "share", "masked", "agree", "unmask")
CLIENTS, MINIMUM = 30, 20
PACE = Pace(step=10.0, vector=20.0, silent=5.0)
END = wire.SecAggEnd


def asked(**changes: Any) -> odp.Statistics:
    cohort = {
        "minimum": MINIMUM, "goal": CLIENTS, "round_seconds": 60, "aggregation": "secagg+", "corrupt_fraction": 0.05,
        "dropout_fraction": 0.3, **changes,
    }  # fmt: skip
    return odp.Statistics(
        name="asked",
        queries={"films": odp.Histogram(bins=40)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(**cohort),
    )


class Host:
    """A host's sessions of one round, behind a port."""

    def __init__(
        self,
        root: Path,
        stack: contextlib.ExitStack,
        task: odp.Statistics,
        *,
        rosters: Sequence[Collection[bytes]] = (),
        admission: WithToken | None = None,
        limits: SessionLimits | None = None,
        token_key: Callable[[common_pb2.TaskDefinition, bytes], enrolment_pb2.SignedTokenKey] | None = None,
    ) -> None:
        self.limits = limits
        self.now = 0.0
        self.rosters = rosters
        self.root = root
        self.state = stack.enter_context(StateFolder.open(root, "aggregator"))
        self.parts = SqliteStorage(self.state)
        stack.callback(self.parts.close)
        developer = SigningKey.generate()
        definition = task.definition()
        definition.developer_key = developer.public
        signed = sign_task(definition, developer)
        self.key = task_sha256(signed), 0
        order = aggregator_pb2.RoundOrder(task_sha256=self.key[0], round=0, model_sha256=b"m" * 32)
        data, signature = sign_order(order, developer, domains.OPEN)
        self.request = aggregator_pb2.OpenRoundRequest(
            task=signed, order=data, signature=signature,
            token_key=None if token_key is None else token_key(definition, self.key[0]),
        )  # fmt: skip
        self.length = algorithm_for(definition).query(0).grid.size
        self.log = io.StringIO()
        self.rounds = self.begin()
        with kept(self.rounds, self.request):
            assert self.rounds.join(self.key) is None, "no session before the enclave has opened the round"
        service = SecureAggregationService(
            self.rounds, admission=WithToken(self.rounds) if admission is None else admission, wait=0.0
        )
        tls = identity_for(self.state, certificate=None, key=None, ca=None, ca_folder=None)

        def add(server: grpc.Server) -> None:
            servicer = secagg_servicer(service, Log("aggregator", stream=io.StringIO()))
            secagg_service_pb2_grpc.add_SecureAggregationServiceServicer_to_server(servicer, server)

        server = serve(address="127.0.0.1:0", identity=tls, add=add, service_names=[NAME])
        stack.callback(server.stop)
        self.channel = stack.enter_context(connect(server.address, tls.ca_pem))
        self.stub = secagg_service_pb2_grpc.SecureAggregationServiceStub(self.channel)
        self.address = server.address

    def begin(self) -> SecAggRounds:
        return SecAggRounds(
            self.state,
            self.parts,
            Log("aggregator", stream=self.log),
            pace=PACE,
            clock=lambda: self.now,
            wall=lambda: self.now,
            rosters=self.rosters,
            limits=self.limits,
        )

    def call(self, method: Callable[..., Any], request: object) -> Any:
        return call(method, request, timeout=20.0, what="ask", address=self.address)

    def join(self) -> wire.JoinResponse:
        return self.call(self.stub.Join, wire.JoinRequest(task_sha256=self.key[0], round=0))

    def config(self) -> bytes:
        reply = self.join()
        return reply.config if reply.WhichOneof("answer") == "config" else b""

    def total(self) -> np.ndarray:
        """Charges nothing, and has the round unmasked by whoever gave shares."""
        survivors = self.rounds.require_ready(self.key)
        return np.frombuffer(self.rounds.take_sum(self.key, survivors).sum, "<i8")


class Clients:
    """Clients of one session, by number; their vectors are random."""

    def __init__(
        self, host: Host, clients: int = CLIENTS, *, seed: int = 1, members: Sequence[SigningKey] = ()
    ) -> None:
        self.host = host
        rng = np.random.default_rng(seed)
        self.configuration = Configuration.open(host.config())
        keys = members or [SigningKey.from_bytes(rng.bytes(32)) for _ in range(clients)]
        roster = frozenset(key.public for key in members) if members else None
        self.clients = [Client(self.configuration, key, roster=roster, random_bytes=rng.bytes) for key in keys]
        self.names = [
            wire.SecAggClient(
                task_sha256=host.key[0], round=0, attempt=self.configuration.attempt, identity=client.advert.identity,
                token=rng.bytes(32),
            )
            for client in self.clients
        ]  # fmt: skip
        self.vectors = rng.integers(-1000, 1000, (len(keys), host.length))
        self.here = set(range(len(keys)))
        self.told: dict[int, Any] = {}

    def step(self, number: int, **message: Any) -> wire.StepResponse:
        request = wire.StepRequest(client=self.names[number], **message)
        return self.host.call(self.host.stub.Step, request)

    def message(self, number: int, step: str) -> dict[str, Any]:
        """The client's message of a step, out of what it was told."""
        client, told = self.clients[number], self.told.get(number)
        if step == "advertise":
            return {"advert": client.advert}
        if step == "reveal":
            return {"reveal": client.reveal(told.adverts)}
        if step == "share":
            return {"shares": client.share(told.reveals)}
        if step == "masked":
            return {"masked": client.mask(told.inbox, self.vectors[number])}
        if step == "agree":
            return {"agreement": client.agree(told.survivors)}
        return {"unmask": client.unmask(told.agreements)}

    def send(self, step: str) -> None:
        """Everybody who is here sends its message of a step."""
        for number in sorted(self.here):
            self.step(number, **self.message(number, step))

    def listen(self) -> None:
        """Everybody who is here is told what comes next."""
        self.told = {number: self.step(number) for number in self.here}

    def through(self, last: str, *, gone: Collection[int] = (), before: str = "") -> None:
        """All steps up to ``last``; who is in ``gone`` vanishes before one of them, and time goes by."""
        for step in STEPS[: STEPS.index(last) + 1]:
            if step == before:
                self.here -= set(gone)
            self.send(step)
            if step == before:
                self.host.now += PACE.vector if step == "masked" else PACE.step
            if step != last:
                if step == "agree":
                    self.host.rounds.session(self.host.key, self.configuration.attempt).allow_unmasking()
                self.listen()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def host(tmp_path: Path, stack: contextlib.ExitStack) -> Host:
    return Host(tmp_path, stack, asked())


@pytest.mark.parametrize("fraction", [0.1, 0.3])
@pytest.mark.parametrize("before", ["share", "masked", "agree", "unmask"])
@pytest.mark.slow
def test_the_sum_is_that_of_those_who_sent_whoever_vanishes(host: Host, before: str, fraction: float) -> None:
    clients, gone = Clients(host), range(int(fraction * CLIENTS))
    clients.through("unmask", gone=gone, before=before)
    counted = range(0 if before in ("agree", "unmask") else len(gone), CLIENTS)
    np.testing.assert_array_equal(host.total(), clients.vectors[counted].sum(axis=0))


def test_one_that_does_not_reveal_ends_the_attempt_and_the_next_is_without_it(host: Host) -> None:
    clients = Clients(host)
    clients.through("advertise")
    clients.listen()
    clients.here -= {3}
    clients.send("reveal")
    host.now += PACE.step
    assert clients.step(0).end.reason == END.REASON_VOIDED
    second = Clients(host, CLIENTS - 1, seed=2)
    assert second.configuration.attempt == 1
    second.send("advertise")
    host.now += 60.0 - PACE.silent
    second.listen()  # who is here says so: silent clients are left out
    host.now += PACE.silent
    second.listen()
    for step in STEPS[1:]:
        second.send(step)
        if step == "agree":
            host.rounds.session(host.key, 1).allow_unmasking()
        if step != "unmask":
            second.listen()
    np.testing.assert_array_equal(host.total(), second.vectors.sum(axis=0))


def test_clients_that_fell_silent_are_not_in_the_session_that_begins(host: Host) -> None:
    clients = Clients(host)
    for number in range(CLIENTS - 1):
        clients.step(number, **clients.message(number, "advertise"))
    host.now += PACE.silent + 1.0
    for number in range(5, CLIENTS - 1):
        clients.step(number)
    host.now += 60.0 - 2 * PACE.silent
    for number in range(5, CLIENTS - 1):
        clients.step(number)
    host.now += PACE.silent
    assert len(clients.step(5).adverts.adverts) == CLIENTS - 6
    assert clients.step(0).end.reason == END.REASON_DROPPED


def test_more_dropouts_than_declared_void_the_session_and_nothing_can_be_charged(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    clients.here = set(range(10, CLIENTS))  # ten of thirty are gone, nine were declared
    clients.send("masked")
    host.now += PACE.vector
    assert clients.step(15).end.reason == END.REASON_VOIDED
    with pytest.raises(PrivacyError, match="no session of the round can be unmasked now"):
        host.rounds.require_ready(host.key)


def test_nobody_waits_for_a_client_that_says_that_it_leaves(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    for number in (2, 9):
        assert clients.step(number, leave=True).end.reason == END.REASON_DROPPED
    clients.here -= {2, 9}
    clients.send("masked")
    assert clients.step(5).WhichOneof("answer") == "survivors"
    assert clients.step(2).end.reason == END.REASON_DROPPED


def test_a_vector_that_comes_after_its_client_was_declared_dead_is_not_added(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    late = clients.message(0, "masked")
    clients.here -= {0}
    clients.send("masked")
    host.now += PACE.vector
    assert clients.step(0, **late).end.reason == END.REASON_DROPPED
    clients.listen()
    clients.send("agree")
    assert clients.step(0, **late).end.reason == END.REASON_DROPPED
    host.rounds.session(host.key, 0).allow_unmasking()
    clients.listen()
    clients.send("unmask")
    np.testing.assert_array_equal(host.total(), clients.vectors[1:].sum(axis=0))


def test_nobody_is_asked_for_shares_before_the_charge_and_shares_are_not_taken(host: Host) -> None:
    clients = Clients(host)
    clients.through("masked")
    clients.listen()
    clients.send("agree")
    session = host.rounds.session(host.key, 0)
    assert session is not None
    assert session.phase is Phase.READY
    assert clients.step(4).WhichOneof("answer") == "wait"
    with pytest.raises(ServiceError, match="no request for shares was sent yet"):
        clients.step(4, unmask={"session": bytes(32)})
    assert host.rounds.survivors(host.key) == CLIENTS


def test_the_same_message_again_changes_nothing_and_gets_the_same_answer(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    messages = {number: clients.message(number, "masked") for number in range(CLIENTS)}
    for _ in range(2):
        answers = [clients.step(number, **message) for number, message in messages.items()]
    assert {answer.survivors.survivors for answer in answers} == {b"\xff\xff\xff\x3f"}
    clients.listen()
    clients.send("agree")
    host.rounds.session(host.key, 0).allow_unmasking()
    clients.listen()
    clients.send("unmask")
    assert clients.step(2).end.reason == END.REASON_DONE
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


def test_who_does_not_know_the_token_cannot_speak_for_a_client(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    message = clients.message(7, "masked")
    clients.names[7].token = bytes(32)
    with pytest.raises(ServiceError, match="another client of the session has this identity"):
        clients.step(7, **message)


def test_r386_a_client_that_died_before_its_session_began_takes_its_seat_again(host: Host) -> None:
    """All others wait for it: without it, the session would gather for as long as the round is open."""
    before, clients = Clients(host), Clients(host)
    clients.clients[3] = Client(clients.configuration, before.clients[3]._identity, random_bytes=os.urandom)
    clients.names[3].token = bytes(31) + b"3"
    before.step(3, **before.message(3, "advertise"))
    clients.through("share")
    with pytest.raises(ServiceError, match="another client of the session has this identity"):
        before.step(3)
    clients.listen()
    assert len(clients.told) == CLIENTS
    clients.send("masked")
    clients.listen()
    clients.send("agree")
    host.rounds.session(host.key, 0).allow_unmasking()
    clients.listen()
    clients.send("unmask")
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


def test_r386_who_does_not_sign_for_an_identity_does_not_take_its_seat(host: Host) -> None:
    clients = Clients(host)
    clients.step(3, **clients.message(3, "advertise"))
    forged = messages.SecAggAdvert.FromString(clients.clients[4].advert.SerializeToString())
    forged.identity = clients.clients[3].advert.identity
    token, clients.names[3].token = clients.names[3].token, bytes(31) + b"3"
    with pytest.raises(ServiceError, match="the keys of the client are refused"):
        clients.step(3, advert=forged)
    clients.names[3].token = token
    clients.through("share")


def test_changed_and_cut_messages_are_refused_and_the_sum_is_right(host: Host) -> None:
    """Messages of three clients are sent cut, and with one bit changed, before they are sent as they are.

    Not changed: a vector, or shares, of the right length. The host cannot tell those from others: a vector's numbers
    and what is sealed for others are the client's own affair.
    """
    clients = Clients(host)
    raw = host.channel.unary_unary(f"/{NAME}/Step")
    rng = np.random.default_rng(3)
    accepted = 0
    for step in STEPS:
        for number in sorted(clients.here):
            message = clients.message(number, step)
            whole = wire.StepRequest(client=clients.names[number], **message).SerializeToString()
            for _ in range(4 if number < 3 else 0):
                bad = bytearray(whole)
                # Behind the name of the client: another name is another client.
                place = int(rng.integers(clients.names[number].ByteSize() + 8, len(bad)))
                bad[place] ^= 1 << int(rng.integers(8))
                changed = (bytes(bad),) if step in ("advertise", "reveal", "agree") else ()
                for damaged in (*changed, whole[:place]):
                    with contextlib.suppress(grpc.RpcError):
                        raw(damaged, timeout=20.0)
                        accepted += 1
            clients.step(number, **message)
        if step == "agree":
            host.rounds.session(host.key, 0).allow_unmasking()
        if step != "unmask":
            clients.listen()
    assert accepted == 0
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


def test_a_stream_that_is_cut_or_too_long_leaves_nothing(host: Host) -> None:
    clients = Clients(host)
    clients.through("share")
    clients.listen()
    masked = clients.message(0, "masked")["masked"]

    def parts(vector: bytes) -> Iterator[wire.SendMaskedRequest]:
        yield wire.SendMaskedRequest(client=clients.names[0])
        yield wire.SendMaskedRequest(session=masked.session)
        for start in range(0, len(vector), 64):
            yield wire.SendMaskedRequest(chunk=vector[start : start + 64])

    for bad in (masked.vector[:-4], masked.vector + b"1234"):
        with pytest.raises(ServiceError, match="Expected a masked vector of"):
            host.call(host.stub.SendMasked, parts(bad))
    assert host.call(host.stub.SendMasked, parts(masked.vector)).answer.WhichOneof("answer") == "wait"
    clients.here -= {0}
    clients.send("masked")
    clients.here |= {0}
    clients.listen()
    clients.send("agree")
    host.rounds.session(host.key, 0).allow_unmasking()
    clients.listen()
    clients.send("unmask")
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


def test_too_few_shares_after_the_charge_leave_the_round_without_a_sum_for_ever(host: Host) -> None:
    clients = Clients(host)
    clients.through("agree")
    survivors = host.rounds.require_ready(host.key)
    session = host.rounds.session(host.key, 0)
    session.allow_unmasking()
    clients.listen()
    clients.here = {0, 1}
    clients.send("unmask")
    host.now += PACE.step
    with pytest.raises(PrivacyError, match=r"round 0 is void: .* its charge stays"):
        host.rounds.take_sum(host.key, survivors)
    with pytest.raises(PrivacyError, match="is void"):
        host.rounds.take_sum(host.key, survivors)
    assert host.config() == b"", "no further session of a charged round"


def test_a_host_that_starts_again_never_uses_the_number_of_an_attempt_twice(host: Host) -> None:
    """The same number again gathers clients before anybody was told who is in it, and never after it was void."""
    for attempt in range(MOST_ATTEMPTS):
        for _ in range(2):
            assert Configuration.open(host.rounds.join(host.key) or b"").attempt == attempt
            host.rounds = host.begin()
            host.rounds.restore(host.key)
        session = host.rounds.session(host.key, attempt)
        assert session is not None
        session.void("a test ends it")
        host.rounds.join(host.key)  # the next number is on the disk
        host.rounds = host.begin()
        host.rounds.restore(host.key)
    assert host.rounds.join(host.key) is None
    with pytest.raises(PrivacyError, match="its 4 sessions ended without a sum; it has no release"):
        host.rounds.survivors(host.key)
    host.rounds.keep_only([])
    assert not list(host.root.glob("secagg-*"))


def test_r197_a_stranger_that_ends_every_session_ends_the_round_with_its_reason_and_few_lines(host: Host) -> None:
    """It fills each session, and never reveals. Nobody polls for ever, and polls leave no line in the log."""
    for attempt in range(MOST_ATTEMPTS):
        stranger = Clients(host, seed=attempt)
        assert stranger.configuration.attempt == attempt
        assert host.rounds.survivors(host.key) == 0
        stranger.send("advertise")
        host.now += PACE.step
        assert stranger.step(0).end.reason == END.REASON_VOIDED
    reason = r"its 4 sessions ended without a sum \(the last: 30 clients did not reveal"
    for _ in range(50):
        with pytest.raises(PrivacyError, match=reason):
            host.rounds.survivors(host.key)
        assert host.join().end.reason == END.REASON_VOIDED
        assert stranger.step(0).end.reason == END.REASON_VOIDED
    lines = host.log.getvalue().splitlines()
    assert sum("secagg_void" in line for line in lines) == MOST_ATTEMPTS
    assert sum("secagg_failed" in line for line in lines) == 1
    assert len(lines) == 2 * MOST_ATTEMPTS + 1, "and one for each that began to gather"
    host.rounds = host.begin()
    host.rounds.restore(host.key)
    with pytest.raises(PrivacyError, match="its 4 sessions ended without a sum"):
        host.rounds.survivors(host.key)


def test_r198_a_goal_that_no_session_could_ever_reach_fails_the_round_at_once(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    host = Host(tmp_path, stack, asked(goal=200), limits=SessionLimits(memory=4 * MEBIBYTE))
    assert host.join().end.reason == END.REASON_VOIDED
    with pytest.raises(PrivacyError, match=r"needs \d+ MiB of memory, and this host has 2 for one session"):
        host.rounds.survivors(host.key)


def test_r198_a_host_takes_few_rounds_at_once_and_goes_on_when_one_is_over(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secagg_rounds, "MOST_ROUNDS", 3)
    keys = [(bytes([number]) * 32, 0) for number in range(5)]
    for key in keys[:2]:
        assert host.rounds.keep(key, host.request)
    with pytest.raises(Busy, match="3 rounds of SecAgg\\+ are open here"):
        host.rounds.keep(keys[2], host.request)
    assert not host.rounds.keep(keys[0], host.request), "one that is open already"
    host.rounds.forget(keys[0])
    assert host.rounds.keep(keys[3], host.request)


def test_a_client_is_admitted_once_and_before_the_host_holds_anything_of_it(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    asked_for: list[bytes] = []

    class Picky:
        def require(self, request: wire.StepRequest) -> None:
            asked_for.append(request.client.identity)
            if len(asked_for) == 2:
                raise PrivacyError("no token")

    host = Host(tmp_path, stack, asked(), admission=Picky())
    clients = Clients(host)
    clients.step(0, **clients.message(0, "advertise"))
    clients.step(0, **clients.message(0, "advertise"))
    clients.step(0)
    with pytest.raises(ServiceError, match="no token"):
        clients.step(1, **clients.message(1, "advertise"))
    session = host.rounds.session(host.key, 0)
    assert session is not None
    assert [session.holds(client.advert.identity) for client in clients.clients[:2]] == [True, False]
    assert asked_for == [client.advert.identity for client in clients.clients[:2]]


def test_a_client_joins_with_a_token_over_its_identity_alone_in_every_attempt(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    issuer, signer = SigningKey.generate(), BlindSigner.generate()

    def token_key(definition: common_pb2.TaskDefinition, task: bytes) -> enrolment_pb2.SignedTokenKey:
        return TokenKey(definition.population, task, 0, signer.public.to_bytes(), 2**33).signed(issuer)

    def token(identity: bytes, message: Callable[[bytes], bytes] = domains.session_token) -> bytes:
        blinding = blind(signer.public, message(identity))
        return finalize(signer.public, blinding, signer.sign(blinding.blinded_message))

    def join(clients: Clients, number: int, admission: bytes) -> None:
        clients.step(number, **clients.message(number, "advertise"), admission_token=admission)

    host = Host(tmp_path, stack, asked(), token_key=token_key)
    for attempt in (0, 1):
        # The same identities in both attempts.
        clients = Clients(host)
        identities = [client.advert.identity for client in clients.clients]
        mine, others = token(identities[0]), token(identities[1])
        wrong = [b"", mine[:-1], bytes(256), others, token(identities[0], domains.contribution_token)]
        for one in wrong:
            with pytest.raises(ServiceError, match="token") as refused:
                join(clients, 0, one)
            assert "\n" not in str(refused.value)
        join(clients, 0, mine)
        join(clients, 1, others)
        session = host.rounds.session(host.key, attempt)
        assert session is not None
        assert [session.holds(identity) for identity in identities[:3]] == [True, True, False]
        # Once it has its seat, the session's own secret is what names it.
        join(clients, 0, b"")
        session.void("everybody left")
    restarted = host.begin()
    restarted.restore(host.key)
    assert restarted.token_key(host.key) == host.rounds.token_key(host.key)


def test_a_stranger_cannot_join_and_end_a_session_of_a_task_that_names_the_hosts_roster(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    rng = np.random.default_rng(1)
    members = [SigningKey.from_bytes(rng.bytes(32)) for _ in range(CLIENTS)]
    roster = {member.public for member in members}
    host = Host(
        tmp_path, stack, asked(roster_sha256=hash_of(roster).hex(), roster_size=CLIENTS), rosters=[{bytes(32)}, roster]
    )
    strangers = [SigningKey.from_bytes(rng.bytes(32)) for _ in range(2)]
    with pytest.raises(ServiceError, match="not on the roster"):
        Clients(host, seed=3, members=strangers).send("advertise")
    clients = Clients(host, members=members)
    clients.through("unmask")
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


@pytest.mark.parametrize("named", [False, True], ids=["no roster", "one that the host does not hold"])
def test_a_host_leaves_the_choice_to_the_devices_where_it_holds_no_roster_of_the_task(
    tmp_path: Path, stack: contextlib.ExitStack, named: bool
) -> None:
    rng = np.random.default_rng(5)
    members = [SigningKey.from_bytes(rng.bytes(32)) for _ in range(CLIENTS)]
    roster = frozenset(member.public for member in members)
    task = asked(roster_sha256=hash_of(roster).hex(), roster_size=CLIENTS) if named else asked()
    host = Host(tmp_path, stack, task, rosters=[{bytes(32)}])
    clients = Clients(host, members=members if named else ())
    clients.through("unmask")
    np.testing.assert_array_equal(host.total(), clients.vectors.sum(axis=0))


@pytest.mark.parametrize("wrong", [{"step": 0.0}, {"vector": -1.0}, {"silent": float("nan")}, {"step": 1e9}])
def test_a_pace_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Pace(**wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--roster", "nowhere.txt"], "roster nowhere.txt cannot be read"), (["--secagg-step", "0"], "step=0.0")],
)
def test_the_program_refuses_a_roster_or_a_pace_that_it_cannot_keep(
    tmp_path: Path, options: list[str], says: str
) -> None:
    answer = CliRunner().invoke(aggregator_app, ["--state", str(tmp_path / "state"), *options])
    assert answer.exit_code != 0
    assert says in str(answer.exception)

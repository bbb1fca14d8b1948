"""The aggregator's enclave as a process: it restores its state over the socket to its host, then serves the host.

The platform measures this module with everything that it imports, and starts it without network and without files: the
socket is all it has. ``warm_up`` runs before the doors close.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator, Sequence

from odp.enclave.channel import Connection, Route, serve
from odp.enclave.enclave_start import begin, evidence_reply, expect
from odp.enclave.guest import Guest
from odp.enclave.identity import EnclaveIdentity
from odp.errors import AttestationError, ConfigurationError, PrivacyError, TransparencyError
from odp.numerics import thin_scipy
from odp.privacy.mechanisms import IntegerNoise
from odp.v1 import aggregator_pb2, common_pb2, enclave_pb2, population_pb2
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Submit
from trusted_aggregator.enclave import tree_routes
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.hand_over_rehearsal import rehearse_hand_over
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.rehearsal import rehearse
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.submissions import Submissions
from trusted_aggregator.enclave.taking_over import TakingOver
from trusted_aggregator.enclave.tree_rehearsal import rehearse_tree
from trusted_aggregator.state.records import SealedRecord

#: More than a host of ours ever sends at once.
_MOST_SUBMITS = 4096


def warm_up() -> None:
    """Runs every step once, so that all lazy imports are loaded, with the thin SciPy in place of the library.

    Raises:
        StateError: this process has loaded SciPy already.
        ConfigurationError: the installed SciPy is not one that the thin one can call.
    """
    thin_scipy.install()
    rehearse()
    rehearse_hand_over()
    rehearse_tree()


def run(channel: socket.socket, guest: Guest, *, noise: IntegerNoise | None = None) -> None:
    """Serves the host at the other end of ``channel`` until it closes it.

    ``noise`` replaces the exact noise where a test runs this in its own process; the platform never gives one.

    Raises:
        StateError: the host broke the framing.
    """
    connection = Connection(channel)
    served: dict[str, Route] = {}

    def start(identity: EnclaveIdentity) -> enclave_pb2.Ready:
        if identity.policy.role == "leaf":
            _records(connection, expect(connection, "records").records)
            served.update(leaf_routes(LeafCore(identity), identity))
            return enclave_pb2.Ready()
        page, taking = _predecessor(connection, identity)
        records = _records(connection, page)
        if taking is None:
            state = EnclaveState(identity)
            writes = restore(state, records, functools.partial(_contributions, connection))
        else:
            state, writes = taking.state, taking.finish(records)
        served.update(routes(AggregatorCore(state, noise=noise)))
        return enclave_pb2.Ready(writes=wire.records(writes))

    if begin(connection, guest, start) is not None:
        serve(connection, served)


def _predecessor(
    connection: Connection, identity: EnclaveIdentity
) -> tuple[enclave_pb2.SealedRecords, TakingOver | None]:
    """The first page of records, and the hand-over if the host sent one before it."""
    taking: TakingOver | None = None
    while True:
        request = expect(connection, "records", "ask_nonce", "evidence", "take_over", "reseal")
        call = request.WhichOneof("call")
        if call == "records":
            return request.records, taking
        if call == "evidence":
            connection.send(0, evidence_reply(identity, request))
            continue
        taking = TakingOver(identity) if taking is None else taking
        if call == "ask_nonce":
            connection.send(0, EnclaveReply(nonce=enclave_pb2.DrawnNonce(nonce=taking.draw_nonce())))
        elif call == "take_over":
            with _told():
                taking.accept(request.take_over.package, request.take_over.log)
            connection.send(0, EnclaveReply(done=enclave_pb2.Done()))
        else:
            given = SealedRecord(request.reseal.key, request.reseal.data)
            connection.send(0, _written(taking.reseal(given)))


def _records(connection: Connection, page: enclave_pb2.SealedRecords) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while True:
        found.update((record.key, record.data) for record in page.records)
        if page.last:
            return found
        page = expect(connection, "records").records


def _contributions(connection: Connection, task_sha256: bytes, round: int) -> Iterator[bytes]:
    wanted = enclave_pb2.WantContributions(task_sha256=task_sha256, round=round)
    connection.send(0, EnclaveReply(want=wanted))
    while True:
        page = expect(connection, "contributions").contributions
        yield from page.sealed
        if page.last:
            return


def routes(core: AggregatorCore) -> dict[str, Route]:
    """The routes for calls of the host. A release may take long, so submissions and short queries have their own
    threads.
    """
    calls = _Calls(core)
    return {
        **_Submits(core.submissions, core.state, core.state.identity).routes,
        "round_key": Route("change", calls.round_key),
        "host_parts": Route("change", calls.host_parts),
        "announce": Route("change", calls.announce),
        "give_up": Route("change", calls.give_up),
        "check_task": Route("change", calls.check_task),
        "open_round": Route("change", calls.open_round),
        "charge": Route("change", calls.charge),
        "seal_release": Route("change", calls.seal_release),
        "release": Route("change", calls.release),
        "take_piece": Route("change", calls.take_piece),
        "give_piece": Route("change", calls.give_piece),
        "set_charter": Route("change", calls.set_charter),
        "charter": Route("change", calls.charter),
        "commit": Route("change", calls.commit),
        "abandon": Route("change", calls.abandon),
        "forget_task": Route("change", calls.forget_task),
        "ledger": Route("change", calls.ledger),
        "ask_nonce": Route("change", calls.ask_nonce),
        "begin_hand_over": Route("change", calls.begin_hand_over),
        "finish_hand_over": Route("change", calls.finish_hand_over),
        **({} if core.tree is None else tree_routes.root_routes(core.tree)),
    }


def leaf_routes(core: LeafCore, identity: EnclaveIdentity) -> dict[str, Route]:
    """The routes for calls of the host of a leaf."""
    return {**_Submits(core.submissions, core, identity).routes, **tree_routes.leaf_routes(core)}


class _Submits:
    """Calls about contributions, which a leaf has, too."""

    def __init__(self, submissions: Submissions, rounds: EnclaveState | LeafCore, identity: EnclaveIdentity) -> None:
        self._submissions = submissions
        self._rounds = rounds
        self._identity = identity

    @property
    def routes(self) -> dict[str, Route]:
        """The routes for them."""
        return {
            "submit": Route("submit", self.submit, self.submit_long),
            "sign_refusal": Route("submit", self.sign_refusal),
            "sealed_length": Route("ask", self.sealed_length),
            "evidence": Route("ask", self.evidence),
            "rounds": Route("ask", self.rounds),
        }

    def submit(self, request: EnclaveRequest) -> EnclaveReply:
        return self._submitted(wire.submits_of(request.submit))

    def submit_long(self, request: bytes) -> EnclaveReply:
        return self._submitted(wire.submits_in(request))

    def _submitted(self, submits: Sequence[Submit]) -> EnclaveReply:
        if len(submits) > _MOST_SUBMITS:
            raise ConfigurationError(f"Expected at most {_MOST_SUBMITS} contributions at once, got {len(submits)}")
        return EnclaveReply(submitted=wire.submitted(self._submissions.submit_batch(submits)))

    def sign_refusal(self, request: EnclaveRequest) -> EnclaveReply:
        return EnclaveReply(submitted=wire.submitted([self._submissions.sign_refusal(request.sign_refusal)]))

    def sealed_length(self, request: EnclaveRequest) -> EnclaveReply:
        asked = request.sealed_length.task_sha256, request.sealed_length.round
        return EnclaveReply(
            sealed_length=wire.sealed_length(
                self._submissions.sealed_bytes(*asked), self._submissions.host_part_bytes(*asked)
            )
        )

    def evidence(self, request: EnclaveRequest) -> EnclaveReply:
        return evidence_reply(self._identity, request)

    def rounds(self, request: EnclaveRequest) -> EnclaveReply:
        asked = request.rounds
        if asked.HasField("only"):
            state = self._rounds.round_state(asked.only.task_sha256, asked.only.round)
            states = [] if state is None else [state]
        else:
            states = self._rounds.round_states()
        return EnclaveReply(rounds=wire.round_states(states))


class _Calls:
    """Converts messages to calls of the core and back; the core checks their content."""

    def __init__(self, core: AggregatorCore) -> None:
        self._core = core

    def round_key(self, request: EnclaveRequest) -> EnclaveReply:
        found = self._core.rounds.round_key(request.round_key.task_sha256, request.round_key.round)
        return EnclaveReply(round_key=common_pb2.SignedRoundKey() if found is None else found)

    def host_parts(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.host_parts
        digests = self._core.rounds.host_parts(given.task_sha256, given.round, given.start)
        return EnclaveReply(host_parts=enclave_pb2.HostParts(digests=digests))

    def announce(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.announce
        self._core.rounds.announce(given.task_sha256, given.round, given.clients, given.set_sha256)
        return EnclaveReply(done=enclave_pb2.Done())

    def give_up(self, request: EnclaveRequest) -> EnclaveReply:
        return _written(self._core.rounds.give_up(request.give_up.task_sha256, request.give_up.round))

    def check_task(self, request: EnclaveRequest) -> EnclaveReply:
        self._core.rounds.check_task(request.check_task.task)
        return EnclaveReply(done=enclave_pb2.Done())

    def open_round(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.open_round
        return _written(self._core.rounds.open_round(given.task, given.order, given.signature, given.token_key))

    def charge(self, request: EnclaveRequest) -> EnclaveReply:
        return EnclaveReply(charged=self._core.rounds.charge(request.charge.order, request.charge.signature))

    def seal_release(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.seal_release
        return _written(
            self._core.rounds.seal_release(
                given.order,
                noise=given.noise if given.HasField("noise") else None,
                stream=given.stream if given.HasField("stream") else None,
                host_sum=wire.host_sum_of(given),
            )
        )

    def release(self, request: EnclaveRequest) -> EnclaveReply:
        signed = self._core.rounds.release(request.release.order, stored=request.release.stored)
        return EnclaveReply(released=enclave_pb2.ReleasedRound(signed_release=signed))

    def take_piece(self, request: EnclaveRequest) -> EnclaveReply:
        data = self._core.large_values.take_piece(request.take_piece.key, request.take_piece.number)
        return EnclaveReply(piece=enclave_pb2.SealedPiece(data=data))

    def give_piece(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.give_piece
        self._core.large_values.give_piece(given.task_sha256, given.round, given.record, given.number, given.data)
        return EnclaveReply(done=enclave_pb2.Done())

    def set_charter(self, request: EnclaveRequest) -> EnclaveReply:
        return _written(self._core.owners.set_charter(request.set_charter))

    def charter(self, request: EnclaveRequest) -> EnclaveReply:
        found = self._core.owners.charter(request.charter.population)
        return EnclaveReply(charter=population_pb2.SignedCharter() if found is None else found)

    def commit(self, request: EnclaveRequest) -> EnclaveReply:
        self._core.state.commit()
        return EnclaveReply(done=enclave_pb2.Done())

    def abandon(self, request: EnclaveRequest) -> EnclaveReply:
        given = request.abandon
        return _written(self._core.owners.abandon(given.task, given.order, given.signature))

    def forget_task(self, request: EnclaveRequest) -> EnclaveReply:
        return _written(self._core.rounds.forget(request.forget_task.task_sha256))

    def ledger(self, request: EnclaveRequest) -> EnclaveReply:
        head, signature = self._core.owners.ledger(request.ledger.task_sha256) or (b"", b"")
        return EnclaveReply(ledger=aggregator_pb2.GetLedgerResponse(head=head, signature=signature))

    def ask_nonce(self, request: EnclaveRequest) -> EnclaveReply:
        return EnclaveReply(nonce=enclave_pb2.DrawnNonce(nonce=self._core.hand_over.draw_nonce()))

    def begin_hand_over(self, request: EnclaveRequest) -> EnclaveReply:
        with _told():
            return _written(self._core.hand_over.begin_hand_over(request.begin_hand_over))

    def finish_hand_over(self, request: EnclaveRequest) -> EnclaveReply:
        with _told():
            return EnclaveReply(package=self._core.hand_over.finish_hand_over(request.finish_hand_over))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Passes on why the other enclave was refused: the reason is public, and the operator needs it."""
    try:
        yield
    except (AttestationError, TransparencyError) as error:
        raise PrivacyError(str(error)) from error


def _written(writes: Sequence[SealedRecord]) -> EnclaveReply:
    return EnclaveReply(writes=enclave_pb2.RecordWrites(records=wire.records(writes)))

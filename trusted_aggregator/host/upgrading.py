"""The new host's half of a hand-over: `odp enclave upgrade`, from an empty state folder to one that the program opens.

Every step can be repeated: until the new enclave's records are stored, in one transaction, the new folder holds nothing
but its keys, and the old host gives the same again. What the enclaves check is in ``hand_over``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from odp._system.files.state_folder import StateFolder
from odp.errors import ServiceError, StateError
from odp.signed.charter import open_charter
from odp.transport.channel import LONG_DEADLINE, SHORT_DEADLINE, call
from odp.transport.logs import Log
from odp.trust.enclave.channel import Client
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.enclave.host import Launch, begin, launch_process
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.verifier import HAND_OVER_NONCE_BYTES
from odp.v1 import (
    aggregator_enclave_pb2,
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    hand_over_pb2,
    population_pb2,
)
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.host.hand_over_service import HISTORY, ROOT_NAME, read_history
from trusted_aggregator.host.remote import Successor, restore
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.rounds.host_half import write_attempts
from trusted_aggregator.state.records import (
    LEDGER_PREFIX,
    PARTICIPATION_PREFIX,
    RELEASE_PREFIX,
    STREAM_PREFIX,
    SealedRecord,
    release_of,
)

ROLE = "aggregator"
#: (image, the predecessor's, policy) -> what the enclaves see of the log: the endorsements of both, and every leaf.
Excerpt = Callable[[str, str, EnclavePolicy], hand_over_pb2.LogExcerpt]

_ASK_SECONDS = 2.0
# For rounds that are charged, and sessions under way, once the others are void.
_FINISH_SECONDS = 120.0


class PredecessorClient:
    """The old aggregator, over gRPC; ``public`` and ``control`` reach its two listeners, at the two addresses.

    Raises ServiceError where it refuses or does not answer.
    """

    def __init__(self, public: grpc.Channel, control: grpc.Channel, *, address: str, control_address: str) -> None:
        self._attestation = attestation_pb2_grpc.AttestationServiceStub(public)
        self._stub = aggregator_pb2_grpc.AggregatorControlServiceStub(control)
        self._address, self._control_address = address, control_address

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        request = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        return call(
            self._attestation.GetEvidence, request, timeout=SHORT_DEADLINE, what="ask the aggregator for its evidence",
            address=self._address,
        )  # fmt: skip

    def nonce(self) -> bytes:
        """For evidence of the successor."""
        reply: aggregator_pb2.AskNonceResponse = call(
            self._stub.AskNonce, aggregator_pb2.AskNonceRequest(), timeout=LONG_DEADLINE,
            what="ask the aggregator for a nonce", address=self._control_address,
        )  # fmt: skip
        return reply.nonce

    def hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverResponse:
        """The package, or the rounds that have to close first."""
        return call(
            self._stub.HandOver, request, timeout=LONG_DEADLINE, what="take the aggregator's populations over",
            address=self._control_address,
        )  # fmt: skip

    def records(self, after: str) -> list[SealedRecord]:
        """Handed-over records with keys above ``after``; none after the last one."""
        what = "fetch the records that were handed over"
        reply: aggregator_pb2.GetHandedRecordsResponse = call(
            self._stub.GetHandedRecords, aggregator_pb2.GetHandedRecordsRequest(after=after), timeout=LONG_DEADLINE,
            what=what, address=self._control_address,
        )  # fmt: skip
        *whole, last = reply.records or [aggregator_pb2.HandedRecord()]
        while last.unfinished:
            last.unfinished = False
            request = aggregator_pb2.GetHandedRecordsRequest(after=last.key, offset=len(last.data))
            more: aggregator_pb2.GetHandedRecordsResponse = call(
                self._stub.GetHandedRecords, request, timeout=LONG_DEADLINE, what=what, address=self._control_address
            )
            for record in more.records:
                last.data += record.data
                last.unfinished = record.unfinished
        return [SealedRecord(record.key, record.data) for record in (*whole, last) if record.key]

    def charters(self, population: str) -> list[population_pb2.SignedCharter]:
        charters: list[population_pb2.SignedCharter] = []
        while True:
            request = aggregator_pb2.GetChartersRequest(population=population, first=len(charters))
            reply: aggregator_pb2.GetChartersResponse = call(
                self._stub.GetCharters, request, timeout=SHORT_DEADLINE, what="fetch a population's charters",
                address=self._control_address,
            )  # fmt: skip
            if not reply.charters:
                return charters
            charters += reply.charters

    def history(self) -> aggregator_pb2.GetHandOversResponse:
        """The hand-overs that led to the predecessor, oldest first, and what its host had to remember."""
        return call(
            self._stub.GetHandOvers, aggregator_pb2.GetHandOversRequest(), timeout=SHORT_DEADLINE,
            what="fetch the hand-overs before", address=self._control_address,
        )  # fmt: skip


def upgrade(
    state: Path,
    platform: Path,
    predecessor: PredecessorClient,
    excerpt: Excerpt,
    *,
    image: str,
    log: Log,
    waiting: Callable[[hand_over_pb2.WaitingRounds], None] = lambda rounds: None,
    seconds: float = 3600.0,
    void_rounds: bool = False,
    launch: Launch = launch_process,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> hand_over_pb2.HandOverStatement:
    """Makes the enclave of this code the successor of ``predecessor``; returns the statement about it.

    ``image`` is the digest of this code. Its enclave runs under the predecessor's policy, on the chip in the folder
    ``platform``. ``waiting`` is called with the rounds that have to close first. After ``seconds`` of that, this gives
    up, and nothing has changed; or, with ``void_rounds``, open rounds end as void, and their devices contribute again.

    Raises:
        ServiceError: the predecessor refused, did not answer, or its rounds were not closed in time.
        PrivacyError, SignatureError: the enclave refuses the predecessor.
        StateError: the folder holds another enclave's records, or cannot be used.
    """
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(StateFolder.open(state, ROLE))
        storage = SqliteStorage(folder)
        undo.callback(storage.close)
        if storage.keys():
            done = read_history(folder).hand_overs
            if not done:
                raise StateError(f"state folder {state} is in use already; give an empty one for the new version")
            statement = hand_over_pb2.HandOverStatement.FromString(done[-1].statement)
            if statement.successor_image != image:
                raise StateError(
                    f"state folder {state} holds what another version, {statement.successor_image}, has taken "
                    "over; give an empty one for this version"
                )
            return statement
        before = predecessor.evidence(os.urandom(HAND_OVER_NONCE_BYTES))
        policy = EnclavePolicy.from_bytes(before.policy)
        predecessor_image = Claims.from_json(read_token(before.token).claims).image_digest
        begun = begin(
            launch=launch,
            state=folder,
            platform=platform,
            entry=AGGREGATOR_ENTRY,
            policy=policy,
            may_renew=True,
            log=log,
            undo=undo,
        )
        successor = Successor(begun.connection)
        started = clock()
        while True:
            request = hand_over_pb2.HandOverRequest(
                successor=successor.evidence(predecessor.nonce()),
                nonce=successor.draw_nonce(),
                log=excerpt(begun.image_digest, predecessor_image, policy),
                void_rounds=void_rounds and clock() - started >= seconds,
            )
            answer = predecessor.hand_over(request)
            if answer.WhichOneof("answer") == "package":
                break
            waiting(answer.waiting)
            if clock() - started >= seconds + (_FINISH_SECONDS if void_rounds else 0.0):
                raise ServiceError(_too_long(answer.waiting, clock() - started))
            pause(_ASK_SECONDS)
        hand_over = answer.package.hand_over
        successor.take_over(answer.package, request.log)
        records, writes = _resealed(predecessor, successor, storage)
        history = predecessor.history()
        history.hand_overs.append(hand_over)
        writes += restore(begun.connection, records, lambda task, round: ())
        statement = hand_over_pb2.HandOverStatement.FromString(hand_over.statement)
        for handed in statement.populations:
            for charter in predecessor.charters(handed.population):
                storage.keep_charter(handed.population, open_charter(charter).sequence, charter.SerializeToString())
        _keep(folder, history)
        storage.apply(writes)
        client = Client(begun.connection, AggregatorCalls.interface.reply, ended=lambda error: None)
        undo.callback(client.close)
        AggregatorCalls(client).commit(aggregator_enclave_pb2.CommitWrites())
        try:
            predecessor.nonce()  # it erases what it gave away, if it still runs
        except ServiceError as error:
            log.warning(
                "predecessor_unreachable", reason=str(error),
                advice="start the old program once: it erases the past sums of streams that it gave away, and ends",
            )  # fmt: skip
        log.event("taken_over", predecessor=statement.predecessor_image, populations=len(statement.populations))
        return statement


def _keep(folder: StateFolder, history: aggregator_pb2.GetHandOversResponse) -> None:
    """Stores what the predecessor's host remembered."""
    if history.root_name:
        folder.write_atomically(ROOT_NAME, history.root_name)
    if history.attempts:
        write_attempts(folder, history.attempts)
    stated = aggregator_pb2.GetHandOversResponse(hand_overs=history.hand_overs)
    folder.write_atomically(HISTORY, stated.SerializeToString(deterministic=True))


def _too_long(rounds: hand_over_pb2.WaitingRounds, seconds: float) -> str:
    void = rounds.rounds - rounds.unvoidable
    final = (
        f"; {rounds.unvoidable} of them are charged or have a session of devices under way, and have to close: does "
        "their server run?"
        if rounds.unvoidable
        else ""
    )
    return (
        f"{rounds.rounds} rounds with {rounds.contributions} contributions did not close within {seconds:.0f} s{final}"
        "; wait for them or cancel their tasks, then run this again"
        + ("; or end them with --void-rounds: their devices contribute again, and pay once" if void > 0 else "")
    )


def _resealed(
    predecessor: PredecessorClient, successor: Successor, storage: Storage
) -> tuple[dict[str, bytes], list[SealedRecord]]:
    """The predecessor's records that the successor reads first, and the writes to store: entries, and resealed
    releases and streams.

    The pieces of releases are stored here: they are sealed under a key of their record, and stay as they are.
    """
    records: dict[str, bytes] = {}
    writes: list[SealedRecord] = []
    releases: dict[str, bytes] = {}
    for release, handed in itertools.groupby(_handed(predecessor), lambda record: release_of(record.key)):
        if release is not None:
            if release not in releases:
                raise ServiceError(f"the aggregator handed over pieces of {release!r} without its record")
            storage.write_pieces(releases[release], (record.data or b"" for record in handed))
            continue
        for record in handed:
            if record.key.startswith((RELEASE_PREFIX, PARTICIPATION_PREFIX, STREAM_PREFIX)):
                resealed = successor.reseal(record)
                releases.update((each.key, each.data) for each in resealed if each.data is not None)
                writes += resealed
            if record.data is not None and not record.key.startswith((RELEASE_PREFIX, STREAM_PREFIX)):
                records[record.key] = record.data
                if record.key.startswith(LEDGER_PREFIX):  # not sealed: it stays as it is
                    writes.append(record)
    return records, writes


def _handed(predecessor: PredecessorClient) -> Iterator[SealedRecord]:
    after = ""
    while page := predecessor.records(after):
        yield from page
        if page[-1].key <= after:
            raise ServiceError("the aggregator repeats the records that it handed over")
        after = page[-1].key

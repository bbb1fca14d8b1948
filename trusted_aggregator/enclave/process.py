"""The aggregator's enclave as a process: it restores its state over the socket to its host, then serves the host.

It starts an image, which the platform measures and starts without network and without files: the socket is all it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

from odp.algorithms import in_enclaves
from odp.crypto import late_imports
from odp.errors import AttestationError, PrivacyError, TransparencyError
from odp.numerics import thin_scipy
from odp.privacy.mechanisms import IntegerNoise
from odp.trust.enclave.channel import Connection, Route, serve
from odp.trust.enclave.enclave_start import begin, evidence_reply, expect
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import aggregator_enclave_pb2, enclave_pb2
from odp.v1.aggregator_enclave_pb2 import AggregatorEnclaveReply, AggregatorEnclaveRequest
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.wire import AGGREGATOR
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.hand_over import TakingOver
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.submissions import Submissions
from trusted_aggregator.state.records import SealedRecord

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
_LATE = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "mpmath.ctx_mp",
    "numpy.ma",
)


def warm_up() -> None:
    """Imports what the enclave's code and libraries import late, with the thin SciPy in place of the library.

    Raises:
        StateError: this process has loaded SciPy already.
        ConfigurationError: the installed SciPy is not one that the thin one can call.
    """
    thin_scipy.install()
    late_imports.load()
    in_enclaves.load()
    for name in _LATE:
        importlib.import_module(name)


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
            _records(connection, expect(connection, AggregatorEnclaveRequest, "records").records)
            served.update(leaf_routes(LeafCore(identity)))
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
        serve(connection, AGGREGATOR.request, served)


def _predecessor(
    connection: Connection, identity: EnclaveIdentity
) -> tuple[aggregator_enclave_pb2.SealedRecords, TakingOver | None]:
    """The first page of records, and the hand-over if the host sent one before it."""
    taking: TakingOver | None = None
    while True:
        request = expect(
            connection, AggregatorEnclaveRequest, "records", "ask_nonce", "evidence", "take_over", "reseal"
        )
        if (call := request.WhichOneof("call")) == "records":
            return request.records, taking
        if call == "evidence":
            connection.send(0, evidence_reply(identity, request))
            continue
        taking = TakingOver(identity) if taking is None else taking
        if call == "ask_nonce":
            connection.send(
                0, AggregatorEnclaveReply(nonce=aggregator_enclave_pb2.DrawnNonce(nonce=taking.draw_nonce()))
            )
        elif call == "take_over":
            with _reasons():
                taking.accept(request.take_over.package, request.take_over.log)
            connection.send(0, AggregatorEnclaveReply(done=enclave_pb2.Done()))
        else:
            record = SealedRecord(request.reseal.key, request.reseal.data)
            connection.send(0, AGGREGATOR.reply_of(wire.written(taking.reseal(record))))


def _records(connection: Connection, page: aggregator_enclave_pb2.SealedRecords) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    while True:
        records.update((record.key, record.data) for record in page.records)
        if page.last:
            return records
        page = expect(connection, AggregatorEnclaveRequest, "records").records


def _contributions(connection: Connection, task_sha256: bytes, round: int) -> Iterator[bytes]:
    wanted = aggregator_enclave_pb2.WantContributions(task_sha256=task_sha256, round=round)
    connection.send(0, AggregatorEnclaveReply(want=wanted))
    while True:
        page = expect(connection, AggregatorEnclaveRequest, "contributions").contributions
        yield from page.sealed
        if page.last:
            return


def routes(core: AggregatorCore) -> dict[str, Route]:
    """The routes for calls of the host. A release may take long, so submissions and short queries have their own
    threads.
    """
    owners, rounds, hand_over, large = core.owners, core.rounds, core.hand_over, core.large_values
    served = {
        **_shared_routes(core.submissions, core.state.identity),
        **AGGREGATOR.routes(
            "change", owners.set_charter, owners.charter, owners.abandon, owners.ledger, core.state.commit
        ),
        **AGGREGATOR.routes("change", rounds.check_task, rounds.open_round, rounds.round_key, rounds.announce),
        **AGGREGATOR.routes("change", rounds.charge, rounds.host_parts, rounds.seal_release, rounds.release),
        **AGGREGATOR.routes("change", rounds.give_up, rounds.forget_task, large.take_piece, large.give_piece),
        **AGGREGATOR.routes("change", hand_over.ask_nonce),
        **AGGREGATOR.routes("change", _reasoned(hand_over.begin_hand_over), _reasoned(hand_over.finish_hand_over)),
    }
    if core.tree is not None:
        tree = core.tree
        served |= AGGREGATOR.routes(
            "change", tree.leaf_nonce, _reasoned(tree.delegate), tree.check_close, tree.give_part
        )
    return served


def leaf_routes(core: LeafCore) -> dict[str, Route]:
    """The routes for calls of the host of a leaf."""
    return {
        **_shared_routes(core.submissions, core.identity),
        **AGGREGATOR.routes("change", core.ask_nonce, _reasoned(core.open_part)),
        **AGGREGATOR.routes("change", core.close_part, core.take_part, core.erase_part),
    }


def _shared_routes(submissions: Submissions, identity: EnclaveIdentity) -> dict[str, Route]:
    counting = AGGREGATOR.routes("submit", submissions.submit, submissions.sign_refusal)
    return {
        **counting,
        "submit": dataclasses.replace(counting["submit"], handle_long=submissions.submit_long),
        **AGGREGATOR.routes("ask", submissions.sealed_length, submissions.rounds),
        "evidence": Route("ask", functools.partial(evidence_reply, identity)),
    }


def _reasoned(handler: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
    """Passes on why the other enclave was refused: the reason is public, and the operator needs it."""

    @functools.wraps(handler)
    def handle(request: Asked) -> Answer:
        with _reasons():
            return handler(request)

    return handle


@contextlib.contextmanager
def _reasons() -> Iterator[None]:
    try:
        yield
    except (AttestationError, TransparencyError) as error:
        raise PrivacyError(str(error)) from error

"""The distributor's enclave as a process: it restores its keys, then every model, then answers.

It starts an image, which the platform measures and starts without network and without files: the socket is all it has.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping, Sequence

from google.protobuf.message import Message

from distributor.enclave import BATCH, DistributorCore, Upload
from distributor.interface import DISTRIBUTOR
from odp.algorithms import in_enclaves
from odp.crypto import late_imports
from odp.errors import ConfigurationError
from odp.trust.enclave.channel import BatchRoute, Connection, Route, serve
from odp.trust.enclave.enclave_start import begin, evidence_reply
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import enclave_pb2
from odp.v1.distributor_enclave_pb2 import (
    AskModels,
    DistributorEnclaveRequest,
    ForgetModel,
    InstallModel,
    ModelIds,
)
from odp.v1.distributor_pb2 import PublishHeader, SelectResponse


def warm_up() -> None:
    """Imports what the enclave's code and libraries import late."""
    in_enclaves.load()
    late_imports.load()


def run(channel: socket.socket, guest: Guest) -> None:
    """Serves the host at the other end of ``channel`` until it closes it.

    Raises:
        StateError: the host broke the framing.
    """
    connection = Connection(channel)
    if (identity := begin(connection, guest, lambda _: enclave_pb2.Ready())) is not None:
        policy = EnclavePolicy.from_bytes(guest.policy)
        serve(connection, DISTRIBUTOR.request, routes(DistributorCore(identity.hpke, select=policy.select), identity))


def routes(core: DistributorCore, identity: EnclaveIdentity) -> Mapping[str, Route | BatchRoute]:
    """The routes for calls of the host. Checking a model may take long, so selections and short queries have own
    threads.

    Selections that wait are answered together, since one pass over a table serves them all. Pieces of a model are taken
    by the thread that reads: they come in order, and copying them is all there is to do.
    """
    calls = _Calls(core)
    return {
        "select": BatchRoute(calls.select, most=BATCH),
        "evidence": Route("ask", functools.partial(evidence_reply, identity)),
        "chunk": Route(None, calls.chunk),
        **DISTRIBUTOR.routes("ask", calls.models, calls.check_room),
        **DISTRIBUTOR.routes(None, calls.begin_model),
        **DISTRIBUTOR.routes("change", calls.install, calls.forget),
    }


class _Calls:
    """The calls of a host, each under the name of its field; the core checks their content."""

    def __init__(self, core: DistributorCore) -> None:
        self._core = core
        self._upload: Upload | None = None
        self._refused: ConfigurationError | None = None

    def select(self, requests: Sequence[DistributorEnclaveRequest]) -> list[Message | Exception]:
        questions = [(request.select.model_sha256, request.select.sealed_keys) for request in requests]
        return [
            answer if isinstance(answer, Exception) else DISTRIBUTOR.reply_of(SelectResponse(sealed_rows=answer))
            for answer in self._core.select_many(questions)
        ]

    def models(self, request: AskModels) -> ModelIds:
        return ModelIds(model_sha256=self._core.models())

    def check_room(self, header: PublishHeader) -> None:
        self._core.require_capacity(header.task, header.model)

    def forget(self, request: ForgetModel) -> None:
        self._core.forget(request.model_sha256)

    def begin_model(self, header: PublishHeader) -> None:
        # One at a time: the host has one lock around it, and a host without it only spoils its own models.
        self._upload = self._refused = None
        self._upload = self._core.begin(header.task, header.model)

    def chunk(self, request: DistributorEnclaveRequest) -> None:
        if self._upload is None:
            return
        try:
            self._upload.add(request.chunk.data)
        except ConfigurationError as error:
            # Nobody waits for an answer to a piece; the one to ``install`` says it.
            self._upload, self._refused = None, error

    def install(self, request: InstallModel) -> ModelIds:
        upload, self._upload = self._upload, None
        if upload is None:
            raise self._refused or ConfigurationError("no model was begun")
        return ModelIds(model_sha256=upload.finish())

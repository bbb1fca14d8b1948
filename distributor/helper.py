"""The helper: the second of two parties that answer requests for rows; the leader's operator must not run it.

It holds the models that the leader hands on, each verified by its developer's signature and hashes, and opens the half
of a query that is sealed to it. Neither half says anything of the rows that a device asked for; both together say all,
so that the helper must not be run by, nor conspire with, the distributor's host.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.protobuf.message import DecodeError

from distributor.header import ModelHeader
from distributor.interface import UnknownModel
from distributor.servicer import DistributorService
from distributor.shares import Shares
from odp.crypto import domains
from odp.crypto.hpke import HpkeKey
from odp.crypto.pir import two_server
from odp.errors import ConfigurationError, OdpError
from odp.signed.broadcast.terms import PIR, method_of
from odp.signed.task import HASH_BYTES, check_length
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.v1 import retrieval_pb2, retrieval_pb2_grpc

NAME = "odp.v1.HelperService"
_MALFORMED = "malformed helper query"


class OwnTasks:
    """Restricts a helper to models of tasks that name its key (``servicer.Replication``)."""

    def __init__(self, public_key: bytes) -> None:
        self._public_key = public_key

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError for a task of another method or another helper."""
        if method_of(header.task) != PIR:
            raise ConfigurationError(f"task {header.task.name!r} uses no helper")
        if header.task.broadcast.helper_key != self._public_key:
            raise ConfigurationError(
                f"task {header.task.name!r} names the helper {header.task.broadcast.helper_key[:6].hex()}.., and this "
                f"one is {self._public_key[:6].hex()}..; use the key that `odp distributor helper key` prints"
            )

    def ensure(self, header: ModelHeader) -> None:
        """Does nothing: a helper passes no model on."""


class HelperService:
    """Answers with the helper's shares; thread-safe.

    ``models`` receives and keeps what the leader hands on, ``shares`` reads it, ``key`` opens queries.
    """

    def __init__(self, models: DistributorService, shares: Shares, key: HpkeKey, log: Log) -> None:
        self._models = models
        self._shares = shares
        self._key = key
        self._log = log

    def replicate(
        self, requests: Iterator[retrieval_pb2.ReplicateRequest], context: grpc.ServicerContext
    ) -> retrieval_pb2.ReplicateResponse:
        """As ``DistributorService.publish``; the model is then ready for queries."""
        # Both streams have the same parts under the same names.
        reply = self._models.publish(requests, context)  # type: ignore[arg-type]
        # A large table takes long to prepare: not while a device waits.
        self._shares.of(reply.model_sha256)
        return retrieval_pb2.ReplicateResponse(model_sha256=reply.model_sha256)

    def answer(self, request: retrieval_pb2.AnswerRequest) -> retrieval_pb2.AnswerResponse:
        """The padded share for one sealed query.

        Raises NotFound for a model that is not held, and ConfigurationError with one and the same message for whatever
        else is wrong with a query.
        """
        model = request.model_sha256
        check_length("model_sha256", model, HASH_BYTES)
        self._models.require(model)
        try:
            ready = self._shares.of(model)
        except UnknownModel as error:
            raise NotFound(str(error)) from None
        try:
            query = retrieval_pb2.HelperQuery.FromString(
                self._key.open(request.sealed_query, domains.helper_query_info(model))
            )
        except (OdpError, DecodeError, ValueError):
            raise ConfigurationError(_MALFORMED) from None
        if query.table != ready.table or len(query.pad_seed) != two_server.PAD_SEED_BYTES:
            raise ConfigurationError(_MALFORMED)
        try:
            with self._models.selection():
                answer = self._shares.answer(ready, query.query, pad_seed=query.pad_seed)
        except ConfigurationError:
            raise ConfigurationError(_MALFORMED) from None
        self._log.event("answered", model=short(model), bytes_in=len(request.sealed_query), bytes_out=len(answer))
        return retrieval_pb2.AnswerResponse(model_sha256=model, answer=answer)


def helper_servicer(service: HelperService, log: Log) -> retrieval_pb2_grpc.HelperServiceServicer:
    """``service`` as gRPC methods, its errors as statuses."""

    return servicer(
        retrieval_pb2_grpc.HelperServiceServicer,
        log,
        {"Replicate": service.replicate, "Answer": lambda request, _: service.answer(request)},
    )

"""The leader: the distributor's host as the first of two parties that answer requests for rows.

A device talks to the leader alone. The leader computes its share from its half of the query and carries the other half,
sealed, to the helper, whose share comes back under a pad that the device chose. It hands every model of such a task on
to the helper before it answers the Publish, so that a round opens only when both hold its model.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from distributor.interface import ModelHeader, UnknownModel
from distributor.model_store import ModelStore
from distributor.servicer import DistributorService
from distributor.shares import Ready, Shares
from odp._validate import one_of
from odp.crypto.pir import two_server
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable
from odp.signed.broadcast.terms import PIR, method_of
from odp.signed.task import HASH_BYTES, check_length
from odp.transport.channel import CHUNK_BYTES, LONG_DEADLINE, call, connect
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.transport.tls import TlsIdentity
from odp.v1 import distributor_pb2, retrieval_pb2, retrieval_pb2_grpc

NAME = "odp.v1.RetrievalService"
#: The device waits longer than the leader does: it hears that the helper is away, and not that the leader is.
HELPER_SECONDS = 20.0

_LONGEST_NAME = 64


class HelperClient:
    """The helper at ``address``, whose certificate descends from ``ca``; calls it as ``identity``; closed once.

    Thread-safe.
    """

    def __init__(self, address: str, ca: bytes, *, identity: TlsIdentity) -> None:
        self.address = address
        self._channel = connect(address, ca, identity=identity)
        self._stub = retrieval_pb2_grpc.HelperServiceStub(self._channel)

    def answer(self, model: bytes, sealed_query: bytes) -> bytes:
        """The helper's padded share. Raises ServiceUnavailable, and ServiceError with the helper's one line."""
        reply: retrieval_pb2.AnswerResponse = call(
            self._stub.Answer,
            retrieval_pb2.AnswerRequest(model_sha256=model, sealed_query=sealed_query),
            timeout=HELPER_SECONDS,
            what="ask the helper",
            address=self.address,
        )
        if reply.model_sha256 != model:
            raise ServiceUnavailable(f"the helper at {self.address} answered for another model; try again later")
        return reply.answer

    def replicate(self, requests: Iterator[retrieval_pb2.ReplicateRequest]) -> None:
        """Sends a model to the helper; returns at once if the helper has it. Raises as ``answer``."""
        call(
            self._stub.Replicate,
            requests,
            timeout=LONG_DEADLINE,
            what="send the model to the helper",
            address=self.address,
        )

    def close(self) -> None:
        """Ends calls in flight with ServiceUnavailable."""
        self._channel.close()


class Replicator:
    """Sends models to the helper (``servicer.Replication``); without a helper, refuses tasks that need one."""

    def __init__(self, store: ModelStore, shares: Shares, helper: HelperClient | None, log: Log) -> None:
        self._store, self._shares, self._helper, self._log = store, shares, helper, log

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError if the task needs a helper and there is none."""
        if method_of(header.task) == PIR and self._helper is None:
            raise ConfigurationError(
                f"task {header.task.name!r} needs a helper, and this distributor has none; start it with --helper"
            )

    def ensure(self, header: ModelHeader) -> None:
        """Returns when the helper has the stored model, and both are ready for queries.

        Raises ConfigurationError where the helper refuses it, ServiceUnavailable and ServiceError where it fails.
        """
        if method_of(header.task) != PIR or self._helper is None:
            return
        model = header.model_sha256
        try:
            self._helper.replicate(self._stream(model))
        except ServiceError as error:
            self._log.warning("not_replicated", model=short(model), reason=str(error))
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise ConfigurationError(str(error)) from error
            raise
        self._shares.of(model)
        self._log.event("replicated", model=short(model))

    def _stream(self, model: bytes) -> Iterator[retrieval_pb2.ReplicateRequest]:
        stored = self._store.load(model)
        header = distributor_pb2.PublishHeader(task=stored.task, model=stored.manifest)
        yield retrieval_pb2.ReplicateRequest(header=header)
        for chunk in self._store.contents(stored, CHUNK_BYTES):
            yield retrieval_pb2.ReplicateRequest(chunk=chunk)


class Leader:
    """Answers ``SelectPrivately``; thread-safe."""

    def __init__(
        self, models: DistributorService, shares: Shares, replicator: Replicator, helper: HelperClient | None, log: Log
    ) -> None:
        self._models, self._shares, self._replicator = models, shares, replicator
        self._helper, self._log = helper, log

    def select(self, request: retrieval_pb2.SelectPrivatelyRequest) -> retrieval_pb2.SelectPrivatelyResponse:
        """Both shares in one, the helper's still under its pad.

        Raises NotFound for a model that is not held, ConfigurationError for a malformed query, and ServiceUnavailable
        where the helper does not answer; Busy where either has too many requests.
        """
        model = request.model_sha256
        ready, helper = self._ready(model, request.table)
        with self._models.selection():
            share = self._shares.answer(ready, request.leader_query, pad_seed=None)
            helper_share = self._helper_share(helper, model, request.sealed_helper_query)
        if len(helper_share) != len(share):
            raise ServiceUnavailable(
                f"the helper at {helper.address} sent {len(helper_share)} bytes, not {len(share)}; try again later"
            )
        self._log.event("select_privately", model=short(model), bytes_in=request.ByteSize(), bytes_out=len(share))
        return retrieval_pb2.SelectPrivatelyResponse(
            model_sha256=model, answer=two_server.combine(share, helper_share), dense=ready.dense
        )

    def shape(self, request: retrieval_pb2.GetShapeRequest) -> retrieval_pb2.GetShapeResponse:
        """The public shape of the keyed table. Raises NotFound and ConfigurationError as ``select``."""
        ready, _ = self._ready(request.model_sha256, request.table)
        return retrieval_pb2.GetShapeResponse(model_sha256=request.model_sha256, shape=ready.database.shape.to_bytes())

    def _ready(self, model: bytes, table: str) -> tuple[Ready, HelperClient]:
        check_length("model_sha256", model, HASH_BYTES)
        if self._helper is None:
            raise ConfigurationError("this distributor has no helper; start it with --helper")
        self._models.require(model)
        try:
            ready = self._shares.of(model)
        except UnknownModel as error:
            raise NotFound(str(error)) from None
        if len(table) > _LONGEST_NAME:
            raise ConfigurationError(f"Expected table={table[:16]!r}.. to have at most {_LONGEST_NAME} characters")
        one_of((ready.table,), table=table)
        return ready, self._helper

    def _helper_share(self, helper: HelperClient, model: bytes, sealed_query: bytes) -> bytes:
        try:
            return self._asked(helper, model, sealed_query)
        except NotFound:
            # A helper that lost its models, or came back on an empty folder, gets this one again.
            try:
                self._replicator.ensure(self._models.header(model))
            except ConfigurationError:  # it holds newer versions
                raise NotFound(str(UnknownModel(model))) from None
            return self._asked(helper, model, sealed_query)

    def _asked(self, helper: HelperClient, model: bytes, sealed_query: bytes) -> bytes:
        try:
            return helper.answer(model, sealed_query)
        except ServiceUnavailable:
            raise
        except ServiceError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                raise NotFound(str(UnknownModel(model))) from None
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise ConfigurationError("malformed helper query") from None
            raise ServiceUnavailable(f"{error}; try again later") from error


def leader_servicer(leader: Leader, log: Log) -> retrieval_pb2_grpc.RetrievalServiceServicer:
    """``leader`` as gRPC methods, its errors as statuses."""

    return servicer(
        retrieval_pb2_grpc.RetrievalServiceServicer,
        log,
        {
            "GetShape": lambda request, _: leader.shape(request),
            "SelectPrivately": lambda request, _: leader.select(request),
        },
    )

"""Calls of the hosts of a tree as messages: those that a root has besides an aggregator's, and those of a leaf."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from odp.enclave.channel import Route
from odp.errors import AttestationError, PrivacyError
from odp.v1 import enclave_pb2, leaf_pb2
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.tree import Tree


def root_routes(tree: Tree) -> dict[str, Route]:
    """What the host of a root asks besides."""

    def leaf_nonce(request: EnclaveRequest) -> EnclaveReply:
        return EnclaveReply(nonce=enclave_pb2.DrawnNonce(nonce=tree.leaf_nonce(request.leaf_nonce.leaf)))

    def delegate(request: EnclaveRequest) -> EnclaveReply:
        given = request.delegate
        with _told():
            found = tree.delegate(given.task_sha256, given.round, given.leaf, given.greeting)
        return EnclaveReply(delegation=found)

    def check_close(request: EnclaveRequest) -> EnclaveReply:
        given = request.check_close
        return _yes(tree.check_close(given.order, given.signature, given.contributions))

    def give_part(request: EnclaveRequest) -> EnclaveReply:
        given = request.give_part
        return _yes(tree.give_part(given.task_sha256, given.round, given.piece))

    return {
        "leaf_nonce": Route("change", leaf_nonce),
        "delegate": Route("change", delegate),
        "check_close": Route("change", check_close),
        "give_part": Route("change", give_part),
    }


def leaf_routes(core: LeafCore) -> dict[str, Route]:
    """What the host of a leaf asks besides submissions."""

    def ask_nonce(request: EnclaveRequest) -> EnclaveReply:
        return EnclaveReply(nonce=enclave_pb2.DrawnNonce(nonce=core.draw_nonce()))

    def open_part(request: EnclaveRequest) -> EnclaveReply:
        with _told():
            core.open_part(request.open_part)
        return EnclaveReply(done=enclave_pb2.Done())

    def close_part(request: EnclaveRequest) -> EnclaveReply:
        contributions, pieces = core.close_part(request.close_part.task_sha256, request.close_part.round)
        return EnclaveReply(closed_part=leaf_pb2.ClosedPart(contributions=contributions, pieces=pieces))

    def take_part(request: EnclaveRequest) -> EnclaveReply:
        given = request.take_part
        data = core.take_part(given.task_sha256, given.round, given.number)
        return EnclaveReply(piece=enclave_pb2.SealedPiece(data=data))

    def erase_part(request: EnclaveRequest) -> EnclaveReply:
        core.erase_part(request.erase_part.task_sha256, request.erase_part.round)
        return EnclaveReply(done=enclave_pb2.Done())

    return {
        "ask_nonce": Route("change", ask_nonce),
        "open_part": Route("change", open_part),
        "close_part": Route("change", close_part),
        "take_part": Route("change", take_part),
        "erase_part": Route("change", erase_part),
    }


def _yes(whether: bool) -> EnclaveReply:
    return EnclaveReply(told=leaf_pb2.Told(yes=whether))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Passes on why the other enclave was refused: the reason is public, and the operator needs it."""
    try:
        yield
    except AttestationError as error:
        raise PrivacyError(str(error)) from error

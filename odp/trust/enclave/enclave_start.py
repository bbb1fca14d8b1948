"""The start of an enclave: the host sends its sealed keys, and stores the keys that come back.

::

    host                              enclave
    EnclaveStart(sealed_keys)   ->
                                <-    Started(sealed_keys), or a failure: these keys are not its own
    EnclaveStart()              ->    the host asks for new ones, where nothing else hangs on the old
                                <-    Started(sealed_keys)
    what the role needs         <->   a successor is told so here (``trusted_aggregator.enclave.hand_over``)
                                <-    Ready, or a failure
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from odp.crypto.hpke import DecryptionError
from odp.errors import OdpError, StateError
from odp.trust.enclave.channel import Connection, error_of, failure_of
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1.attestation_pb2 import GetEvidenceResponse
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest, EnclaveStart, Ready, Started

_ATTEMPTS = 3

Request = TypeVar("Request", bound=Message)


def expect(connection: Connection, requests: type[Request], *fields: str) -> Request:
    """Inside the enclave: the host's next message, of the type ``requests``, which has to be of a kind in ``fields``.

    Raises:
        StateError: it is another one, or the host is gone.
    """
    frame = connection.receive()
    try:
        request = requests.FromString(frame[1]) if frame is not None else requests()
    except DecodeError:
        request = requests()
    if request.WhichOneof("call") not in fields:
        raise StateError(f"the host did not send the expected {fields[0]!r}; start the program again")
    return request


def answered(connection: Connection, replies: type[Message] = EnclaveReply) -> Any:
    """At the host: the enclave's next message, of the type ``replies``.

    Raises the enclave's error, or StateError if it has ended.
    """
    frame = connection.receive()
    try:
        reply: Any = replies.FromString(frame[1]) if frame is not None else None
    except DecodeError:
        reply = None
    if reply is None or reply.WhichOneof("answer") is None:
        raise StateError("the enclave ended while it started; see its last line")
    if reply.WhichOneof("answer") == "failure":
        raise error_of(reply.failure)
    return reply


def begin(connection: Connection, guest: Guest, finish: Callable[[EnclaveIdentity], Ready]) -> EnclaveIdentity | None:
    """Inside the enclave: receives its keys, runs ``finish`` for its role, and reports that it is ready.

    None if that failed: the host got the reason, and the enclave has to end.
    """
    try:
        identity = _identity(connection, guest)
        connection.send(0, EnclaveReply(ready=finish(identity)))
    except OdpError as error:
        with contextlib.suppress(StateError):  # without a host, the report is not needed
            connection.send(0, EnclaveReply(failure=failure_of(error)))
        return None
    return identity


def _identity(connection: Connection, guest: Guest) -> EnclaveIdentity:
    for _ in range(_ATTEMPTS):
        given = expect(connection, EnclaveRequest, "start").start.sealed_keys
        try:
            identity, sealed = EnclaveIdentity.restore_or_create(guest=guest, sealed=given or None)
        except DecryptionError as error:
            connection.send(0, EnclaveReply(failure=failure_of(error)))
        else:
            connection.send(0, EnclaveReply(started=Started(sealed_keys=sealed)))
            return identity
    raise StateError("the host repeatedly sent sealed keys of another enclave")


def evidence_reply(identity: EnclaveIdentity, request: Any) -> EnclaveReply:
    """Inside the enclave: fresh evidence over the caller's nonce."""
    found = identity.evidence(request.evidence.nonce)
    return EnclaveReply(evidence=GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log))


def start(connection: Connection, sealed_keys: bytes | None) -> bytes:
    """At the host: sends the enclave its keys, or requests new ones if None; returns the sealed keys to store.

    Raises:
        DecryptionError: they are not this enclave's: other code, another policy or another platform.
        StateError: the enclave is gone.
    """
    connection.send(0, EnclaveRequest(start=EnclaveStart(sealed_keys=sealed_keys or b"")))
    sealed: bytes = answered(connection).started.sealed_keys
    return sealed


def wait_ready(connection: Connection) -> None:
    """At the host: returns once the enclave accepts calls. Raises the enclave's error."""
    if answered(connection).WhichOneof("answer") != "ready":
        raise StateError("the enclave sent an unknown request while it started")

"""The calls of a host to its enclave: one line each, which names a field of ``EnclaveRequest`` and two messages.

The answer's field of ``EnclaveReply`` follows from its message: no two fields have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar, overload

from google.protobuf.message import Message

from odp.enclave.channel import Encoded
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_FIELDS: Mapping[str, str] = {
    field.message_type.full_name: field.name
    for field in EnclaveReply.DESCRIPTOR.oneofs_by_name["answer"].fields
    if field.message_type is not None
}


class Caller(Protocol):
    """What passes a request on to the enclave: ``odp.enclave.channel.Client``."""

    def call(self, request: EnclaveRequest | Encoded) -> EnclaveReply:
        """The enclave's answer; raises what the enclave raises, and StateError where it is gone."""
        ...


class Calls:
    """A host's side of the calls that a subclass lists, each a ``Call``. Thread-safe. Raises as ``Caller.call``."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller


class Call(Generic[Asked, Answer]):
    """The call under the name that it has in the class. ``asked`` and ``answer`` are the two messages."""

    def __init__(self, asked: type[Asked], answer: type[Answer]) -> None:
        self._answer = _FIELDS[answer.DESCRIPTOR.full_name]
        self._name = ""

    def __set_name__(self, owner: type[Calls], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, calls: None, owner: type[Calls]) -> Call[Asked, Answer]: ...

    @overload
    def __get__(self, calls: Calls, owner: type[Calls]) -> Callable[[Asked], Answer]: ...

    def __get__(self, calls: Calls | None, owner: type[Calls]) -> Call[Asked, Answer] | Callable[[Asked], Answer]:
        if calls is None:
            return self
        caller = calls.caller

        def call(request: Asked) -> Answer:
            reply = caller.call(EnclaveRequest(**{self._name: request}))  # type: ignore[arg-type]
            answer: Answer = getattr(reply, self._answer)
            return answer

        return call

"""The calls of a host to its enclave by the fields of ``EnclaveRequest``: messages are the interface, on both sides.

At the host, a class lists each call in one line, a ``Call``. Inside the enclave, ``routes_of`` serves methods that have
the names of the fields. The answer's field of ``EnclaveReply`` follows from its message: no two fields have the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

from google.protobuf.message import Message

from odp.trust.enclave.channel import Encoded, Route
from odp.v1.enclave_pb2 import Done, EnclaveReply, EnclaveRequest

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_FIELDS: Mapping[str, str] = {
    field.message_type.full_name: field.name
    for field in EnclaveReply.DESCRIPTOR.oneofs_by_name["answer"].fields
    if field.message_type is not None
}


class Caller(Protocol):
    """What passes a request on to the enclave: ``odp.trust.enclave.channel.Client``."""

    def call(self, request: EnclaveRequest | Encoded) -> EnclaveReply:
        """The enclave's answer; raises what the enclave raises, and StateError where it is gone."""
        ...


class Calls:
    """A host's side of the calls that a subclass lists, each a ``Call``. Thread-safe. Raises as ``Caller.call``."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller


class Call(Generic[Asked, Answer]):
    """The call under the name that it has in the class. ``asked`` and ``answer`` are the two messages.

    Raises TypeError where the class is made, and the field of that name is missing or has another message.
    """

    def __init__(self, asked: type[Asked], answer: type[Answer]) -> None:
        self._asked = asked.DESCRIPTOR
        self._answer = _FIELDS[answer.DESCRIPTOR.full_name]
        self._name = ""

    def __set_name__(self, owner: type[Calls], name: str) -> None:
        field = EnclaveRequest.DESCRIPTOR.fields_by_name.get(name)
        if field is None or field.message_type is not self._asked:
            raise TypeError(f"EnclaveRequest has no field {name!r} of {self._asked.full_name}")
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


def routes_of(lane: str | None, *handlers: Callable[[Any], Message | None]) -> dict[str, Route]:
    """A route of ``lane`` for each handler, under its name: it takes the message of that field, and gives the answer's.

    None is answered as ``Done``.
    """
    return {handler.__name__: Route(lane, functools.partial(_handled, handler)) for handler in handlers}


def _handled(handler: Callable[[Any], Message | None], request: EnclaveRequest) -> EnclaveReply:
    return reply_of(handler(getattr(request, handler.__name__)) or Done())


def reply_of(answer: Message) -> EnclaveReply:
    """The reply with this answer."""
    return EnclaveReply(**{_FIELDS[answer.DESCRIPTOR.full_name]: answer})  # type: ignore[arg-type]

"""The calls of a host to its enclave by the fields of the enclave's request: messages are the interface, on both sides.

Each enclave has an ``Interface``. At the host, a class lists each call in one line, a ``Call``. Inside the enclave,
``Interface.routes`` serves methods that have the names of the fields. The answer's field follows from its message: no
two fields of a reply have the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from google.protobuf.message import Message

from odp.trust.enclave.channel import Client, Route
from odp.v1.enclave_pb2 import Done

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)


class Interface:
    """What an enclave can be asked, and how it answers.

    Attributes:
      request, reply: the two messages; all their fields are in one ``oneof`` each: ``call`` and ``answer``.
    """

    def __init__(self, request: type[Message], reply: type[Message]) -> None:
        self.request, self.reply = request, reply
        self._answers: Mapping[str, str] = {
            field.message_type.full_name: field.name
            for field in reply.DESCRIPTOR.oneofs_by_name["answer"].fields
            if field.message_type is not None
        }

    def field_of(self, answer: type[Message]) -> str:
        """The reply's field of this message. Raises KeyError where it has none."""
        return self._answers[answer.DESCRIPTOR.full_name]

    def reply_of(self, answer: Message) -> Message:
        """The reply with this answer."""
        return self.reply(**{self.field_of(type(answer)): answer})

    def routes(self, lane: str | None, *handlers: Callable[[Any], Message | None]) -> dict[str, Route]:
        """A route of ``lane`` for each handler, under its name: it takes the message of that field, and gives the
        answer's.

        None is answered as ``Done``.
        """
        return {handler.__name__: Route(lane, functools.partial(self._handled, handler)) for handler in handlers}

    def _handled(self, handler: Callable[[Any], Message | None], request: Message) -> Message:
        return self.reply_of(handler(getattr(request, handler.__name__)) or Done())


class Calls:
    """A host's side of the calls that a subclass lists, each a ``Call``. Thread-safe. Raises as ``Client.call``.

    Attributes:
      interface: the enclave's; each subclass has one, before its calls.
    """

    interface: Interface

    def __init__(self, caller: Client) -> None:
        self.caller = caller


class Call(Generic[Asked, Answer]):
    """The call under the name that it has in the class. ``asked`` and ``answer`` are the two messages.

    Raises TypeError where the class is made, and the field of that name is missing or has another message.
    """

    def __init__(self, asked: type[Asked], answer: type[Answer]) -> None:
        self._asked, self._answer = asked, answer
        self._name = self._answer_name = ""

    def __set_name__(self, owner: type[Calls], name: str) -> None:
        request = owner.interface.request.DESCRIPTOR
        field = request.fields_by_name.get(name)
        if field is None or field.message_type is not self._asked.DESCRIPTOR:
            raise TypeError(f"{request.name} has no field {name!r} of {self._asked.DESCRIPTOR.full_name}")
        self._name, self._answer_name = name, owner.interface.field_of(self._answer)

    @overload
    def __get__(self, calls: None, owner: type[Calls]) -> Call[Asked, Answer]: ...

    @overload
    def __get__(self, calls: Calls, owner: type[Calls]) -> Callable[[Asked], Answer]: ...

    def __get__(self, calls: Calls | None, owner: type[Calls]) -> Call[Asked, Answer] | Callable[[Asked], Answer]:
        if calls is None:
            return self
        caller, request_type = calls.caller, owner.interface.request

        def call(request: Asked) -> Answer:
            return cast(Answer, getattr(caller.call(request_type(**{self._name: request})), self._answer_name))

        return call

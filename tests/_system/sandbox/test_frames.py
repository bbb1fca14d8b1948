"""Messages of an untrusted process cost their reader little."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from device_runtime.isolated import conversation
from device_runtime.isolated.limits import CallLimits, Reason
from device_runtime.isolated.replies import Unacceptable
from odp._system.sandbox import frames
from odp.errors import ConfigurationError
from odp.isolated import Handler

MOST = 2**23


def received(data: bytes, read: Callable[[socket.socket], Any]) -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(len(data).to_bytes(4, "big") + data,))
        sender.start()
        try:
            return read(ours)
        finally:
            sender.join()


@pytest.mark.parametrize("value", ["[]", "{}", "0", '"\\n"'], ids=["lists", "objects", "numbers", "texts"])
@pytest.mark.slow
def test_a_long_message_of_many_values_is_refused_before_they_are_made(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: object, **__: object) -> None:
        pytest.fail("the values were made")

    data = ('{"done":[' + f"{value}," * (5 * 2**20 // (len(value) + 1)) + "0]}").encode()
    json.loads(data)
    monkeypatch.setattr(frames.json, "loads", loads)
    with pytest.raises(ConfigurationError, match="at most 1048576 values"):
        received(data, lambda ours: frames.receive_frame(ours, most=MOST, hostile=True))


def test_a_service_is_taken_for_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def receive(channel: socket.socket, **options: Any) -> None:
        told.append(options["hostile"])

    monkeypatch.setattr(conversation, "receive_frame", receive)
    stores: Any = None
    with socket.socket() as channel:
        talk = conversation.Conversation(channel, CallLimits())
        with pytest.raises(Unacceptable) as refused:
            talk.reply(Handler.ON_EXECUTE, stores, b"", end=float("inf"))
    assert refused.value.reason is Reason.ENDED
    assert told == [True]


def test_a_long_text_is_one_value() -> None:
    text = "A" * (6 * 2**20)
    data = json.dumps({"done": text}).encode()
    found = received(data, lambda ours: frames.receive_frame(ours, most=MOST, hostile=True))
    assert found == {"done": text}

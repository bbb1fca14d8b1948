"""Whatever JSON a service's process sends is an answer of its contract or refused: nothing else is raised."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from device_runtime.isolated import CallLimits, MemoryStore, Reason
from device_runtime.isolated.reads import Reader
from device_runtime.isolated.replies import Unacceptable, reply_of
from device_runtime.store.keys import HostKey
from device_runtime.store.store import Store
from odp.isolated import RIGHTS, DataKind, Handler
from odp.isolated.worker import RemoteStores

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_WORDS = st.sampled_from(
    ["value", "writes", "accepted", "declined", "result", "html", "examples", "type", "data", "key", "prefix", "most",
     "since", *(table.value for table in DataKind)]
)  # fmt: skip
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=4), inner, max_size=3),
)
_REPLIES = st.fixed_dictionaries({"value": _JSON, "writes": st.dictionaries(_WORDS, _JSON, max_size=2)}) | _JSON


def _answer_or_reason(attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except Unacceptable as refused:
        return refused.reason


@settings(max_examples=200, deadline=None)
@given(handler=st.sampled_from(Handler), message=_REPLIES)
def test_any_json_is_an_answer_within_its_rights_or_refused(handler: Handler, message: Any) -> None:
    reply = _answer_or_reason(lambda: reply_of(handler, message))
    if isinstance(reply, Reason):
        assert reply in (Reason.MALFORMED, Reason.FORBIDDEN)
        return
    assert set(message["writes"]) <= {table.value for table in RIGHTS[handler].writes}
    assert reply.value == message["value"]


@settings(max_examples=200, deadline=None)
@given(
    handler=st.sampled_from(Handler),
    table=st.sampled_from([table.value for table in DataKind]) | _JSON,
    asked=st.dictionaries(_WORDS, _JSON, max_size=3),
)
def test_any_read_is_answered_within_its_rights_or_refused(handler: Handler, table: Any, asked: dict[str, Any]) -> None:
    store = MemoryStore()
    store.change({"x": b"y"}, time=0.0)
    store.add_event("x", b"y", time=0.0)
    answer = _answer_or_reason(lambda: Reader(handler, store, CallLimits()).answer({**asked, "read": table}))
    if isinstance(answer, Reason):
        assert answer in (Reason.MALFORMED, Reason.FORBIDDEN)
        return
    assert DataKind(table) in RIGHTS[handler].reads
    assert answer


@pytest.mark.parametrize("since", [2**70, -(10**400), 10**400, float("inf"), float("nan"), True], ids=range(6))
def test_a_time_that_no_store_has_is_no_error_of_the_runtime(since: float, tmp_path: Path) -> None:
    with Store.open_or_create(tmp_path / "devices" / "00" / "0.sqlite", key=HostKey(bytes(32), "given", "x")) as store:
        reader = Reader(Handler.ON_EXECUTE, store.data("music"), CallLimits())
        assert b"refused" in reader.answer({"read": "events", "since": since})


def test_reads_beyond_the_bounds_are_refused() -> None:
    store = MemoryStore()
    store.change({"x": bytes(1000)}, time=0.0)
    few = Reader(Handler.ON_EXECUTE, store, CallLimits(reads=1))
    small = Reader(Handler.ON_EXECUTE, store, CallLimits(read_bytes=1000))
    assert few.answer({"read": "local", "key": "x"})
    for reader in (few, small):
        with pytest.raises(Unacceptable) as refused:
            reader.answer({"read": "local", "key": "x"})
        assert refused.value.reason is Reason.TOO_MUCH


@pytest.mark.parametrize("value", [b"", b"y", bytes(range(256)) * 5000], ids=len)
def test_bytes_arrive_at_the_handler_as_they_are_in_the_store(value: bytes) -> None:
    store = MemoryStore()
    store.change({"x": value}, time=0.0)
    answer = Reader(Handler.ON_EXECUTE, store, CallLimits()).answer({"read": "local", "key": "x"})
    assert len(answer) < len(value) + 100
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=ours.sendall, args=(answer,))
        sender.start()
        assert RemoteStores(theirs, Handler.ON_EXECUTE).local("x") == value
        sender.join()


def test_a_value_longer_than_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_runtime.isolated.reads.LARGEST_INPUT", 999)
    store = MemoryStore()
    store.change({"x": bytes(1000)}, time=0.0)
    with pytest.raises(Unacceptable) as refused:
        Reader(Handler.ON_EXECUTE, store, CallLimits()).answer({"read": "local", "key": "x"})
    assert refused.value.reason is Reason.TOO_MUCH

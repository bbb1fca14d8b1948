"""Programs in the foreground: the address is written, and the parent's death ends them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp.errors import StateError
from odp.operations.local import foreground
from odp.transport.logs import Log
from odp.transport.running import Running


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _running(closed: list[str]) -> Running:
    closing = contextlib.ExitStack()
    closing.callback(closed.append, "closed")
    return Running(address="127.0.0.1:7", ca_pem=b"", closing=closing, log=Log("x", stream=io.StringIO()))


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_stdin_is_the_parents_death_also_where_there_is_no_stdin(
    monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    pieces = iter([b"ignored", b""])

    def read(descriptor: int, size: int) -> bytes:
        if failing:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return next(pieces)

    monkeypatch.setattr(foreground.os, "read", read)
    stop = threading.Event()
    foreground.parent_watch(stop)
    assert stop.wait(10)


def test_a_program_writes_where_it_serves_and_ends_at_a_signal(tmp_path: Path) -> None:
    closed: list[str] = []
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))

    def start() -> None:
        assert (tmp_path / "address").read_text() == "127.0.0.1:7\n"
        timer.start()

    running = _running(closed)
    waiting = running.wait

    def wait(asked: threading.Event | None = None) -> None:
        start()
        waiting(asked)

    running.wait = wait  # type: ignore[method-assign]
    foreground.serve_until_stopped(running, tmp_path, with_parent=False)
    assert closed == ["closed"]


def test_a_program_whose_address_cannot_be_written_is_stopped(tmp_path: Path) -> None:
    closed: list[str] = []
    with pytest.raises(StateError, match="check the path"):
        foreground.serve_until_stopped(_running(closed), tmp_path / "nothing", with_parent=False)
    assert closed == ["closed"]

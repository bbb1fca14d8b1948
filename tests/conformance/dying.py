"""A process that is killed between any two steps of what it does to a store.

A step is a statement or a commit of any database that SQLAlchemy reaches, or a change of a file or folder below a given
one: opened to be written, renamed, linked, removed, made. So the same test serves every implementation of a store.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.utime", "open"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def deaths(
    act: Callable[[Path, Callable[[], None]], None], places: Iterator[Path], *, every: int = 1
) -> Iterator[tuple[Path, bool]]:
    """What is left, one place after the other, of processes that died at the first step, ``every`` steps later, and so
    on.

    ``act(place, arm)`` runs in each process, and its steps count from its call of ``arm()`` on. The last one comes to
    its end, and dies then without closing anything: with it comes True. At least one dies before its end.
    """
    for number in itertools.count(1, every):
        place = next(places)
        lived = _lives(act, place, number)
        assert number > 1 or not lived, "no process died: none of its steps was seen"
        yield place, lived
        if lived:
            return


def _lives(act: Callable[[Path, Callable[[], None]], None], place: Path, number: int) -> bool:
    child = os.fork()
    if child == 0:
        try:
            act(place, lambda: _arm(number, place))
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the process that was to die at step {number} failed: {status}"
    return status == 0


def _arm(number: int, place: Path) -> None:
    left = number

    def step(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or (event == "open" and not int(arguments[2]) & _WRITES):
            return
        # What removes a whole folder names its files by descriptor, and not from the root.
        if isinstance(arguments[0], (str, os.PathLike)) and (place / arguments[0]).is_relative_to(place):
            step()

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", step)
    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", step)
    sys.addaudithook(audited)

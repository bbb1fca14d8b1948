"""A fixed time for a developer's code that sees private data, before a device reads what it contributes.

How long such code runs, and whether it fails, must not show in what the device does next. So the code gets the same
public time on every device and in every round, and whatever it did, the next step starts when that time is over:

::

    begin            code_seconds                        + store_seconds
      |  the code, in a thread of its own  |  its rows are stored  |  the device goes on
      |  what is not there by then is left |  the rest of the time |

Where it fails, dies, answers nonsense or takes too long, the examples that it made earlier stay as they were: they are
the person's data as much as new ones, and what is computed of them is private and charged in any case.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from device_runtime.person.ledger import TaskTerms
from device_runtime.store.store import Store
from odp.v1 import common_pb2


class OpenedTask(Protocol):
    """A task whose signature and fields were checked."""

    @property
    def definition(self) -> common_pb2.TaskDefinition:
        """As its developer signed it."""
        ...

    @property
    def terms(self) -> TaskTerms:
        """What it costs."""
        ...


class ExampleMaker(Protocol):
    """A device's own code that makes examples."""

    def asked_for(self, model: OpenedTask) -> bool:
        """Whether the task reads examples of this code: a function of its definition alone."""
        ...

    def make(self, path: Path, model: OpenedTask) -> Sequence[Any]:
        """The examples of the device whose store lies at ``path``. In any thread; may raise anything."""
        ...

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        """Puts them in the place of earlier ones; may raise anything, and stores nothing then."""
        ...


def whole_time(seconds: float, finished: threading.Event) -> None:
    """Lets ``seconds`` pass, whether the code has finished or not."""
    time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class MadeExamples:
    """Runs ``maker`` for a fixed time.

    Args:
      maker: the device's own code.
      code_seconds: time of its code.
      store_seconds: time in which its rows are stored.
      wait: sleeps for a number of seconds; a test may return as soon as the code has finished.
      monotonic: seconds that only grow.
    """

    maker: ExampleMaker
    code_seconds: float
    store_seconds: float = 1.0
    wait: Callable[[float, threading.Event], None] = whole_time
    monotonic: Callable[[], float] = time.monotonic

    def make(self, store: Store, model: OpenedTask) -> None:
        """Makes the examples that the task of ``model`` may read; returns when the time is over, and raises nothing."""
        if not self.maker.asked_for(model):
            return
        end = self.monotonic() + self.code_seconds + self.store_seconds
        finished = threading.Event()
        made: list[Sequence[Any]] = []

        def run() -> None:
            with contextlib.suppress(Exception):  # whatever it is, it may follow from the data
                made.append(self.maker.make(store.path, model))
            finished.set()

        threading.Thread(target=run, name="examples", daemon=True).start()
        self.wait(self.code_seconds, finished)
        if finished.is_set() and made:
            with contextlib.suppress(Exception):
                self.maker.keep(store, made[0])
        self.wait(max(end - self.monotonic(), 0.0), finished)

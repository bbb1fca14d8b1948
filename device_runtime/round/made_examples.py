"""A fixed time for a developer's code that sees private data, before a device reads what it contributes.

How long such code runs, how many rows it makes, and whether it fails, must not show in what the device does next. So
the code gets the same public time on every device and in every round (``door.py``), and its rows another one, which
follows from the most rows that the task may read. Rows that are not stored by then are not stored at all.

Where the code fails, dies, answers nonsense or takes too long, the examples that it made earlier stay as they were:
they are the person's data as much as new ones, and what is computed of them is private and charged in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from device_runtime.person.ledger import TaskTerms
from device_runtime.round.door import Door, Window
from device_runtime.store.reader import beside
from device_runtime.store.store import Store
from odp.v1 import common_pb2

#: For rows to be stored: at least, and for each that the task may read.
STORE_SECONDS, ROW_SECONDS = 1.0, 5e-5


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

    def most_asked(self, model: OpenedTask) -> int:
        """The most examples of this code that the task reads: a function of its definition alone. 0: it reads none."""
        ...

    def make(self, path: Path, model: OpenedTask) -> Sequence[Any]:
        """The examples of the device whose store lies at ``path``. In any thread; may raise anything."""
        ...

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        """Puts them in the place of earlier ones, in one transaction; may raise anything, and stores nothing then."""
        ...


@dataclass(frozen=True, kw_only=True)
class MadeExamples:
    """Runs ``maker`` for ``code_seconds``, and stores what it made in a time that follows from the task."""

    maker: ExampleMaker
    code_seconds: float

    def make(self, store: Store, model: OpenedTask, door: Door) -> None:
        """Makes the examples that the task of ``model`` may read; returns when the time is over, and raises nothing."""
        most = self.maker.most_asked(model)
        if not most:
            return
        storing = STORE_SECONDS + ROW_SECONDS * most
        window = door.lasting(self.code_seconds + storing)
        path, key = store.path, store.key

        def late() -> bool:
            # The other half is for the disk, which cannot be interrupted.
            return window.seconds_left <= storing / 2

        def run(window: Window = window) -> bool:
            made = self.maker.make(path, model)
            with beside(path, key, over=late) as examples_store, examples_store.transaction():
                self.maker.keep(examples_store, made[-most:])
                if late():
                    raise TimeoutError
            return True

        window.attempt(run)

"""How far a command is: a bar on a terminal, and one plain line per step where stderr is a file or a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Steps:
    """The steps of one command.

    Args:
      out: where they are shown.
      bar: the bar and the number of its row; None prints a line per step.
    """

    def __init__(self, out: Console, bar: tuple[Progress, TaskID] | None) -> None:
        self._out = out
        self._bar = bar

    def step(self, text: str) -> None:
        """What happens from now on, or what has just been found."""
        if self._bar is None:
            self._out.print(text, markup=False, soft_wrap=True)
        else:
            self._bar[0].update(self._bar[1], description=text)

    def advance(self, done: int, of: int, note: str = "") -> None:
        """How much is done within a step: ``done`` of ``of`` parts. Nothing where there is no bar."""
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=done, total=of, note=note)


@contextlib.contextmanager
def steps(out: Console, text: str) -> Iterator[Steps]:
    """Shows ``text`` as the first step; the bar is gone when the command goes on."""
    if not out.is_terminal:
        shown = Steps(out, None)
        shown.step(text)
        yield shown
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    description = TextColumn("{task.description}", markup=False)
    columns = description, BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True) as bar:
        yield Steps(out, (bar, bar.add_task(text, total=None, note="")))

"""The rounds of `odp demo`, while they run: their errors and ε, a line for each, and the chart and the table of all.

A chart for the terminal: the test error after each round, beside the ε that was spent for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from odp.errors import ServiceError, ServiceUnavailable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from odp.datasets import Split
    from odp.operations.local.processes import Child, Services
    from odp.protocol.wire.model import ModelVersion
    from odp.services.connection import TaskHandle
    from odp.tasks.task import Task
    from odp.v1 import server_pb2

_POLL_SECONDS = 0.4


@dataclass
class Watched:
    """What the demo observed: one entry per finished round, after an entry for the model before the first round.

    An RMSE is NaN where the next round had replaced the round's model before it was fetched.
    """

    rmse: list[float]
    epsilon: list[float]
    charges: list[dict[str, Any]]
    contributions: list[int]
    model: ModelVersion
    status: server_pb2.TaskStatus | None = None


def watch(
    handle: TaskHandle,
    services: Services,
    host: Child,
    split: Split,
    task: Task,
    out: Console,
    *,
    timeout: float,
    references: Mapping[str, float],
    tell: Callable[[str], None],
) -> Watched:
    """Follows the task: one line to ``tell`` per finished round, and on a terminal a chart and a table that live.

    ``references`` are errors of other methods, for the chart.

    Raises ServiceError when a program ends or the task fails.
    """
    from rich.console import Group
    from rich.live import Live

    from odp.algorithms.registry import algorithm_for, recommender_for
    from odp.algorithms.release import event_of
    from odp.datasets import merge
    from odp.evaluation.baselines import rmse
    from odp.v1 import common_pb2, server_pb2

    population = recommender_for(task.definition()).population()
    history = merge(split.train, split.validation)
    server = algorithm_for(task.definition()).server()
    before = server.broadcast(server.start())
    watched = Watched([rmse(population.predict(before, history, split.test), split.test)], [0.0], [], [], before)
    until = time.monotonic() + timeout
    pause = threading.Event()
    # What lives goes at the end, where the chart and the tables of all rounds are printed once.
    showing = Live(console=out, refresh_per_second=2, transient=True) if out.is_terminal else contextlib.nullcontext()
    with showing as live:
        while True:
            try:
                status = handle.status()
                done = [round for round in status.rounds if round.state == server_pb2.RoundStatus.STATE_APPLIED]
                new = done[len(watched.rmse) - 1 :]
                model = (_model(handle, status) or before) if new else before
            except ServiceUnavailable as error:
                raise _ended(services, host) or error from error
            for round in (entry for entry in new if entry.round < model.version):
                release = common_pb2.Release.FromString(round.release.release)
                watched.epsilon.append(release.epsilon_spent)
                watched.contributions.append(release.contributions)
                watched.charges += [
                    {"round": release.round, **event_of(charge).to_json()} for charge in release.charges
                ]
                # The demo owns the data set, so it may test each model on the held-out part; no device reports one.
                of_this_round = model.version == round.round + 1
                watched.rmse.append(
                    rmse(population.predict(model, history, split.test), split.test) if of_this_round else math.nan
                )
                watched.model = model
                spent = f"ε {release.epsilon_spent:.4f} of {task.privacy.epsilon:g}"
                tell(
                    f"round {round.round + 1}/{status.planned_rounds}: {release.contributions:,} devices, test error "
                    f"{shown_error(watched.rmse[-1])}, {spent}"
                )
            watched.status = status
            if live is not None:
                live.update(Group(chart(watched, task, references), rounds_table(watched, traffic(services.root))))
            if status.state == server_pb2.TaskStatus.STATE_FINISHED and len(watched.rmse) == status.planned_rounds + 1:
                return watched
            if status.state in (server_pb2.TaskStatus.STATE_FAILED, server_pb2.TaskStatus.STATE_CANCELLED):
                raise ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
            if (ended := _ended(services, host)) is not None:
                raise ended
            if time.monotonic() > until:
                raise ServiceError(f"not finished after {timeout:.0f} s; raise --timeout")
            pause.wait(_POLL_SECONDS)


def _model(handle: TaskHandle, status: server_pb2.TaskStatus) -> ModelVersion | None:
    """The model of a status; None where the next round replaced it just now."""
    import grpc

    try:
        return handle.connection.model(status)
    except ServiceError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            return None
        raise


def _ended(services: Services, host: Child) -> ServiceError | None:
    """Which program ended by itself, and why; None while all run."""
    dead = services.dead() or (host if host.process.poll() is not None else None)
    return None if dead is None else ServiceError(f"{dead.name} ended by itself: {dead.last_line()}")


def chart(watched: Watched, task: Task, references: Mapping[str, float]) -> ProgressChart:
    """The error after each round beside ε, and the errors of ``references``."""

    return ProgressChart(
        errors=watched.rmse, epsilon=watched.epsilon, budget=task.privacy.epsilon, references=references
    )


def rounds_table(watched: Watched, traffic: Mapping[int, dict[str, Any]]) -> Table:
    """Every round until now: what it released, its devices, their bytes, ε and the error."""
    from rich.table import Column, Table

    from odp.v1 import server_pb2

    table = Table("round", Column("releases", no_wrap=True), "in", "out", "down", "up", "ε spent", "RMSE")
    table.add_row("before", "", "", "", "", "", "0", f"{watched.rmse[0]:.4f}")
    status = watched.status
    planned = 0 if status is None else status.planned_rounds
    for round in () if status is None else status.rounds:
        counted = traffic.get(round.round, {})
        devices = max(counted.get("devices_in", 0), 1)
        applied = round.round + 1 < len(watched.rmse)
        names = ", ".join(charge["name"] for charge in watched.charges if charge["round"] == round.round)
        table.add_row(
            f"{round.round + 1}/{planned}",
            names or ("[dim]open[/dim]" if round.state == server_pb2.RoundStatus.STATE_OPEN else "[dim]summing[/dim]"),
            f"{max(round.contributions, counted.get('devices_in', 0)):,}",
            str(counted.get("refused", 0) + counted.get("declined", 0)),
            f"{counted.get('bytes_down', 0) / devices:,.0f} B",
            f"{counted.get('bytes_up', 0) / devices:,.0f} B",
            f"{watched.epsilon[round.round + 1]:.4f}" if applied else "",
            shown_error(watched.rmse[round.round + 1]) if applied else "",
        )
    return table


def shown_error(rmse: float) -> str:
    """An error with four digits; a dash where it is unknown."""
    return "-" if math.isnan(rmse) else f"{rmse:.4f}"


def traffic(root: Path) -> dict[int, dict[str, Any]]:
    """What the device host counted, by round; empty before its first file."""
    try:
        content = json.loads((root / "devices" / "stats.json").read_text())
    except (OSError, ValueError):
        return {}
    return {entry["round"]: entry for entry in content["rounds"]}


_LABEL, _VALUE = 10, 8
_NARROWEST, _WIDEST = 8, 44
#: How much of the width is for errors; the rest is for ε.
_SHARE_OF_ERRORS = 0.62


@dataclass(frozen=True, kw_only=True)
class ProgressChart:
    """A rich renderable, as wide as the terminal allows; an error is a point, since its axis does not begin at zero.

    Attributes:
      errors: before the first round, and after each; NaN is unknown and has no point.
      epsilon: spent, as long as ``errors``; bars that begin at zero.
      budget: the ε at the end of a bar; infinite where nothing is private, and then there are no bars.
      references: errors of other methods, by name: a line through the points, and one row each.
    """

    errors: Sequence[float]
    epsilon: Sequence[float]
    budget: float
    references: Mapping[str, float] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints: one line per round, one per reference."""
        yield from self._lines(options.max_width, plain=options.ascii_only)

    def _lines(self, width: int, *, plain: bool) -> Iterator[Text]:
        point, mark, line, full, empty = ("o", "+", "|", "#", ".") if plain else ("●", "◇", "│", "█", "░")
        epsilon_name = "epsilon" if plain else "ε"
        free = width - _LABEL - 2 * _VALUE - 4
        left = min(max(round(free * _SHARE_OF_ERRORS), _NARROWEST), _WIDEST)
        right = min(max(free - left, _NARROWEST), _WIDEST)
        finite = [value for value in (*self.errors, *self.references.values()) if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        span = (high - low) or 1.0

        def column(value: float) -> int:
            return round((value - low) / span * (left - 1))

        private = math.isfinite(self.budget)
        head = Text(" " * _LABEL + f"{'test error, lower is better':<{left + _VALUE + 3}}", style="bold")
        yield head.append(f" {epsilon_name} spent of {self.budget:g}" if private else "", style="bold")
        lines = {column(value) for value in self.references.values() if math.isfinite(value)}
        for number, (error, spent) in enumerate(zip(self.errors, self.epsilon, strict=True)):
            row = Text(f"{'before' if number == 0 else f'round {number}':<{_LABEL}}")
            at = column(error) if math.isfinite(error) else -1
            for place in range(left):
                if place == at:
                    row.append(point, style="bold cyan")
                else:
                    row.append(line if place in lines else " ", style="dim")
            row.append(f"{f'{error:.4f}' if math.isfinite(error) else '-':>{_VALUE}}    ")
            if private:
                filled = min(round(spent / self.budget * right), right)
                row.append(full * filled, style="cyan").append(empty * (right - filled), style="dim")
                row.append(f"{spent:{_VALUE}.4f}")
            yield row
        for name, value in sorted(self.references.items(), key=lambda entry: -entry[1]):
            if not math.isfinite(value):
                continue
            at = column(value)
            row = Text(" " * _LABEL)
            for place in range(left):
                row.append(mark if place == at else line if place in lines else " ", style="" if place == at else "dim")
            yield row.append(f"{value:{_VALUE}.4f}    {name}")

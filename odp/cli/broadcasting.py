"""What the rows of a model cost a device: the plan before a task, and one line after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import print_json, results_console
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.tasks.task import Task


def show_plan(
    file: Annotated[Path, typer.Argument(help="Task file (TOML).")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what each way to get rows to devices costs, which one the task uses, and why."""
    from rich.table import Table

    from odp.signed.broadcast.config import plan, reasons
    from odp.signed.broadcast.terms import AUTO, method_of
    from odp.tasks.file import load_task
    from odp.tasks.task import Task

    task = load_task(file)
    if not isinstance(task, Task):
        raise ConfigurationError(f"{file} trains no model of rows: its devices fetch none")
    definition = task.definition()
    planned = plan(definition, helper=bool(task.broadcast.helper_key))
    method = method_of(definition)
    pinned = task.broadcast.method != AUTO
    said = dict(reasons(planned))
    if json:
        costs = {
            cost.method: {"excluded": cost.excluded}
            if cost.excluded
            else {"up": cost.up, "down": cost.down, "cpu_seconds": cost.cpu, "seconds": cost.seconds}
            for cost in planned.costs
        }
        print_json({"method": method, "pinned": pinned, "planned": planned.chosen, "costs": costs, "reasons": said})
        return
    table = Table(
        "method",
        "up",
        "down",
        "server CPU",
        "cost",
        "reason",
        title=f"table {planned.name!r}: {planned.rows:,} rows of {planned.row_bytes:,} B, "
        f"{planned.keys} per device and round",
    )
    for cost in planned.costs:
        numbers = ["", "", "", ""]
        if not cost.excluded:
            numbers = [f"{cost.up:,.0f} B", f"{cost.down:,.0f} B", f"{1e3 * cost.cpu:.1f} ms", f"{cost.seconds:.3f} s"]
        name = f"[bold]{cost.method}[/bold]" if cost.method == method else cost.method
        table.add_row(name, *numbers, said[cost.method])
    out = results_console()
    out.print(table)
    out.print("cost: bytes over 10 Mbit/s down and 2.5 Mbit/s up, plus the processor time of all servers")
    how = f"its broadcast.method; the planner would take {planned.chosen}" if pinned else "chosen by the planner"
    out.print(f"the task takes [bold]{method}[/bold] ({how})")


def broadcast_line(task: Task, traffic: Mapping[int, Mapping[str, Any]], whole: int) -> str:
    """Bytes down per device and round, and their share of the whole model of ``whole`` bytes.

    ``traffic`` is what a device host counted, by round (``device_runtime.host.counts``): everything that devices
    received, the server's answers as well.
    """
    from odp.signed.broadcast.terms import ALL, method_of

    method = method_of(task.definition())
    down = [entry["bytes_down"] / entry["devices_in"] for entry in traffic.values() if entry["devices_in"]]
    if not down or not whole:
        return f"broadcast {method}: no round was counted"
    mean = sum(down) / len(down)
    line = f"broadcast {method}: bytes per device {mean:,.0f} per round, {100 * mean / whole:.1f} % of the model"
    return f"{line} ({whole:,} bytes)" + ("; one download served all devices of the host" if method == ALL else "")

"""`odp fleet`: thousands of simulated devices against the real services, with faults that a seed decides."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import console, print_json, results_console, resume_with, steps

if TYPE_CHECKING:
    from rich.console import Console

    from odp.research.simulation.fleet.run import FleetRun

app = typer.Typer(help="Simulate thousands of devices, with faults, against real services.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `run` a subcommand."""


@app.command("run")
def run(
    scenario: Annotated[Path, typer.Option(help="TOML file: data, task, faults, networks, clocks.")],
    devices: Annotated[int | None, typer.Option(help="Number of devices \\[default: all users of the data].")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is random about the devices.")] = 1,
    test_noise: Annotated[
        bool,
        typer.Option(
            "--test-noise",
            help="TESTS ONLY, PROTECTS NOBODY: draw the noise from the seed, too; then the model repeats to the byte.",
        ),
    ] = False,
    hosts: Annotated[
        int | None, typer.Option(help="Processes that run the devices, 1 to 64 \\[default: one per processor].")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps stores and logs; a fleet that was interrupted goes on there "
            "\\[default: a new one, removed at the end]."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 3600.0,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Run a task with simulated devices that drop out, crash and lie, against real services over TLS."""
    from odp._system.posix import require_linux

    require_linux("odp fleet run")
    from odp.research.simulation.fleet.run import run_fleet

    out = console()
    if test_noise:
        out.print("[bold red]TEST NOISE[/bold red]: the noise follows from the seed. This run protects nobody.")
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-fleet-"))) if state is None else state
        resume_with(
            "all programs stopped; the same command starts anew"
            if state is None
            else f"all programs stopped; the same command goes on with what is left, in {state}"
        )
        shown = stack.enter_context(steps(out, "starting services and devices"))
        begun: set[int] = set()

        def progress(round: int, done: int, of: int) -> None:
            if round not in begun:
                begun.add(round)
                shown.step(f"round {round}")
            shown.advance(done, of, f"{done:,} of {of:,} devices")

        fleet_run = run_fleet(
            scenario, devices=devices, seed=seed, root=root, test_noise=test_noise, hosts=hosts,
            timeout=timeout, report=out.print, progress=progress,
        )  # fmt: skip
    _show(results_console(machine=json_output), fleet_run)
    if json_output:
        print_json(fleet_run.to_json())


def _show(out: Console, fleet_run: FleetRun) -> None:
    from rich.table import Table

    table = Table("round", "counted", "rests", "up", "down", "CPU", "time", "simulated")
    for entry in fleet_run.rounds:
        table.add_row(
            str(entry["round"]),
            f"{entry['counted']:,}",
            f"{entry['rests']:,}",
            f"{entry['bytes_up'] / 1e6:.1f} MB",
            f"{entry['bytes_down'] / 1e6:.1f} MB",
            f"{entry['processor_seconds']:.1f} s",
            f"{entry['seconds']:.1f} s",
            f"{entry['simulated_hours']:.1f} h",
        )
    out.print(table)
    for name, title in (("injected", "injected faults"), ("refused", "contributions refused")):
        kinds = sorted({kind for entry in fleet_run.rounds for kind in entry[name]})
        listed = Table(title, *(f"round {entry['round']}" for entry in fleet_run.rounds))
        for kind in kinds:
            listed.add_row(kind.replace("_", " "), *(f"{entry[name].get(kind, 0):,}" for entry in fleet_run.rounds))
        if kinds:
            out.print(listed)
    memory = fleet_run.memory_bytes / 2**30
    out.print(
        f"{fleet_run.devices:,} devices, {fleet_run.malicious} of them malicious, on {fleet_run.hosts} hosts; "
        f"{fleet_run.seconds:.0f} s, {fleet_run.processor_seconds:.0f} s of processors, at most "
        f"{memory:.2f} GiB of memory; "
        f"ε spent {fleet_run.epsilon:.4f}; noise: {fleet_run.noise}"
    )
    if fleet_run.model_sha256 is not None:
        out.print(f"model {fleet_run.model_sha256}")

"""`odp audit`: checks of a log that anybody can run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import print_json, print_result, results_console
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.trust.log.audit import AuditReport

app = typer.Typer(help="Verify a transparency log, or repair it.", no_args_is_help=True)


@app.command("verify")
def verify(
    log: Annotated[Path | None, typer.Option(help="Folder of a log: `<state>/server/log`, or a copy of one.")] = None,
    address: Annotated[str | None, typer.Option(help="host:port of a running server whose log is read.")] = None,
    services: Annotated[
        Path, typer.Option(help="State folder of `odp up`, with the defaults of --log, --ca and --reference-values.")
    ] = Path("odp-state"),
    ca: Annotated[Path | None, typer.Option(help="PEM file of the CA of the server, with --address.")] = None,
    reference_values: Annotated[
        Path | None, typer.Option(help="JSON file with the log, witnesses, endorsers and platforms that you pin.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Verify every hash, signature, proof and charge of a log, and recompute ε from the charges alone.

    Exits with code 1 at the first fault, and names its record. Use reference values of your own: those of the log's
    operator prove only that the log agrees with itself.
    """
    from odp.transport.channel import connect
    from odp.trust.enclave.reference_values import ReferenceValues
    from odp.trust.log.audit import audit
    from odp.trust.log.sources import AuditFailure, LogFolder, LogServer

    if log is not None and address is not None:
        raise ConfigurationError("Expected --log or --address, got both")
    pins = reference_values if reference_values is not None else services / "reference_values.json"
    values = ReferenceValues.load(pins)
    where = address if address is not None else str(log if log is not None else services / "server" / "log")
    try:
        if address is not None:
            with connect(address, ca if ca is not None else services / "ca" / "ca.pem") as channel:
                report = audit(LogServer(channel, address), values)
        else:
            report = audit(LogFolder(Path(where)), values)
    except AuditFailure as error:
        if json:
            print_json({"passed": False, "log": where, "record": error.record, "reason": error.reason})
        else:
            results_console().print(f"[bold red]audit failed[/bold red] of {where}")
            results_console().print(f"  {error.record}: {error.reason}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if json:
        print_json(summary(report, where))
    else:
        _show(report, where, pins)


@app.command("repair")
def repair(
    log: Annotated[Path | None, typer.Option(help="Folder of the log \\[default: <services>/server/log].")] = None,
    copy: Annotated[
        list[Path], typer.Option("--from", help="Folder with another copy of the log; repeat for more.")
    ] = [],  # noqa: B006  # typer copies it
    checkpoint: Annotated[
        list[Path], typer.Option(help="Checkpoint of the log: a file of a witness, or a signed note; repeat for more.")
    ] = [],  # noqa: B006  # typer copies it
    services: Annotated[Path, typer.Option(help="State folder of `odp up`, with the default of --log.")] = Path(
        "odp-state"
    ),
    log_key: Annotated[
        Path | None,
        typer.Option(help="The log's private key \\[default: <services>/log.key, or the one beside the log's folder]."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Restore a log that its server refuses to open, from its readable part, a copy, or a checkpoint of a witness.

    Stop the server first. Every signed tree stays the beginning of the log, and no entry is dropped. If that is not
    possible, the command changes nothing.
    """
    from odp.operations.local.log_setup import LOG_KEY
    from odp.trust.log import repair as repairing
    from odp.trust.log.key_file import note_key

    folder = log if log is not None else services / "server" / "log"
    log_folder_key, of_services = folder.parent / "log.key", services / LOG_KEY
    key_file = log_key or (of_services if log is None and of_services.is_file() else log_folder_key)
    if not key_file.is_file():
        raise ConfigurationError(f"{key_file} does not exist: give the log's private key with --log-key")
    done = repairing.repair(
        folder, note_key(key_file, name="unused"), copies=copy, checkpoints=checkpoint, now=time.time()
    )
    signed = "signed anew" if done.signed_anew else "as it was signed before"
    text = f"{folder}: {done.size} entries, {done.own} of them its own, {signed}"
    print_result({"log": str(folder), **vars(done)}, text, json=json)


def summary(report: AuditReport, where: str) -> dict[str, Any]:
    """A report that passed, as plain values."""
    checkpoint = report.checkpoint.checkpoint
    return {
        "passed": True,
        "log": where,
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "witnesses": list(report.checkpoint.witnesses),
        "time": report.checkpoint.time,
        "entries": report.counts,
        "tasks": [vars(task) | {"contributions": list(task.contributions)} for task in report.tasks],
    }


def _show(report: AuditReport, where: str, pins: Path) -> None:
    from rich.table import Column, Table

    out = results_console()
    verified = report.checkpoint
    signed = (
        "at an unknown time"
        if verified.time is None
        else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(verified.time))
    )
    out.print(f"log {verified.checkpoint.origin} in {where}, against what {pins} pins", markup=False, soft_wrap=True)
    out.print(f"  {verified.checkpoint.size} entries under root {verified.checkpoint.root.hex()}", soft_wrap=True)
    out.print(f"  newest {signed}; witnesses: {', '.join(verified.witnesses) or 'none'}", markup=False, soft_wrap=True)
    counted = Table("entries", Column("", justify="right"))
    for label, count in report.counts.items():
        counted.add_row(label, str(count))
    out.print(counted)
    tasks = Table("task", "population", "rounds", "contributions", "ε of its releases", "ε charged", "budget", "δ")
    for task in report.tasks:
        low, high = min(task.contributions, default=0), max(task.contributions, default=0)
        tasks.add_row(
            task.name,
            task.population,
            f"{task.rounds}/{task.planned_rounds}" if task.planned_rounds else "none: local trust",
            f"{low:,}" if low == high else f"{low:,} to {high:,}",
            f"{task.epsilon:.6f}",
            f"{task.charged_epsilon:.6f}",
            f"{task.budget:g}",
            f"{task.delta:g}",
        )
    out.print(tasks)
    out.print("[bold green]audit passed[/bold green]: every hash, signature, proof and charge holds")

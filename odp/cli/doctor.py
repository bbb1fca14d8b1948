"""`odp doctor`: whether the parts of a deployment are well, and what to do where they are not."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import console, print_json, results_console

if TYPE_CHECKING:
    from odp.operations.doctor import Deployment, Finding

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "not examined": "dim"}


def doctor(
    services: Annotated[
        Path | None, typer.Option(help="State folder of `odp up`, with the defaults of all others \\[default: found].")
    ] = None,
    server: Annotated[str | None, typer.Option(help="host:port of the server; several with commas between.")] = None,
    program: Annotated[
        list[str],
        typer.Option(help="role=host:port of a further program \\[default: those of the reference values]; repeat."),
    ] = [],  # noqa: B006  # typer copies it
    ca: Annotated[Path | None, typer.Option(help="PEM file of the CA of all of them.")] = None,
    reference_values: Annotated[Path | None, typer.Option(help="JSON file of what devices pin.")] = None,
    metrics: Annotated[
        list[str], typer.Option(help="host:port of a program's --metrics: its version, clock and disk; repeat.")
    ] = [],  # noqa: B006
    state: Annotated[list[Path], typer.Option(help="State folder of a program on this machine; repeat for more.")] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 at warnings, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Examine a deployment: certificates, health, enclaves, log, clocks, versions, disks. Nothing is changed.

    Exits with code 1 where something fails.
    """
    from rich.markup import escape
    from rich.table import Table

    from odp.operations.doctor import examine

    deployment = _deployment(services, server, program, ca, reference_values, metrics, state)
    findings: list[Finding] = []
    with console().status("examining"):
        findings.extend(examine(deployment))
    states = Counter(finding.state for finding in findings)
    fails = bool(states["failure"] or (strict and states["warning"]))
    if json:
        print_json({"passed": not fails, "findings": [vars(finding) for finding in findings]})
    else:
        table = Table("part", "state", "found")
        for subject, group in itertools.groupby(findings, key=lambda finding: finding.subject):
            for state_of, text in _lines(list(group)):
                style = _STYLES[state_of]
                table.add_row(escape(subject), f"[{style}]{state_of}[/{style}]", escape(text))
        results_console().print(table)
        results_console().print(", ".join(f"{state_of}: {count}" for state_of, count in states.items()))
    if fails:
        raise typer.Exit(1)


def _lines(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """State and text of each line of one part: what is well in one, everything else with what to do."""
    well = [finding.told for finding in findings if finding.state == "ok"]
    if well:
        yield "ok", "; ".join(well)
    for finding in findings:
        if finding.state != "ok":
            text = f"{finding.check}: {finding.told}"
            yield finding.state, f"{text}\n→ {finding.todo}" if finding.todo else text


def _deployment(
    services: Path | None, server: str | None, program: list[str], ca: Path | None, reference_values: Path | None,
    metrics: list[str], state: list[Path],
) -> Deployment:  # fmt: skip
    """What the options name, and the folder of `odp up` for what they leave out. Raises ConfigurationError."""
    from odp.operations.doctor import Deployment
    from odp.services.folder import ServicesFolder
    from odp.transport.channel import addresses_in, parse_address
    from odp.transport.tls import read_ca
    from odp.trust.enclave.reference_values import ReferenceValues

    folder: ServicesFolder | None = None
    if services is not None:
        folder = ServicesFolder(services)
    elif server is None or ca is None:
        folder = ServicesFolder.find()
    if folder is not None:
        server = folder.server_address() if server is None else server
        ca = folder.ca if ca is None else ca
        if reference_values is None and folder.reference_values.is_file():
            reference_values = folder.reference_values
        state = state or sorted(path.parent for path in folder.root.glob("*/format"))
    assert server is not None
    assert ca is not None
    values = None if reference_values is None else ReferenceValues.load(reference_values)
    programs = {"server": list(addresses_in(server))}
    for role, addresses in ({} if values is None else values.addresses).items():
        programs.setdefault(role, []).extend(addresses)
    for option in program:
        role, _, address = option.partition("=")
        parse_address(address)
        if address not in programs.setdefault(role, []):
            programs[role].append(address)
    for address in metrics:
        parse_address(address)
    return Deployment(
        programs=programs, ca=read_ca(ca), reference_values=values, metrics=tuple(metrics), folders=tuple(state)
    )

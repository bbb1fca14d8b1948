"""`odp backup` and `odp restore`: the state folders of stopped programs, as one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_result


def backup(
    state: Annotated[Path, typer.Argument(help="State folder of a stopped program, or of a stopped `odp up`.")],
    output: Annotated[Path, typer.Option(help="File to write; it holds private keys.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the state of a stopped program to one file.

    The file does not contain the emulated chip.
    """
    from odp._system.files.backup import back_up

    made = back_up(state, output)
    text = f"{made.files} files of {state} ({made.role}), {made.bytes} bytes, in {output}: keep it private"
    print_result({"role": made.role, "files": made.files, "bytes": made.bytes, "output": str(output)}, text, json=json)


def restore(
    archive: Annotated[Path, typer.Argument(help="File of `odp backup`.")],
    state: Annotated[Path, typer.Option(help="Folder that is empty, or holds only the emulated chip.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move what else is there to <state>.replaced-0; the chip stays.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Restore a backup.

    An aggregator's enclave refuses a backup that is older than its chip's counters, and one of another chip: no backup
    contains a chip.
    """
    from odp._system.files.backup import restore as put_back

    made = put_back(archive, state, replace=replace)
    text = f"{made.files} files ({made.role}), {made.bytes} bytes, in {state}"
    print_result({"role": made.role, "files": made.files, "bytes": made.bytes, "state": str(state)}, text, json=json)

"""`odp device doctor`: what this machine enforces for a developer's on-device code, and what else a device finds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_json, print_text

_MEANING = {
    "namespace-user": "users of its own: no rights outside",
    "namespace-network": "a network of its own, empty",
    "namespace-ipc": "shared memory and queues of its own",
    "namespace-process": "it sees no other process, and its number does not count calls",
    "no-shared-pages": "its memory is not merged with that of others, and takes no huge pages",
    "private-memory": "it maps no file: libraries are copies that no other process shares",
    "no-new-privileges": "no program could give it more rights",
    "not-dumpable": "no process of the same user may read its memory",
    "no-core-dumps": "its memory goes to no file when it crashes",
    "no-capabilities": "it has none of root's rights",
    "closed-descriptors": "it inherits its channel and nothing else",
    "memory-limit": "address space is limited",
    "processor-limit": "processor time is limited",
    "file-limit": "no file can grow, few descriptors",
    "landlock-no-files": "no file can be opened",
    "seccomp": "system calls: compute, its channel; no threads, no counters of the machine",
}


def doctor(
    state: Annotated[Path, typer.Option(help="State folder of the device host.")] = Path("odp-devices"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what this machine enforces for on-device services, how it keeps stores, and which sensors it has.

    Exit code 1 means that a promised restriction of services is not enforced.
    """
    from device_runtime import MachineSensors
    from device_runtime.host.doctor import examine

    examination = examine(MachineSensors(state if state.is_dir() else Path.cwd()), folder=state)
    if json:
        print_json(examination.as_json())
    else:
        print_text(f"python {examination.python}, {examination.system}")
        for name in (*examination.enforced, *examination.not_enforced):
            print_text(f"{'NOT ENFORCED' if name in examination.not_enforced else 'enforced':<13} {name}")
        if examination.problem:
            print_text(f"services do not run here: {examination.problem}")
        for name in (*examination.held, *examination.refused):
            print_text(f"  {'REFUSED' if name in examination.refused else 'holds':<8} {name:<19} {_MEANING[name]}")
        print_text(f"stores: {examination.store}")
        print_text(f"keyring: {examination.keyring}")
        for name, reason in examination.sensors.items():
            print_text(f"sensor {name}: {reason or 'readable'}")
    if examination.not_enforced:
        raise typer.Exit(1)

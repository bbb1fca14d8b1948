"""The words around `odp demo`: who takes part, before it starts, and what to do next, after it ended."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_PARTIES = (
    ("devices", "train on their own ratings", "each its own ratings"),
    ("issuer", "gives each device one token per round", "who takes part"),
    ("distributor", "an enclave; gives devices the rows that they ask for", "sealed requests"),
    ("aggregator", "an enclave; adds contributions up, and noise to the sum", "sealed contributions"),
    ("server", "opens rounds, makes the next model", "noisy sums"),
)
_HELPER = ("helper", "half of a private lookup, beside the distributor", "half of a lookup")


def parties_table(*, helper: bool) -> Table:
    """The programs that the demo starts, with ``helper`` the helper of private lookups too."""
    from rich.table import Table

    caption = "the enclaves are emulated: whoever runs this machine can read what is inside"
    table = Table("program", "what it does", "what its operator sees", caption=caption)
    for row in (*_PARTIES, *([_HELPER] if helper else [])):
        table.add_row(*row)
    return table


def next_steps(output: Path) -> str:
    """What to do after the demo, in three commands."""
    steps = (
        (f"odp report {shlex.quote(str(output))}", "a page about this run"),
        ("odp data check FILE.csv", "your own data: what is in it, and the ε that fits"),
        ("odp init my-app", "a small project of your own, with a device in it"),
    )
    width = max(len(command) for command, _ in steps)
    return "\n".join(["next:", *(f"  {command:<{width}}  {what}" for command, what in steps)])

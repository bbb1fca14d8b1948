"""What a person who has seen the demo does next."""

from __future__ import annotations

import shlex
from pathlib import Path


def next_steps(output: Path) -> str:
    """Three commands, for the run in ``output``."""
    steps = (
        (f"odp report {shlex.quote(str(output))}", "a page about this run"),
        ("odp data check FILE.csv", "your own data: what is in it, and the ε that fits"),
        ("odp init my-app", "a small project of your own, with a device in it"),
    )
    wide = max(len(command) for command, _ in steps)
    return "next:\n" + "\n".join(f"  {command:<{wide}}  # {why}" for command, why in steps)

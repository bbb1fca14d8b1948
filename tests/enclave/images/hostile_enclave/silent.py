"""Entry module that ends while it starts."""

from __future__ import annotations

import os


def warm_up() -> None:
    os._exit(0)


def run(channel: object, guest: object) -> None:
    """Never reached."""

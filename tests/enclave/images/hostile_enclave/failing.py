"""Entry module that does not start."""

from __future__ import annotations


def warm_up() -> None:
    raise ValueError("this enclave does not start")


def run(channel: object, guest: object) -> None:
    """Never reached."""

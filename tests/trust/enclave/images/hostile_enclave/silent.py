"""Entry module that ends while it starts."""

from __future__ import annotations

import os

if "__file__" not in globals():  # in an image
    os._exit(0)


def run(channel: object, guest: object) -> None:
    """Never reached."""

"""Opens the person's browser at an address that nobody else may see.

Every user of the machine can read the arguments of a program (``ps``), and the address is a secret. So the browser
opens a file that only the person may read, and the file redirects to the address.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from odp._system.files.state_folder import state_errors, write_atomically

#: In the state folder, while the view is open.
FILE = "view.html"


@contextmanager
def opened(url: str, folder: Path, *, browser: Callable[[str], object] = webbrowser.open) -> Iterator[None]:
    """Opens ``url`` through a file in ``folder``, mode 0600, which is deleted at the end. Raises StateError."""
    door = folder / FILE
    page = (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>your device</title>'
        f'<meta http-equiv="refresh" content="0; url={escape(url, quote=True)}">'
    )
    with state_errors(folder):
        write_atomically(door, page.encode())
    try:
        browser(door.resolve().as_uri())
        yield
    finally:
        door.unlink(missing_ok=True)

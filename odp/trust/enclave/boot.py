"""The life of an enclave process: restrict, import all, restrict further, run.

An *entry module* has ``run(channel, guest)``, which serves the host over the socket ``channel`` until the host closes
it. It may have ``warm_up()``, which imports what the enclave's code and libraries import late: the builder of the image
runs it to find these modules, and the enclave before it imports the rest of the image.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

from odp._system.sandbox.kernel import end_with_parent
from odp.errors import OdpError
from odp.trust.enclave import sandbox
from odp.trust.enclave.guest_socket import SocketGuest

_FRAMES = 6


def main(*, names: Sequence[str], entry: str, channel: int, platform: int, debug: bool) -> None:
    """Runs the module ``entry`` between the two sockets (descriptors), and ends the process.

    ``names`` are all modules of the image: none can be imported later.
    """
    end_with_parent()
    before = sandbox.before_imports(debug=debug)
    guest = SocketGuest(socket.socket(fileno=platform))
    try:
        module = importlib.import_module(entry)
        warm_up: Callable[[], None] | None = getattr(module, "warm_up", None)
        if warm_up is not None:
            warm_up()
        for name in names:
            importlib.import_module(name)
        opened = socket.socket(fileno=channel)
        after = sandbox.before_run((channel, platform), debug=debug)
        guest.ready(held=[*before.held, *after.held], refused=[*before.refused, *after.refused])
    except BaseException as error:
        # No private data have arrived yet, so the message may leave the enclave.
        guest.failed(str(error) if isinstance(error, OdpError) else f"{type(error).__name__}: {error}{_where(error)}")
        os._exit(1)
    # What is loaded stays: no collection has to look at it again.
    gc.freeze()
    try:
        module.run(opened, guest)
    except BaseException as error:
        guest.failed(f"{type(error).__name__}{_where(error)}")
        if debug:
            traceback.print_exc(file=sys.stderr)
        os._exit(1)
    # At once: threads that still compute have nobody left to answer.
    os._exit(0)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return "".join(f" < {frame.name}:{frame.lineno}" for frame in reversed(frames))

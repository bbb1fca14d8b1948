"""An enclave as a thread of its host: for tests that inject noise or faults, which need access to its memory.

The same socket, messages and platform as ``launcher.launch``, and no protection at all: it says so as a restriction.
No program starts one unless its caller hands over an object of the same process (rule P23).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from odp.errors import OdpError
from odp.trust.enclave.channel import EnclaveCrash
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.measurement import measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy

_STOP_SECONDS = 10.0


class ThreadEnclave:
    """A running enclave in a thread; implements ``odp.trust.enclave.host.LaunchedEnclave``."""

    restrictions: tuple[str, ...] = ()
    refused = ("everything: a thread of its host, for tests",)

    def __init__(self, run: Callable[[socket.socket, Guest], None], guest: Guest) -> None:
        self.image_digest = guest.image_digest
        self.channel, inside = socket.socketpair()
        self._thread = threading.Thread(target=_run, args=(run, inside, guest), name="enclave-inside", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the socket and waits for the thread. Idempotent."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()
        self._thread.join(_STOP_SECONDS)


class InThread:
    """Launches ``run`` (an entry module's, perhaps with additional arguments) in a thread.

    ``digest`` is the measurement that the platform gets; None measures it as the launcher of processes does.
    """

    def __init__(self, run: Callable[[socket.socket, Guest], None], *, digest: str | None = None) -> None:
        self._run, self._digest = run, digest

    def __call__(self, *, platform_folder: Path, entry: str, policy: bytes) -> ThreadEnclave:
        digest = measure(entry).digest if self._digest is None else self._digest
        role = EnclavePolicy.from_bytes(policy).role
        guest = EmulatedPlatform.open(platform_folder).launch(image_digest=digest, policy=policy, name=role)
        return ThreadEnclave(self._run, guest)


def _run(run: Callable[[socket.socket, Guest], None], inside: socket.socket, guest: Guest) -> None:
    with inside, contextlib.suppress(OdpError, EnclaveCrash):
        run(inside, guest)

"""Starts enclaves, for host programs.

``launch`` starts one platform process (``odp.trust.enclave.platform_start``), which measures the enclave's image and
starts it, and returns when the enclave runs and is restricted. The host then has one socket to it, and nothing else in
common.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp._system.closing import Closing
from odp._system.sandbox.frames import receive_frame, send_frame
from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.guest_socket import result_of
from odp.trust.enclave.measurement import PLATFORM_ENTRY, file_of

_PLATFORM = ("-P", "-m", "odp.trust.enclave.platform_start")
_START_SECONDS = 240.0
_STOP_SECONDS = 10.0


class LaunchedEnclave(Closing):
    """A running enclave and its platform, both ended by ``close`` or, however this process ends, by the kernel.

    Attributes:
        channel: the socket to the enclave; it reads end of file when the enclave is gone.
        image_digest: what the platform measured, ``"sha384:<hex>"``.
        components: its parts by name, see ``odp.trust.enclave.image.parts``.
        restrictions: names of ``odp.trust.enclave.sandbox`` that hold.
        refused: those that the kernel, or a debug launch, refused.
        pid: of the enclave process.
        platform_pid: of the platform process.
    """

    def __init__(
        self,
        *,
        channel: socket.socket,
        control: socket.socket,
        platform: subprocess.Popen[bytes],
        told: Mapping[str, object],
    ) -> None:
        self.channel = channel
        self.image_digest = str(told["image_digest"])
        self.components: dict[str, str] = dict(told["components"])  # type: ignore[call-overload]
        self.restrictions: tuple[str, ...] = tuple(told["held"])  # type: ignore[arg-type]
        self.refused: tuple[str, ...] = tuple(told["refused"])  # type: ignore[arg-type]
        self.pid = int(str(told["pid"]))
        self.platform_pid = platform.pid
        self._control, self._platform = control, platform
        self._closing = threading.Lock()

    @property
    def processes(self) -> tuple[int, int]:
        """Process ids of platform and enclave."""
        return self.platform_pid, self.pid

    def close(self) -> None:
        """Ends the enclave and its platform, and returns when both are gone. Idempotent."""
        with self._closing:
            self.channel.close()
            _end(self._control, self._platform)


def launch(
    *,
    platform_folder: Path,
    entry: str,
    policy: bytes,
    packages: Sequence[str] = (),
    images: Path | None = None,
    debug: bool = False,
) -> LaunchedEnclave:
    """Starts the enclave whose entry module (``odp.trust.enclave.boot``) is ``entry``.

    Args:
        platform_folder: the emulated chip; made where missing.
        entry: import name of the entry module.
        policy: canonical bytes of an ``EnclavePolicy``: the configuration.
        packages: import packages of its own code; default: odp and the one of ``entry``.
        images: folder of images that were built elsewhere; default: those of this installation, which are built where
            they are missing.
        debug: debuggers may attach, and its evidence says so.

    Raises:
        ConfigurationError: an image cannot be built or used, or the policy cannot be read.
        StateError: the platform folder cannot be used, or the enclave did not start; one line says why.
    """
    folder = platform_folder.absolute()
    request = {"platform_folder": str(folder), "entry": entry, "policy": policy.hex(), "debug": debug}
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        files = (file_of(entry, packages, images=images), file_of(PLATFORM_ENTRY, images=images))
        opened = []
        try:
            for path in files:
                opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                theirs.callback(os.close, opened[-1])
            (control, platform_end), (channel, enclave_end) = socket.socketpair(), socket.socketpair()
        except OSError as error:
            raise StateError(f"the enclave cannot be started: {(error.strerror or 'error').lower()}") from None
        for end, stack in ((control, ours), (channel, ours), (platform_end, theirs), (enclave_end, theirs)):
            stack.enter_context(end)
        platform = _start_platform([platform_end.fileno(), enclave_end.fileno(), *opened], folder)
        theirs.close()
        try:
            control.settimeout(_START_SECONDS)
            launched = LaunchedEnclave(channel=channel, control=control, platform=platform, told=_ask(control, request))
        except BaseException:
            _end(control, platform)
            raise
        ours.pop_all()
        return launched


def _start_platform(descriptors: Sequence[int], folder: Path) -> subprocess.Popen[bytes]:
    # Only the first lines of the platform process are found where this process finds them; then it runs its image.
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    try:
        return subprocess.Popen(
            [sys.executable, *_PLATFORM, *map(str, descriptors), str(folder)],
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A Ctrl-C in the terminal goes to the host, which then ends its enclave in order.
            start_new_session=True,
        )
    except OSError as error:
        raise StateError(f"the platform process could not be started: {error.strerror or error}") from error


def _ask(control: socket.socket, request: Mapping[str, object]) -> Mapping[str, object]:
    try:
        send_frame(control, request)
        told = result_of(receive_frame(control), of="platform process")
    except TimeoutError:
        raise StateError(f"the enclave did not start within {_START_SECONDS:.0f} s") from None
    except OSError:
        raise StateError("the platform process ended while it started; its last line says why") from None
    if not isinstance(told, dict):
        raise ConfigurationError("Expected the platform process to tell what it launched")
    return told


def _end(control: socket.socket, platform: subprocess.Popen[bytes]) -> None:
    # The platform kills the enclave when this socket closes, and the kernel does when the platform is killed.
    control.close()
    try:
        platform.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        platform.kill()
        platform.wait()

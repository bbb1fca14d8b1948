"""The runtime's side of the processes of a service: the template, and the processes that are forked from it.

See ``odp.isolated.template`` for the messages between them. Nothing here trusts what a call's process says, but for
what holds of its restrictions, which it says before it runs any of the developer's code.

A ``Lane`` is a template and the process of its next call: one lane for private calls, one for all others. What a call's
process can find out about its lane (how long the call before took, when that ended, how many there were) says something
of the other calls of that lane. Answers to apps come from calls of a separate lane.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import odp.isolated.template as template_module
from device_runtime.isolated.code import ServiceCode
from device_runtime.isolated.limits import CallLimits
from odp._system.sandbox.frames import Remaining, receive_frame, send_frame
from odp.errors import ConfigurationError, StateError
from odp.isolated.walls import PROMISES, RESTRICTIONS, broken_promises

#: Time limits of the template for its imports and for its answers, in seconds.
START_SECONDS = 60.0
CONTROL_SECONDS = 10.0

_LARGEST = 8 * 2**20
_PYTHON = ("-I", "-S", "-B", "-X", "utf8")
_PROGRAM = Path(template_module.__file__).resolve()
# A copied process has none of the threads that a BLAS starts; a heap per thread takes much address space for little.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


def until(deadline: float) -> Remaining:
    """Seconds left until ``deadline`` of the monotonic clock. The returned function raises TimeoutError at 0."""

    def remaining() -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    return remaining


class CallProcess:
    """One process, for one call, or for several with the data of one person.

    Attributes:
      channel: the runtime's end of its socket.
      held: restrictions that it said to hold, once that was read.
    """

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self.channel = channel
        self.held: tuple[str, ...] | None = None


class Template:
    """A running template of one service; one thread at a time. ``close`` ends it and every process made of it.

    Raises:
      StateError: it could not be started.
    """

    def __init__(self, code: ServiceCode, limits: CallLimits) -> None:
        self._limits = limits
        self._numbers = itertools.count(1)
        control, theirs = socket.socketpair()
        self._control = control
        with theirs:
            self._process = _start(theirs)
        try:
            wanted = ["odp.isolated", *code.imports()]
            request = {
                "paths": _paths(wanted, code.libraries),
                "preload": wanted,
                "sources": code.sources,
                "module": code.module,
                "name": code.name,
                "limits": {
                    "memory_bytes": limits.memory_bytes,
                    "processor_seconds": limits.processor_seconds,
                    "output_bytes": limits.output_bytes,
                },
            }
            remaining = until(time.monotonic() + START_SECONDS)
            send_frame(control, request, most=_LARGEST, remaining=remaining)
            if (reply := receive_frame(control, remaining=remaining)) is None:
                raise StateError("the service's processes could not be started: the template ended")
            #: Modules that the service seems to import, and that there are not.
            self.missing = tuple(map(str, reply["missing"]))
        except (OSError, ConfigurationError):
            self.close()
            raise StateError("the service's processes could not be started: the template does not answer") from None
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether the template has ended; the kernel then ends its processes too, not at once."""
        return self._process.poll() is not None

    def fork(self) -> CallProcess:
        """Forks a process; its channel reports everything after that. Raises StateError if the template is gone."""
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        try:
            with theirs:
                self._control.settimeout(CONTROL_SECONDS)
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                send_frame(self._control, {"fork": number})
        except OSError:
            ours.close()
            raise StateError("the template of the service's processes is gone") from None
        return CallProcess(number, ours)

    def end(self, process: CallProcess) -> None:
        """Kills a process, without waiting for its end."""
        process.channel.close()
        with contextlib.suppress(OSError):
            self._tell({"end": process.number})

    def signal_of(self, process: CallProcess) -> int:
        """The signal that ended a process that closed its channel, or 0. Raises StateError if it is unknown."""
        process.channel.close()
        try:
            self._tell({"end": process.number, "tell": True})
            reply = receive_frame(self._control, remaining=until(time.monotonic() + CONTROL_SECONDS))
        except (OSError, ConfigurationError):
            reply = None
        if reply is None:
            raise StateError("the template of the service's processes is gone")
        return int(reply["ended"])

    def close(self) -> None:
        """Ends all processes of the template. Idempotent."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CONTROL_SECONDS)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _tell(self, message: object) -> None:
        self._control.settimeout(CONTROL_SECONDS)
        self._control.sendall(b"+")
        send_frame(self._control, message)


def locked(process: CallProcess) -> tuple[str, ...]:
    """The restrictions of a new process; it reports them before it runs the developer's code.

    Raises:
      StateError: it did not come so far.
    """
    try:
        report = receive_frame(process.channel, remaining=until(time.monotonic() + START_SECONDS))
    except (OSError, ConfigurationError):
        report = None
    if report is None:
        raise StateError("a process of the service could not be started")
    held = set(report["held"])
    return tuple(name for name in RESTRICTIONS if name in held)


class Walls:
    """Whether a process is restricted enough to get a person's data.

    Args:
      accept: promises (names of ``odp.isolated.walls.PROMISES``) that the person does without.
      say: a callback for a line to the person where the machine does not enforce some.

    Raises:
      ConfigurationError: there is no such promise.
    """

    def __init__(self, accept: Collection[str], say: Callable[[str], None]) -> None:
        for name in accept:
            if name not in PROMISES:
                raise ConfigurationError(f"Expected accept={name!r} to be one of {', '.join(PROMISES)}")
        self._accept, self._say = frozenset(accept), say
        self._missing: list[str] = []

    def require(self, held: Sequence[str]) -> None:
        """Returns if a process with these restrictions keeps what the person was promised. Raises StateError."""
        if (missing := broken_promises(held)) != self._missing:
            self._missing = missing
            if missing:
                self._say(f"this machine does not enforce for services: {', '.join(missing)}; see `odp device doctor`")
        if refused := [name for name in missing if name not in self._accept]:
            raise StateError(
                f"this machine does not enforce {', '.join(refused)} for the service, so it got no "
                "data; `odp device doctor` says why; accept=[..] runs it without"
            )


def _start(control: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, *_PYTHON, str(_PROGRAM), str(control.fileno())],
            env=_ENVIRONMENT,
            cwd=os.path.sep,
            pass_fds=(control.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise StateError(f"the service's processes could not be started: {error.strerror or error}") from error


def _paths(wanted: Sequence[str], libraries: Sequence[str]) -> list[str]:
    """Folders of the ``libraries`` among ``wanted``."""
    tops = sorted({name.partition(".")[0] for name in wanted} & set(libraries))
    specs = [importlib.util.find_spec(name) for name in tops]
    return sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin})


class Lane:
    """Creates the processes of calls. The holder of ``lock`` may call every method, others only ``close``.

    Args:
      code: the developer's modules.
      limits: of every call.
      walls: asked of every process before it gets any data.
    """

    def __init__(self, code: ServiceCode, limits: CallLimits, walls: Walls) -> None:
        self.lock = threading.Lock()
        self.template: Template | None = None
        self._code, self._limits, self._walls = code, limits, walls
        self._spare: CallProcess | None = None

    def restrictions(self) -> tuple[str, ...]:
        """Restrictions of the process of the next call. Raises StateError."""
        return self._prepared().held or ()

    def take(self) -> CallProcess:
        """The process of one call: restricted, and without any data yet. Raises StateError."""
        process = self._prepared()
        self._spare = None
        return process

    def end(self, used: CallProcess) -> None:
        """Kills a used process, and prepares the next one."""
        if self.template is None:
            return
        try:
            self.template.end(used)
            if self._spare is None:
                self._spare = self.template.fork()
        except StateError:
            self.stop()

    def failed(self, used: CallProcess, *, ended: bool) -> int:
        """Kills the process of a failed call; the signal that ended it if it ``ended`` by itself, or 0."""
        if self.template is None:
            return 0
        try:
            if ended:
                return self.template.signal_of(used)
            self.template.end(used)
        except StateError:
            self.stop()
        return 0

    def close(self) -> None:
        """Ends all processes after the current call. A later call starts them again."""
        with self.lock:
            self.stop()

    def stop(self) -> None:
        """Ends all processes."""
        if self._spare is not None:
            self._spare.channel.close()
            self._spare = None
        if self.template is not None:
            self.template.close()
            self.template = None

    def _prepared(self) -> CallProcess:
        try:
            process = self._locked()
        except StateError:
            # The template may have ended since the last call; a new one has one attempt.
            self.stop()
            process = self._locked()
        try:
            self._walls.require(process.held or ())
        except StateError:
            self.stop()
            raise
        return process

    def _locked(self) -> CallProcess:
        if self.template is not None and self.template.ended:
            # Its spare process may have reported its restrictions, and is about to be killed.
            self.stop()
        if self.template is None:
            self.template = Template(self._code, self._limits)
        if self._spare is None:
            self._spare = self.template.fork()
        if self._spare.held is None:
            self._spare.held = locked(self._spare)
        return self._spare

"""The host's side of processes that compute contributions (``computing_worker.py``)."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from device_runtime.round.computations import Described
from device_runtime.round.computing_places import PROCESS_BYTES
from device_runtime.round.computing_worker import NO_PROCESS, receive, send
from device_runtime.round.fixed_times import Window
from device_runtime.store.keys import StoreKey
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

_START_SECONDS, _CONTROL_SECONDS = 60.0, 10.0
# Tasks whose processes are kept ready; more where more of them compute.
_MOST_TEMPLATES = 2
_NUMBER = struct.Struct("<Q")
# Beside a payload of known length: what a device keeps to itself.
_LOCAL_BYTES = 2**28
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from device_runtime.round import computing_worker as worker; "
# A forked process has none of the threads that a BLAS starts.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class ComputingProcess:
    """A process for one contribution. A context manager, which ends it."""

    def __init__(self, template: Template, number: int, channel: socket.socket) -> None:
        self._template, self._number, self._channel = template, number, channel

    def begin(self, path: Path, key: StoreKey, described: Described, window: Window) -> None:
        """Tells it what to compute. Raises OSError, TimeoutError."""
        self._send((path, key, described, time.monotonic() + window.seconds_to_read), window)

    def keys(self, window: Window, *, most: int) -> Int64Array:
        """The rows that the device asks for, at most ``most``. Raises as ``contribution``."""
        parts = self._answer(window, most=8 * most)
        if len(parts) != 1 or len(parts[0]) % 8:
            raise ValueError("no keys")
        return np.frombuffer(parts[0], dtype="<i8").astype(np.int64)

    def contribution(self, slices: Slices | None, window: Window, *, payload_bytes: int) -> tuple[bytes, bytes | None]:
        """(payload, new local parameters).

        Raises:
          OSError, TimeoutError, ValueError: it failed, ended, is late, or its payload has another length.
        """
        self._send(slices, window)
        parts = self._answer(window, most=payload_bytes + _LOCAL_BYTES)
        if not parts or len(parts[0]) != payload_bytes:
            raise ValueError("no contribution")
        return parts[0], parts[1] if len(parts) > 1 else None

    def end(self) -> None:
        """Kills it. Idempotent."""
        self._channel.close()
        self._template.end(self._number)

    def __enter__(self) -> ComputingProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def _send(self, message: object, window: Window) -> None:
        self._channel.settimeout(max(window.seconds_left, 1e-3))
        send(self._channel, (pickle.dumps(message, protocol=5),))

    def _answer(self, window: Window, *, most: int) -> tuple[bytes, ...]:
        self._channel.settimeout(max(window.seconds_left, 1e-3))
        if not (parts := receive(self._channel, most=most)):
            raise ConnectionError("the process failed, or ended")
        return parts


class Template:
    """What the processes of one task are forked from; thread-safe. ``close`` ends it and them.

    Raises:
      StateError: it could not be started.
    """

    def __init__(self, definition: bytes, catalogue: Sequence[bytes], *, seconds: float) -> None:
        self._lock = threading.Lock()
        self._living: set[int] = set()
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs)
            self._control.settimeout(_START_SECONDS)
            send(self._control, (pickle.dumps((definition, tuple(catalogue), PROCESS_BYTES, math.ceil(seconds))),))
            if not receive(self._control, most=2**10):
                raise StateError("the processes that compute contributions could not be started")
        except (OSError, ValueError) as error:
            self.close()
            raise StateError(f"the processes that compute contributions could not be started: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def fork(self) -> ComputingProcess:
        """A new process. Raises OSError where the machine has none left, or the template is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                self._control.settimeout(_CONTROL_SECONDS)
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                number_bytes = bytearray()
                while len(number_bytes) < _NUMBER.size:
                    if not (part := self._control.recv(_NUMBER.size - len(number_bytes))):
                        raise ConnectionError("the template ended")
                    number_bytes += part
                (number,) = _NUMBER.unpack(number_bytes)
                if number == NO_PROCESS:
                    raise BlockingIOError("this machine has no process left")
                self._living.add(number)
        except BaseException:
            ours.close()
            raise
        return ComputingProcess(self, number, ours)

    def end(self, number: int) -> None:
        """Kills a process. Idempotent; does nothing where the template is gone, and all of its processes with it."""
        with self._lock, contextlib.suppress(OSError):
            if number in self._living:
                self._living.remove(number)
                self._control.settimeout(_CONTROL_SECONDS)
                self._control.sendall(b"e" + _NUMBER.pack(number))

    def close(self) -> None:
        """Ends all. Idempotent."""
        self._control.close()
        if (process := getattr(self, "_process", None)) is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_CONTROL_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()


class TaskProcesses:
    """The processes of one task, for one device: ``reserved`` and then ``fork``. For one thread at a time."""

    def __init__(self, lend: Callable[[], contextlib.AbstractContextManager[Template]]) -> None:
        self._lend = lend
        self._template: Template | None = None

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Starts the task's template where there is none, and keeps it within. Before data are read: it takes a moment.

        Raises:
          StateError: it could not be started.
        """
        with self._lend() as self._template:
            yield

    def fork(self) -> ComputingProcess:
        """A new process. Raises OSError as ``Template.fork``."""
        if self._template is None:
            raise StateError("no template is reserved for the processes of this task")
        return self._template.fork()


class ComputingProcesses:
    """The templates of a host; thread-safe. ``close`` ends all processes; a later call starts them again."""

    def __init__(self) -> None:
        #: Held while a template starts. Nobody who has finished waits for that.
        self._starting, self._lock = threading.Lock(), threading.Lock()
        self._templates: OrderedDict[bytes, Template] = OrderedDict()
        self._users: Counter[Template] = Counter()

    def of(self, definition: common_pb2.TaskDefinition, catalogue: Sequence[bytes], *, seconds: float) -> TaskProcesses:
        """Those of a task, for one device."""
        data = definition.SerializeToString(deterministic=True)
        digest = hashlib.sha256(b"".join([data, *(hashlib.sha256(step).digest() for step in catalogue)])).digest()
        return TaskProcesses(lambda: self._lent(digest, lambda: Template(data, catalogue, seconds=seconds)))

    def close(self) -> None:
        """Ends all processes."""
        with self._starting:
            with self._lock:
                templates = list(self._templates.values())
                self._templates.clear()
            for template in templates:
                template.close()

    @contextlib.contextmanager
    def _lent(self, digest: bytes, start: Callable[[], Template]) -> Iterator[Template]:
        """A template, which nobody ends within: other tasks may need theirs meanwhile."""
        with self._starting:
            with self._lock:
                template = self._templates.pop(digest, None)
            if template is not None and template.ended:
                template.close()
                template = None
            if template is None:
                template = start()
            with self._lock:
                self._templates[digest] = template
                self._users[template] += 1
                idle = [key for key, oldest in self._templates.items() if not self._users[oldest]]
                surplus = [self._templates.pop(key) for key in idle[: max(len(self._templates) - _MOST_TEMPLATES, 0)]]
            for oldest in surplus:
                oldest.close()
        try:
            yield template
        finally:
            with self._lock:
                self._users -= Counter((template,))


def _start(control: socket.socket) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ConfigurationError("Expected sys.executable to name the interpreter, which computes contributions")
    program = f"{_PROGRAM}worker.main(int(sys.argv[1]))"
    return subprocess.Popen(
        [sys.executable, "-B", "-c", program, str(control.fileno()), *map(os.path.abspath, sys.path)],
        env=_ENVIRONMENT, cwd=os.path.sep, pass_fds=(control.fileno(),), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

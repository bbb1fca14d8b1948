"""Starts `odp` as a fork of a process that has imported it: importing takes most of a second of processor per program.

The program is a process of its own, with the arguments, environment, folder and streams of its start; whatever it does
from its first line on is what it does elsewhere, and SIGKILL kills it alone. ``operations`` tests the start by the
interpreter, and so does everything that is started as ``odp up``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import typer.main

# Every program, and what each would import at its start.
_IMPORTED = (
    "odp.cli.main",
    "server.program",
    "distributor.program",
    "distributor.helper_program",
    "trusted_aggregator.host.program",
    "device_runtime.host.program",
    "odp.algorithms.registry",
    "odp.trust.enclave.launcher",
    "odp.trust.enrolment.issuer_program",
)
_LARGEST_REQUEST = 1 << 20


class WarmProcess:
    """A program that the template started: the part of ``subprocess.Popen`` that the callers of ODP use."""

    def __init__(self, command: Sequence[str], *, pid: int, status: int, stdin: BinaryIO | None) -> None:
        self.args = command
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; raises TimeoutExpired."""
        status = self._await(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout):
                    status = os.read(self._status, 16)
                    os.close(self._status)
                    if not status:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(self.pid, signal.SIGKILL)
                        raise RuntimeError("the template of programs ended, and with it the word of how this one does")
                    self.returncode = int(status)
        return self.returncode


class Template:
    """The process that has imported everything."""

    def __init__(self, scripts: Sequence[str]) -> None:
        self._scripts, self._asking = frozenset(scripts), threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def popen(self, command: Sequence[str], **options: Any) -> WarmProcess | subprocess.Popen[bytes]:
        """As ``subprocess.Popen`` with the options of ``Child``, of a command that runs `odp`."""
        if not self._forks(command):
            return subprocess.Popen(command, **options)
        read, write = os.pipe()
        status, report = os.pipe()
        try:
            pid = self._start(command, [read, options["stdout"].fileno(), options["stderr"].fileno(), report])
        finally:
            os.close(read)
            os.close(report)
        return WarmProcess(command, pid=pid, status=status, stdin=os.fdopen(write, "wb"))

    def _forks(self, command: Sequence[str]) -> bool:
        # A program with a clock of its own takes it before it imports anything.
        return not any(word.startswith("--clock=") for word in command) and (
            tuple(command[:4]) == (sys.executable, "-P", "-m", "odp.cli.main")
            or (tuple(command[:2]) == (sys.executable, "-P") and command[2] in self._scripts)
        )

    def _start(self, command: Sequence[str], descriptors: Sequence[int]) -> int:
        request = {"arguments": list(command[2:]), "environment": dict(os.environ), "folder": str(Path.cwd())}
        with self._asking:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            answer = self._requests.recv(32)
        assert answer, "the template of programs ended; its last lines say why"
        return int(answer)

    def close(self) -> None:
        """Ends the template."""
        self._requests.close()
        self._process.wait(60)


@contextlib.contextmanager
def warm_programs(*scripts: str) -> Iterator[SimpleNamespace]:
    """Stands for the module ``subprocess`` where ``Child`` uses it; ``scripts`` run `odp` as well."""
    template = Template(scripts)
    try:
        yield SimpleNamespace(
            Popen=template.popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL,
            TimeoutExpired=subprocess.TimeoutExpired,
        )  # fmt: skip
    finally:
        template.close()


def _serve(requests: socket.socket) -> list[str] | None:
    """In the template: forks for each request. Returns in each program with its command, and at the end with None."""
    reports: dict[int, int] = {}
    ended, wake = os.pipe()
    for descriptor in (ended, wake):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == ended:
                    with contextlib.suppress(BlockingIOError):
                        os.read(ended, 4096)
                    _report(reports)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for descriptor in (ended, wake, *reports.values()):
                        os.close(descriptor)
                    requests.close()
                    return _become(json.loads(message), descriptors)
                reports[pid] = descriptors.pop()
                for descriptor in descriptors:
                    os.close(descriptor)
                requests.send(str(pid).encode())


def _report(reports: dict[int, int]) -> None:
    """Passes on the exit status of every program that ended, which is gone from the table of processes by then."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            report = reports.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(report, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(report)


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    os.setsid()
    for stream, descriptor in enumerate(descriptors):
        if stream < 3:
            os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    command: list[str] = request["arguments"]
    return command


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    odp_main = sys.modules["odp.cli.main"]
    build = functools.cache(typer.main.get_command)
    build(odp_main.app)
    typer.main.get_command = build
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose the other threads"
    # What the garbage collector does not touch stays one copy for all programs.
    gc.freeze()
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    if command is None:
        return
    if command[0] == "-m":
        sys.argv = ["odp", *command[2:]]
        odp_main.main()
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _main()

"""Programs that tests start are forked from one process, which has imported what they import.

A program of this platform takes half a second of processor to import its modules, and tests start hundreds of them. A
``Template`` is a process that imports them once, at the first program, and then forks each program in milliseconds.
``forking`` has ``subprocess.Popen`` do so, for these alone: what ``_PROGRAMS`` and ``_SCRIPTS`` list, run as ``Popen``
would run it, with variables that no import reads. All else starts as ever, and so does every program of a test with the
mark ``afresh``: of what a start itself does, and of the memory of a process.

What a program is given is what ``Popen`` would have given it: arguments and variables, also as others see them in
/proc, folder, streams and no other descriptor, process group, limits, umask, and the dispositions of signals of a new
interpreter. It is a child of the process that asked, so that its process id, its exit status and every signal are its
own: it begins as the grandchild of the template, whose child ends at once, and the process that asked takes it over, as
the reaper of its descendants, before its first line runs. It then runs as ``python -m`` does, and its interpreter ends
as any other.

The template has one thread, which it checks at each fork, and has opened no connection and no database: gRPC, SQLite
and BLAS begin in the program. Sources of randomness of Python and NumPy draw their state anew. What all programs of one
pytest worker do share, where real ones differ, is the seed of hashes and what modules compute when imported; each
worker has its own.

A program that starts programs has a template of its own, forked before anything ran in it, which ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CRASH = str(Path(__file__).parent / "e2e" / "crash.py")
#: The command as a user has it; run by this interpreter, as one runs a script.
ODP_SCRIPT = str(Path(sys.executable).with_name("odp"))
#: Modules that are programs, and scripts.
_PROGRAMS = ("odp.cli.main", "odp.research.simulation.fleet.worker")
_SCRIPTS = (_CRASH, ODP_SCRIPT)
#: Begins the argument that names a clock, which a program has before it imports anything.
_CLOCK = "--clock="
#: Commands of `odp` that start programs themselves.
_STARTERS = ("up", "demo", "fleet")
#: What programs import, mostly when they need it: their modules import the rest.
_IMPORTED = (
    "odp.cli.services", "odp.cli.device", "odp.cli.issuer", "odp.cli.task", "server.program", "distributor.program",
    "distributor.helper_program", "trusted_aggregator.host.program", "trusted_aggregator.modes.hosting",
    "odp.trust.enrolment.issuer_program", "odp.trust.enclave.host", "odp.operations.local.supervising",
    "odp.trust.enclave.launcher", "odp.trust.enclave.guest_socket", "device_runtime.host.program",
    "cryptography.hazmat.backends.openssl.backend", "grpc._channel", "numpy.random", "pydantic",
)  # fmt: skip
#: Variables that imports read, or the interpreter does at its start, by what they begin with; but for three.
_READ_EARLY = (
    "PYTHON", "LD_", "LANG", "LC_", "TZ", "OPENBLAS_", "OMP_", "MKL_", "NUMBA_", "MALLOC_", "GRPC_",
    "_TYPER_FORCE", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS",
)  # fmt: skip
_READ_LATE = ("PYTHON_KEYRING_BACKEND", "GRPC_VERBOSITY", "PYTHONIOENCODING")
#: As `odp` sets it before it imports anything.
_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1"}
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
#: Of prctl(2).
_REAP_DESCENDANTS, _SET_MEMORY, _MEMORY_MAP = 36, 35, 14
_NUMBER = 8
#: What others see, for as long as this process runs.
_SHOWN: list[ctypes.Array[ctypes.c_char]] = []

_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_execute_child)


def _is_ignored(number: int) -> bool:
    """Whether this process ignores a signal, and a program that it starts: libraries change it beside Python."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


class Template:
    """The process that forks programs, as another one knows it, whose children these become."""

    def __init__(
        self, control: socket.socket, environment: Mapping[str, str], process: int, *, clock: Path | None = None
    ) -> None:
        self._control = control
        self.process = process
        self._clocks = [] if clock is None else [f"{_CLOCK}{clock}"]
        self._environment = _fixed(environment)
        self._lock = threading.Lock()
        #: False: programs start as ever.
        self.forks = True

    @classmethod
    @contextlib.contextmanager
    def started(cls, clock: Path | None = None) -> Iterator[Template]:
        """Its process, which imports nothing before its first program, and ends with this one.

        With ``clock`` it forks the programs that have this clock (``e2e.shifted_clock``), and no other.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(theirs.fileno()), *([] if clock is None else [str(clock)])],
                    env={**_DEFAULTS, **os.environ}, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                )  # fmt: skip
            yield cls(ours, os.environ, process.pid, clock=clock)
        process.wait()

    @contextlib.contextmanager
    def forking(self) -> Iterator[None]:
        """``subprocess.Popen`` of this process has programs forked."""

        def execute_child(process: subprocess.Popen[Any], *arguments: Any) -> None:
            call = _parameters.bind(process, *arguments).arguments
            if not (self.forks and self._can_fork(call)):
                _execute_child(process, *arguments)
                return
            process.pid = self._fork(call)
            process._child_created = True  # type: ignore[attr-defined]
            process._close_pipe_fds(  # type: ignore[attr-defined]
                *(call[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
            )

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]

    def _can_fork(self, call: Mapping[str, Any]) -> bool:
        if not isinstance(call["args"], (list, tuple)):
            return False
        command, environment = _program(call)
        if command[:2] != [sys.executable, "-P"]:
            return False
        if not ((command[2:3] == ["-m"] and command[3] in _PROGRAMS) or {*command[2:3]} & {*_SCRIPTS}):
            return False
        if [argument for argument in command if argument.startswith(_CLOCK)] != self._clocks:
            return False
        usual: dict[str, object] = {
            "executable": None,
            "preexec_fn": None,
            "close_fds": True,
            "pass_fds": (),
            "shell": False,
        }
        usual |= {"restore_signals": True, "gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1}
        if any(call[name] != value for name, value in usual.items()):
            return False
        return _fixed(environment) == self._environment

    def _fork(self, call: Mapping[str, Any]) -> int:
        command, environment = _program(call)
        streams = [call[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = pickle.dumps({
            "command": command,
            "environment": environment,
            "folder": str(Path(call["cwd"] or ".").absolute()),
            "session": call["start_new_session"],
            "interrupted": not _is_ignored(signal.SIGINT),
            "limits": [resource.getrlimit(limit) for limit in _LIMITS],
            "umask": _umask(),
        })  # fmt: skip
        with self._lock, _reaping_descendants():
            descriptors = [own if stream == -1 else stream for own, stream in enumerate(streams)]
            socket.send_fds(self._control, [len(request).to_bytes(_NUMBER, "big")], descriptors)
            self._control.sendall(request)
            answer = self._control.recv(_NUMBER)
        if not answer:
            raise OSError("the template of programs ended")
        return int.from_bytes(answer, "big")


def _program(call: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of the program, also where ``env`` is to start it."""
    command = [os.fsdecode(argument) for argument in call["args"]]
    environment = dict(os.environ if call["env"] is None else call["env"])
    if command[:1] == ["env"]:
        del command[0]
        while "=" in command[0]:
            name, _, environment[name] = command.pop(0).partition("=")
    return command, environment


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have to be the template's."""
    variables = _DEFAULTS | {**environment}
    return {name: variables[name] for name in variables if name.startswith(_READ_EARLY) and name not in _READ_LATE}


def _umask() -> int:
    """Of this process, without setting it meanwhile, for all its threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


@contextlib.contextmanager
def _reaping_descendants() -> Iterator[None]:
    """What loses its parent among the descendants of this process becomes its child."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_REAP_DESCENDANTS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "a process cannot take over its descendants")
    try:
        yield
    finally:
        libc.prctl(_REAP_DESCENDANTS, 0, 0, 0, 0)


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks programs until the other end closes: None. In each program, it returns what that was given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, streams, _, _ = socket.recv_fds(control, _NUMBER, 3)
        if not head:
            return None
        length, request = int.from_bytes(head, "big"), b""
        while len(request) < length:
            request += control.recv(length - len(request))
        _import_all()
        if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
            raise RuntimeError(f"a program would be forked from {threads} threads")
        reparented, release = os.pipe()
        number, tell = os.pipe()
        if not (between := os.fork()):
            if program := os.fork():
                os.write(tell, program.to_bytes(_NUMBER, "big"))
                os._exit(0)
            os.close(release)
            os.read(reparented, 1)
            given: dict[str, Any] = pickle.loads(request)
            _become(given, streams)
            return given
        os.waitpid(between, 0)
        answer = os.read(number, _NUMBER)
        for descriptor in (reparented, release, number, tell, *streams):
            os.close(descriptor)
        control.sendall(answer)


@functools.cache
def _import_all() -> None:
    import odp.cli

    commands = [f"odp.cli.{module.name}" for module in pkgutil.iter_modules(odp.cli.__path__)]
    for name in (*_IMPORTED, *commands):
        # Python says something about a program that is a module already; without an extra, each program says so itself.
        with contextlib.suppress(ImportError):
            if name not in _PROGRAMS:
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _become(given: dict[str, Any], streams: list[int]) -> None:
    """This process has what ``subprocess.Popen`` and a new interpreter would have given it."""
    if given["session"]:
        os.setsid()
    for own, stream in enumerate(streams):
        os.dup2(stream, own, inheritable=True)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    signal.signal(signal.SIGINT, signal.default_int_handler if given["interrupted"] else signal.SIG_IGN)
    os.umask(given["umask"])
    os.chdir(given["folder"])
    for limit, values in zip(_LIMITS, given["limits"], strict=True):
        if resource.getrlimit(limit) != values:
            resource.setrlimit(limit, values)
    os.environ.clear()
    os.environ.update(given["environment"])
    _show(given["command"], [f"{name}={value}" for name, value in given["environment"].items()])
    for own, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        unbuffered = isinstance(old.buffer, io.RawIOBase)
        encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
        binary = os.fdopen(own, f"{old.mode}b", 0 if unbuffered else -1, closefd=False)
        getattr(binary, "raw", binary).name = old.name  # type: ignore[misc]
        opened = io.TextIOWrapper(
            binary, encoding=encoding or old.encoding, errors=(name != "stderr" and errors) or old.errors,
            newline="\n",
            line_buffering=not unbuffered and (name == "stderr" or os.isatty(own)), write_through=old.write_through,
        )  # fmt: skip
        opened.mode = old.mode  # type: ignore[misc]
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    random.seed()
    sys.modules["numpy.random"].seed()
    tempfile.tempdir = None


def _show(command: list[str], variables: list[str]) -> None:
    """Others see these as the arguments and variables of this process."""
    # The fields are numbered from 1, and the second one may have spaces.
    fields = ["", "", "", *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    ends = []
    for texts in (command, variables):
        _SHOWN.append(ctypes.create_string_buffer(b"".join(os.fsencode(text) + b"\0" for text in texts)))
        start = ctypes.addressof(_SHOWN[-1])
        ends += [start, start + len(_SHOWN[-1]) - 1]
    code, data, stack = [int(fields[26]), int(fields[27])], [int(fields[45]), int(fields[46])], int(fields[28])
    no_file = 0xFFFFFFFF << 32  # above the length of no auxiliary vector
    memory = (ctypes.c_uint64 * 13)(*code, *data, int(fields[47]), libc.sbrk(0), stack, *ends, 0, no_file)
    # A kernel that cannot restore processes refuses: then others see those of the template.
    libc.prctl(_SET_MEMORY, _MEMORY_MAP, ctypes.byref(memory), ctypes.sizeof(memory), 0)


def _own_template(control: socket.socket) -> dict[str, Any] | None:
    """``_serve`` in a process of its own, which a program has that starts programs."""
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for own in range(3):
            os.dup2(nothing.fileno(), own)
    return _serve(control)


def _run(given: dict[str, Any]) -> None:
    sys.orig_argv, command = given["command"], given["command"][2:]
    with contextlib.ExitStack() as stack:
        if set(_STARTERS).intersection(command[1:3]):
            ours, theirs = socket.socketpair()
            if not (process := os.fork()):
                ours.close()
                if (below := _own_template(theirs)) is not None:
                    _run(below)
                return
            theirs.close()
            stack.enter_context(Template(ours, given["environment"], process).forking())
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")


def main() -> None:
    for clock in sys.argv[2:]:
        sys.path.append(str(Path(_CRASH).parent))
        import shifted_clock  # type: ignore[import-not-found]

        shifted_clock.install(Path(clock))
        sys.path.pop()
    given = _serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        _run(given)


if __name__ == "__main__":
    main()

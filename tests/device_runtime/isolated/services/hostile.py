"""A service that tries to get out, past Python too: does what it is asked to attempt and says what came of it."""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from odp.isolated import (
    Accepted,
    AppRequest,
    Example,
    Executed,
    Execution,
    Happening,
    IsolatedService,
    Kept,
    Noted,
    Rendered,
    Rendering,
    Stores,
    Training,
)

# x86-64 numbers of calls that Python has no function for, or may not use.
CALLS = {
    "open": 2, "openat": 257, "openat2": 437, "creat": 85, "memfd_create": 319, "io_uring_setup": 425, "ptrace": 101,
    "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_open": 434, "pidfd_getfd": 438, "socket": 41,
    "socketpair": 53, "connect": 42, "bind": 49, "recvmsg": 47, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
    "unshare": 272, "setns": 308, "mount": 165, "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "keyctl": 250, "kill": 62, "tkill": 200, "rt_sigqueueinfo": 129, "setuid": 105, "shmget": 29, "unlink": 87,
    "rename": 82, "stat": 4, "readlink": 89, "mknod": 133, "link": 86, "symlink": 88, "prctl": 157, "capset": 126,
    # What two processes could tell each other by.
    "mincore": 27, "madvise": 28, "process_madvise": 440, "mremap": 25, "mlock": 149, "munlock": 150, "mlockall": 151,
    "getrusage": 98, "times": 100, "sysinfo": 99, "getcpu": 309, "uname": 63, "statfs": 137, "fstat": 5, "statx": 332,
    "pipe2": 293, "eventfd2": 290, "epoll_create1": 291, "dup": 32, "fcntl": 72, "ioctl": 16, "lseek": 8, "poll": 7,
    "getsockopt": 55, "setsockopt": 54, "getsockname": 51, "getpeername": 52, "sendmsg": 46, "shutdown": 48,
    "getpid": 39, "gettid": 186, "getppid": 110, "getuid": 102, "tgkill": 234, "set_tid_address": 218,
    "set_robust_list": 273, "get_robust_list": 274, "rseq": 334, "membarrier": 324, "kcmp": 312, "futex_waitv": 449,
    "sched_getaffinity": 204, "sched_setaffinity": 203, "sched_getparam": 143, "sched_getscheduler": 145,
    "sched_yield": 24, "get_mempolicy": 239, "prlimit64": 302, "getpriority": 140, "mq_open": 240, "semget": 64,
    "msgget": 68, "add_key": 248, "timer_create": 222, "rt_sigaction": 13, "rt_sigtimedwait": 128, "sigaltstack": 131,
}  # fmt: skip
# Calls that are allowed for other arguments: of each, what nobody who computes needs.
MISUSED = {
    "map a file": (9, 0, 4096, 1, 2, 0, 0),
    "shared memory": (9, 0, 4096, 3, 0x21, -1, 0),
    "memory that is given up when it is short": (9, 0, 4096, 3, 0x28, -1, 0),
    "huge pages": (9, 0, 2**21, 3, 0x40022, -1, 0),
    "locked memory": (9, 0, 4096, 3, 0x2022, -1, 0),
    "wake by a shared word": (202, 0, 1, 1, 0, 0, 0),
    "wait at a shared word": (202, 0, 0, 0, 0, 0, 0),
    "lock that writes a thread's number": (202, 0, 6 | 128, 0, 0, 0, 0),
    "processor time of process 1": (228, ~1 << 3 | 2, 0, 0, 0, 0, 0),
    "whether process 1 is there": (229, ~1 << 3 | 2, 0, 0, 0, 0, 0),
    "sleep by the time of a process": (230, ~1 << 3 | 2, 0, 0, 0, 0, 0),
    "drain the pool of randomness": (318, 0, 0, 2, 0, 0, 0),
    "send to an address": (44, 3, 0, 0, 0, 1, 0),
}


def outcome(attempt: Callable[[], object]) -> str:
    """``"done"``, or the name of the error number, or the kind of another error."""
    try:
        attempt()
    except socket.gaierror:
        return "no name service"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except BaseException as error:
        return type(error).__name__
    return "done"


def _read(path: str) -> Callable[[], object]:
    return lambda: Path(path).read_bytes()


at_import = {"read": outcome(_read("/etc/passwd")), "socket": outcome(socket.socket), "fork": outcome(os.fork)}


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def syscalls() -> dict[str, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    found = {}
    for name, call in {**{name: (number, *[0] * 6) for name, number in CALLS.items()}, **MISUSED}.items():
        result = libc.syscall(*[ctypes.c_long(value) for value in call])
        found[name] = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    return found


def descriptors() -> list[int]:
    """Those that are open."""
    return [number for number in range(2**12) if outcome(lambda number=number: os.write(number, b"")) == "done"]  # type: ignore[misc]


def own_number() -> list[int]:
    """The number that the C library keeps of this thread (glibc, x86-64), where the kernel does not say it."""
    if sys.implementation._multiarch != "x86_64-linux-gnu":
        return []
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    return [int.from_bytes(ctypes.string_at(libc.pthread_self() + 720, 4), "little")]


def eat(pieces: int) -> str:
    kept = []

    def more() -> None:
        for _ in range(pieces):
            kept.append(np.ones(2**20))  # 8 MiB, written to

    came = outcome(more)
    kept.clear()
    return came


def everything(stores: Stores, work: Mapping[str, Any]) -> dict[str, Any]:
    name, path = work["attempt"], work.get("path", "")
    attempts: dict[str, Callable[[], Any]] = {
        "tcp": lambda: outcome(lambda: socket.create_connection(("127.0.0.1", int(work["port"])), timeout=1)),
        "tcp elsewhere": lambda: outcome(lambda: socket.create_connection(("192.0.2.1", 80), timeout=1)),
        "udp": lambda: outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))),
        "unix": lambda: outcome(lambda: socket.socket(socket.AF_UNIX).connect(path)),
        "abstract": lambda: outcome(lambda: socket.socket(socket.AF_UNIX).connect("\0odp")),
        "netlink": lambda: outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        "dns": lambda: outcome(lambda: socket.getaddrinfo("example.org", 80)),
        "listen": lambda: outcome(lambda: socket.create_server(("127.0.0.1", 0))),
        "read": lambda: outcome(_read(path)),
        "list": lambda: outcome(lambda: list(Path(path).iterdir())),
        "write": lambda: outcome(lambda: Path(path).write_bytes(b"x")),
        "fork": lambda: outcome(fork),
        "exec": lambda: outcome(lambda: os.execv("/bin/true", ["true"])),
        "program": lambda: outcome(lambda: subprocess.run(["/bin/true"], check=False)),
        "spawn": lambda: outcome(lambda: os.posix_spawn("/bin/true", ["true"], {})),
        "signal": lambda: outcome(lambda: os.kill(int(work["pid"]), signal.SIGKILL)),
        "signal by descriptor": lambda: outcome(lambda: fcntl.fcntl(channel(), fcntl.F_SETOWN, os.getpid())),
        "signal parent": lambda: outcome(lambda: os.kill(os.getppid(), signal.SIGKILL)),
        "raise limit": lambda: outcome(lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))),
        "syscalls": syscalls,
        "environment": environment,
        "places": lambda: places(list(work["wanted"])),
        "at import": lambda: at_import,
        "eat": lambda: eat(10_000),
        "eat at once": lambda: outcome(lambda: np.ones(2**33)),
        "spin": lambda: spin(),
        "hang": lambda: time.sleep(3600),
        "hang uninterruptible": hang,
        "end": lambda: os._exit(3),
        "crash": lambda: ctypes.string_at(0),
        "thread": lambda: outcome(threading.Thread(target=spin, daemon=True).start),
        "thread past Python": lambda: outcome(thread_past_python),
        "frames": frames,
        "exit": lambda: sys.exit(0),
        "remember": lambda: remember(str(work["what"])),
        "identity": lambda: [os.getpid(), os.getppid(), *own_number()],
        "descriptors": descriptors,
        "huge": lambda: "x" * int(work["bytes"]),
        "nest": lambda: nested(int(work["depth"])),
        "raise": lambda: 1 // 0,
        "raw": lambda: raw(bytes.fromhex(str(work["bytes"]))),
    }
    return {"came": attempts[name]()}


def places(wanted: list[str]) -> list[str]:
    """What this process says of these folders: by Python, by C, and by the start of the program."""
    texts = [repr(value) for name, value in vars(sys).items() if name not in ("modules", "meta_path")]
    for module in list(sys.modules.values()):
        texts += [repr(value) for value in vars(module).values() if isinstance(value, (str, Path, list, tuple))]
        texts += [repr(module), repr(getattr(module, "__spec__", None))]
        texts += [str(getattr(getattr(module, "__loader__", None), "path", ""))]
    codes = [found.__code__ for found in gc.get_objects() if isinstance(found, types.FunctionType)]
    frame = sys._getframe()
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    texts += [code.co_filename for code in codes]
    libc = ctypes.CDLL(None)
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    start = libc.getauxval(31)  # the program's name, on the stack behind arguments and environment
    texts += [ctypes.string_at(start - 200, 208).decode("latin-1"), ctypes.string_at(start).decode("latin-1")]
    for name in ("Py_GetProgramFullPath", "Py_GetPrefix", "Py_GetPath", "Py_GetExecPrefix"):
        function = getattr(ctypes.pythonapi, name, None)
        if function is not None:
            function.restype = ctypes.c_wchar_p
            texts.append(str(function()))
    return sorted({text[:200] for text in texts if any(place in text for place in wanted)})[:50]


def environment() -> list[str]:
    """Names, past Python too."""
    raw_names = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    first = raw_names[0] if raw_names else None
    return [*os.environ, *([] if first is None else [first.decode()])]


def spin() -> None:
    while True:
        pass


def hang() -> None:
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            outcome(lambda number=number: signal.signal(number, signal.SIG_IGN))  # type: ignore[misc]
    spin()


def thread_past_python() -> None:
    """A thread as the kernel has it, of as little memory as there is: thousands of them would cost the kernel's."""
    flags = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000
    libc = ctypes.CDLL(None, use_errno=True)
    # Without a stack of its own it would crash, so this one may only be tried where it is refused.
    if libc.syscall(ctypes.c_long(56), ctypes.c_long(flags), None, None, None, None) < 0:
        raise OSError(ctypes.get_errno(), "clone")


def remember(what: str) -> list[str]:
    """Leaves something wherever it can; gives back what was left there before."""
    places: list[Any] = [builtins, sys, np, IsolatedService, socket.socket, json]
    found = [str(place.__dict__["left"]) for place in places if "left" in place.__dict__]
    for place in places:
        place.left = what
    return found


def frames() -> list[int]:
    """Whole numbers among the local values of everybody who called."""
    frame, found = sys._getframe(), []
    while frame is not None:
        found += [value for name, value in frame.f_locals.items() if name == "number" and isinstance(value, int)]
        frame = frame.f_back  # type: ignore[assignment]
    return found


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def channel() -> int:
    """The descriptor of its socket to the runtime."""
    return next(number for number in descriptors() if number > 2)


def raw(data: bytes) -> None:
    """Writes bytes of its own to the runtime, and waits to be ended."""
    os.write(channel(), data)
    time.sleep(3600)


def frame(message: object) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">I", len(data)) + data


class Hostile(IsolatedService):
    """Every handler sends what it is told to, or attempts what it is asked to."""

    def on_request(self, request: AppRequest, stores: Stores) -> Accepted:
        return Accepted(_do(stores, request.asked))

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        return Executed(_do(stores, execution.work))

    def on_render(self, rendering: Rendering, stores: Stores) -> Rendered:
        return Rendered(json.dumps(_do(stores, rendering.result)))

    def on_event(self, happening: Happening, stores: Stores) -> Noted:
        _do(stores, happening.data)
        return Noted()

    def on_download(self, download: Any, stores: Stores) -> Kept:
        _do(stores, json.loads(download.entries.get("do", b"{}")))
        return Kept(["made up"])

    def on_training_examples(self, training: Training, stores: Stores) -> list[Example]:
        work = json.loads(training.task)
        return [Example(_do(stores, work))]


def _do(stores: Stores, work: Mapping[str, Any]) -> dict[str, Any]:
    return everything(stores, work) if "attempt" in work else {}

"""Entry module: answers each line of JSON ``{"attempt": name, ..}`` with what came of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes

# x86-64 numbers of calls that Python has no function for.
CALLS = {
    "open": 2, "openat": 257, "openat2": 437, "creat": 85, "memfd_create": 319, "io_uring_setup": 425, "ptrace": 101,
    "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "socket": 41, "socketpair": 53,
    "connect": 42, "bind": 49, "recvmsg": 47, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "unshare": 272,
    "setns": 308, "mount": 165, "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250,
    "seccomp": 317, "kill": 62, "tkill": 200, "rt_sigqueueinfo": 129, "setuid": 105, "shmget": 29, "truncate": 76,
    "unlink": 87, "rename": 82, "stat": 4, "readlink": 89, "chdir": 80, "mknod": 133, "link": 86, "symlink": 88,
    "mincore": 27, "getrusage": 98, "sysinfo": 99, "times": 100, "fstat": 5, "pipe2": 293, "getsockopt": 55,
    "sendmsg": 46, "mlock": 149, "get_mempolicy": 239, "futex_waitv": 449, "membarrier": 324, "uname": 63,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "inotify_init": 253, "personality": 135, "quotactl": 179,
}  # fmt: skip

#: Where everybody may write.
WRITTEN = Path("/tmp/odp-hostile-enclave-wrote-this")

early: dict[str, str] = {}
held: dict[str, Any] = {}


def outcome(attempt: Any) -> str:
    """``"done"``, or the name of the error number, or the kind of another error."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except BaseException as error:
        return type(error).__name__
    return "done"


def warm_up() -> None:
    if "__file__" in globals():  # the builder of the image, from which nobody is kept away
        return
    early["read"] = outcome(lambda: Path("/etc/hostname").read_bytes())
    early["write"] = outcome(lambda: WRITTEN.write_bytes(b"x"))
    early["connect"] = outcome(lambda: socket.create_connection(("127.0.0.1", 9), timeout=1))
    early["interfaces"] = ",".join(name for _, name in socket.if_nameindex())
    early["environment"] = ",".join(sorted(os.environ))
    early["core limit"] = str(resource.getrlimit(resource.RLIMIT_CORE))
    early["program"] = outcome(lambda: subprocess.run(["/bin/true"], check=False))
    for name in ("server", "pytest", "grpc", "sqlalchemy", "device_runtime", "tkinter", "hostile_enclave.unmeasured"):
        early[f"import {name}"] = outcome(lambda name=name: importlib.import_module(name))
    held["libc"] = ctypes.CDLL(None, use_errno=True)
    held["matrix"] = np.ones((200, 200))
    (held["matrix"] @ held["matrix"]).sum()


def syscall(number: int, *arguments: object) -> str:
    """Name of the error number of a call made past Python, or ``"done"``."""
    result = held["libc"].syscall(ctypes.c_long(number), *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def compute_in_threads() -> float:
    sums: list[float] = []
    threads = [
        threading.Thread(target=lambda: sums.append(float((held["matrix"] @ held["matrix"]).sum()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sums) / len(sums)


def attempt(guest: Any, asked: dict[str, Any]) -> object:
    name = asked["attempt"]
    attempts: dict[str, Any] = {
        "open file": lambda: outcome(lambda: Path("/etc/hostname").read_bytes()),
        "open own image": lambda: outcome(lambda: Path("/proc/self/fd/5").read_bytes()),
        "open device": lambda: outcome(lambda: os.open("/dev/urandom", os.O_RDONLY)),
        "open other memory": lambda: outcome(lambda: os.open("/proc/1/mem", os.O_RDONLY)),
        "open own memory": lambda: outcome(lambda: os.open("/proc/self/mem", os.O_RDWR)),
        "list folder": lambda: outcome(lambda: list(Path("/").iterdir())),
        "write file": lambda: outcome(lambda: WRITTEN.write_bytes(b"x")),
        "tcp": lambda: outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
        "udp": lambda: outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "unix": lambda: outcome(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)),
        "fork": lambda: outcome(fork),
        "exec": lambda: outcome(lambda: os.execv("/bin/true", ["true"])),
        "program": lambda: outcome(lambda: subprocess.run(["/bin/true"], check=False)),
        "signal": lambda: outcome(lambda: os.kill(asked["pid"], signal.SIGTERM)),
        "dumpable": lambda: outcome_of_prctl(4, 1),
        "raise limit": lambda: outcome(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1))),
        "import": lambda: outcome(lambda: importlib.import_module("mailbox")),
        "syscall": lambda: {call: syscall(number, *[ctypes.c_long(0)] * 6) for call, number in CALLS.items()},
        "clone": lambda: {name: clone(flags) for name, flags in CLONES.items()},
        "early": lambda: early,
        "random": lambda: len(os.urandom(64)),
        "hash": lambda: hashes.Hash(hashes.SHA256()).finalize().hex(),
        "compute": compute_in_threads,
        "ready again": lambda: outcome(lambda: guest.ready(held=["seccomp"], refused=[])),
        "say it was measured": lambda: outcome(lambda: guest._call("launched", image_digest="sha384:" + "0" * 96)),
        "image": lambda: guest.image_digest,
        "configure": lambda: outcome(lambda: guest._call("extend_register", register="configuration", event="x")),
        "unknown call": lambda: outcome(lambda: guest._call("shutdown")),
        "bad counter": lambda: outcome(lambda: guest._call("counter_advance", name="x", expected="0", to=None)),
        "extend": lambda: outcome(lambda: guest.extend(asked["event"])),
        "bind": lambda: guest.bind_keys(hpke_public=b"h" * 32, signing_public=b"s" * 32),
        "evidence": lambda: evidence(guest, bytes.fromhex(asked["nonce"])),
        "policy": lambda: guest.policy.decode(),
        "sealing key": lambda: guest.sealing_key().hex(),
        "counter": lambda: guest.counter(asked["name"]).value,
        "advance": lambda: outcome(
            lambda: guest.counter(asked["name"]).advance(expected=asked["expected"], to=asked["to"])
        ),
        "abort": os.abort,
        "end": lambda: os._exit(3),
        "raise": lambda: 1 // 0,
    }
    return attempts[name]()


CLONES = {"process": 17, "process that shares memory": 0x100 | 17, "thread in a new network": 0x40010F00}


def clone(flags: int) -> str:
    result = held["libc"].syscall(ctypes.c_long(56), ctypes.c_long(flags), *[ctypes.c_long(0)] * 4)
    if result == 0:
        os._exit(0)
    return "done" if result > 0 else errno.errorcode[ctypes.get_errno()]


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def outcome_of_prctl(option: int, value: int) -> str:
    result = held["libc"].prctl(option, value, 0, 0, 0)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def evidence(guest: Any, nonce: bytes) -> dict[str, str]:
    found = guest.evidence(nonce)
    return {"token": found.token, "policy": found.policy.hex(), "event_log": found.event_log.decode()}


def run(channel: socket.socket, guest: Any) -> None:
    with channel.makefile("rwb") as stream, contextlib.suppress(ConnectionError):
        for line in stream:
            stream.write(json.dumps(attempt(guest, json.loads(line))).encode() + b"\n")
            stream.flush()

"""Seccomp filters over all threads of a process, and the two allow-lists of system calls that they are made of.

What a list does not name fails with EPERM. ``clone3``, whose arguments a filter cannot see, answers ENOSYS, and the C
library then uses ``clone``. A call of another architecture ends the process.

``ISOLATED`` is for one thread that computes and talks over one connected socket. Two such processes of one machine must
not find out anything of each other, so it has no call that reads what the kernel counts or keeps for several processes:

- which pages of a file are in memory, and how many page faults there were (``mincore``, ``madvise``, ``getrusage``);
- how much memory is free (``sysinfo``), and locked, huge or shared memory (``mlock``, flags of ``mmap``);
- numbers that the kernel gives out in turn: of processes, inodes and sockets (``getpid``, ``fstat``, ``getsockopt``);
- the processor time of other processes, by clocks that carry their number (``clock_gettime``);
- words of memory that two processes name alike, at which one wakes the other (``futex`` without its private flag);
- a name that everybody on the machine can read (``prctl``);
- more of a file than is mapped already (``mremap``).

``COMPUTING`` adds threads for enclaves. Its processes talk to their host anyway, and share no machine with a process
that must not hear of them: the list is short because less can be misused.

Source: seccomp(2); classic BPF, linux/filter.h; syscalls(2), and the manual page of each call;
numbers of linux/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: name -> (x86-64, aarch64); None: the architecture has no such call.
NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "poll": (7, None), "ppoll": (271, 73),
    "recvfrom": (45, 207), "sendto": (44, 206), "shutdown": (48, 210), "ioctl": (16, 29),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98), "getrandom": (318, 278),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "clone": (56, 220), "clone3": (435, 435), "set_robust_list": (273, 99), "rseq": (334, 293), "gettid": (186, 178),
    "getpid": (39, 172), "tgkill": (234, 131), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "prctl": (157, 167),
}  # fmt: skip


@dataclass(frozen=True)
class OneOf:
    """The argument ``index``, as 32 bits, has one of these values."""

    index: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Zero:
    """The argument ``index`` is zero, in all of its 64 bits."""

    index: int


@dataclass(frozen=True)
class Flags:
    """The argument ``index`` has all ``needed`` bits, and none but ``needed`` and ``optional`` in its lower 32 bits."""

    index: int
    needed: int
    optional: int = 0


@dataclass(frozen=True)
class OwnProcess:
    """The argument ``index`` is the process id of the filter's own process."""

    index: int


Condition = OneOf | Zero | Flags | OwnProcess


@dataclass(frozen=True)
class CallList:
    """A list of allowed calls.

    Attributes:
      always: with any arguments.
      conditions: where the condition holds.
    """

    always: tuple[str, ...]
    conditions: Mapping[str, Condition]


_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_STACK = 0x02, 0x10, 0x20, 0x4000, 0x20000
# New memory of its own: no file, nothing shared, nothing locked, no page from a pool of huge ones.
_NEW_MEMORY = Flags(3, _MAP_PRIVATE | _MAP_ANONYMOUS, _MAP_FIXED | _MAP_NORESERVE | _MAP_STACK)
# CLOCK_REALTIME to CLOCK_BOOTTIME and CLOCK_TAI. Of any other number, a part is that of a process or a descriptor.
_CLOCKS = (0, 1, 2, 3, 4, 5, 6, 7, 11)
_REALTIME, _MONOTONIC = 0, 1
# FUTEX_WAIT, WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, WAIT_BITSET, WAKE_BITSET: those of PI would write a thread's number.
_FUTEX_PRIVATE, _FUTEX_CLOCK_REALTIME, _FUTEX_WAIT, _FUTEX_WAIT_BITSET = 128, 256, 0, 9
_PRIVATE_FUTEX = (
    *(_FUTEX_PRIVATE | operation for operation in (0, 1, 3, 4, 5, 9, 10)),
    _FUTEX_PRIVATE | _FUTEX_CLOCK_REALTIME | _FUTEX_WAIT_BITSET,
)
# A thread is waited for at a word that the kernel itself wakes without the private flag.
_THREAD_ENDS = tuple(
    operation | clock
    for operation in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET)
    for clock in (0, _FUTEX_CLOCK_REALTIME)
)  # fmt: skip
_GRND_NONBLOCK, _GRND_INSECURE = 1, 4

_COMMON: Mapping[str, Condition] = {
    "mmap": _NEW_MEMORY,
    "sendto": Zero(4),  # to whom the socket is connected
    "getrandom": OneOf(2, (0, _GRND_NONBLOCK, _GRND_INSECURE)),
    "clock_gettime": OneOf(0, _CLOCKS),
    "clock_getres": OneOf(0, _CLOCKS),
    "clock_nanosleep": OneOf(0, (_REALTIME, _MONOTONIC)),
}
_ALWAYS = (
    "read", "write", "close", "recvfrom", "munmap", "mprotect", "brk", "nanosleep", "gettimeofday", "time",
    "rt_sigreturn", "restart_syscall", "exit", "exit_group",
)  # fmt: skip

#: One thread that computes, and one connected socket: a developer's code on a device.
ISOLATED = CallList(_ALWAYS, {**_COMMON, "futex": OneOf(1, _PRIVATE_FUTEX)})

# CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID as C libraries make threads.
_THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000
_THREAD_OPTIONS = 0x40000 | 0x80000 | 0x100000 | 0x200000 | 0x400000 | 0x1000000
_MADV_DONTNEED, _MADV_FREE, _MADV_HUGEPAGE = 4, 8, 14
_FIONBIO = 0x5421
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41

#: Threads of one process that compute and talk over connected sockets: an enclave.
COMPUTING = CallList(
    (
        *_ALWAYS, "poll", "ppoll", "shutdown", "mremap", "rt_sigaction", "rt_sigprocmask", "sigaltstack",
        "set_robust_list", "rseq", "gettid", "getpid", "sched_yield",
    ),
    {
        **_COMMON,
        "futex": OneOf(1, (*_PRIVATE_FUTEX, *_THREAD_ENDS)),
        "clone": Flags(0, _THREAD, _THREAD_OPTIONS),
        "tgkill": OwnProcess(0),  # abort
        "sched_getaffinity": Zero(0),
        "madvise": OneOf(2, (_MADV_DONTNEED, _MADV_FREE, _MADV_HUGEPAGE)),
        "ioctl": OneOf(1, (_FIONBIO,)),
        "prctl": OneOf(0, (_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA)),
    },
)  # fmt: skip


# (place of the architecture in NUMBERS, number that the kernel gives it, number of the call seccomp)
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

_SET_MODE_FILTER, _ALL_THREADS = 1, 1

# Classic BPF: load a word at a place, AND it, jump where equal, jump where a bit is set, return.
_LOAD, _AND, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_WORD = 2**32 - 1

_Rule = tuple[int, int, int, int]


class Unsupported(OSError):
    """The kernel, or this module, has no filter for this machine."""


def restrict(allowed: CallList) -> None:
    """Installs the filter for every thread of this process, for good. Needs no_new_privs.

    Raises:
        OSError: the kernel refused, or the machine is neither x86-64 nor aarch64; nothing changed.
    """
    if (machine := platform.machine()) not in _MACHINES:
        raise Unsupported(errno.ENOSYS, f"no seccomp filter for {machine}")
    number = _MACHINES[machine][2]
    rules = filter_for(machine, os.getpid(), allowed)
    program = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filter_program = Program(len(rules), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(filter_program))
    if result != 0:
        code_of_error = ctypes.get_errno() if result < 0 else errno.EBUSY
        raise OSError(code_of_error, os.strerror(code_of_error))


def filter_for(machine: str, process: int, allowed: CallList) -> list[_Rule]:
    """The BPF program for a process number: (code, jump where true, jump where false, constant) each."""
    place, architecture, _ = _MACHINES[machine]
    rules: list[_Rule] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in _numbers(allowed.always, place):
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number in _numbers(("clone3",), place):
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    for name, condition in allowed.conditions.items():
        for number in _numbers((name,), place):
            # Each body ends in a return, so the number stays loaded for the comparisons behind it.
            body = [*_test_of(condition, process), (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]
            rules += [(_EQUAL, 0, len(body), number), *body]
    return [*rules, (_RETURN, 0, 0, _DENY)]


def _numbers(names: Iterable[str], place: int) -> list[int]:
    return [number for name in names if (number := NUMBERS[name][place]) is not None]


def _test_of(condition: Condition, process: int) -> list[_Rule]:
    """Rules that continue if the condition fails, and skip one rule if it holds."""
    load: _Rule = (_LOAD, 0, 0, _ARGUMENTS + 8 * condition.index)
    match condition:
        case OwnProcess():
            return [load, (_EQUAL, 1, 0, process)]
        case OneOf(values=values):
            return [load, *((_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values))]
        case Zero():
            return [load, (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _ARGUMENTS + 8 * condition.index + 4), (_EQUAL, 1, 0, 0)]
        case Flags(needed=needed, optional=optional):
            others = _WORD & ~(needed | optional)
            return [load, (_ANY_BIT, 2, 0, others), (_AND, 0, 0, needed), (_EQUAL, 1, 0, needed)]

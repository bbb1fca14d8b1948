"""The system calls of a process that may only compute: what is allowed, as a seccomp filter over all of its threads.

Allowed is what computing and talking over open descriptors need: memory, threads, clocks, randomness, read, write, send
and receive. Everything else fails with EPERM: opening any file, making any socket, starting any program, making a
process, looking into another one, sending it a signal. Five calls are allowed for some arguments only:

- ``clone`` makes threads of this process and nothing else, or not even them; ``clone3``, whose arguments a filter
  cannot see, answers ENOSYS, and the C library then uses ``clone``;
- ``tgkill`` signals this process alone (``abort``);
- ``prlimit64`` reads limits;
- ``prctl`` names threads, and ``ioctl`` switches a descriptor between blocking and non-blocking;
- ``fcntl`` copies descriptors and reads and sets their flags: of the rest, F_SETOWN has the kernel signal a process.

Source: seccomp(2); classic BPF, linux/filter.h; call numbers of linux/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Mapping

# name -> (x86-64, aarch64); None: the architecture has no such call.
_ALLOWED: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "close": (3, 57),
    "fstat": (5, 80), "lseek": (8, 62), "dup": (32, 23),
    "recvfrom": (45, 207), "sendto": (44, 206), "sendmsg": (46, 211), "shutdown": (48, 210),
    "getsockopt": (55, 209), "setsockopt": (54, 208), "getsockname": (51, 204), "getpeername": (52, 205),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "pipe2": (293, 59),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "mincore": (27, 232), "get_mempolicy": (239, 236), "mlock": (149, 228), "munlock": (150, 229),
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "membarrier": (324, 283), "set_tid_address": (218, 96),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "rt_sigtimedwait": (128, 137), "rt_sigpending": (127, 136), "restart_syscall": (219, 128), "pause": (34, None),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getrandom": (318, 278), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168), "sysinfo": (99, 179), "uname": (63, 160), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_CLONE, _CLONE3, _TGKILL, _PRLIMIT64, _PRCTL, _IOCTL, _FCNTL = (
    (56, 220),
    (435, 435),
    (234, 131),
    (302, 261),
    (157, 167),
    (16, 29),
    (72, 25),
)
# (place of the architecture above, number that the kernel gives it, number of the call seccomp)
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_CLONE_THREAD = 0x00010000
# CLONE_NEWTIME lies in the bits of the exit signal, where a thread has nothing.
_CLONE_NAMESPACES = 0x7E020080
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
_FIONBIO = 0x5421
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC.
_OF_DESCRIPTORS = (0, 1, 2, 3, 4, 1030)

# Classic BPF: load a word at a place, jump where equal, jump where a bit is set, return.
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_Rule = tuple[int, int, int, int]


class Unsupported(OSError):
    """The kernel, or this module, has no filter for this machine."""


def restrict(*, threads: bool = True) -> None:
    """Puts the filter over every thread of this process, for good. Needs no_new_privs. Without ``threads`` no new one.

    Raises:
        OSError: the kernel refused, or the machine is neither x86-64 nor aarch64; nothing changed.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise Unsupported(errno.ENOSYS, f"no seccomp filter for {machine}")
    number = _MACHINES[machine][2]
    rules = filter_for(machine, os.getpid(), threads=threads)
    program = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    given = Program(len(rules), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(given))
    if result != 0:
        code_of_error = ctypes.get_errno() if result < 0 else errno.EBUSY
        raise OSError(code_of_error, os.strerror(code_of_error))


def filter_for(machine: str, process: int, *, threads: bool = True) -> list[_Rule]:
    """The BPF program: (code, jump where true, jump where false, constant) each."""
    place, architecture, _ = _MACHINES[machine]
    rules: list[_Rule] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for pair in _ALLOWED.values():
        number = pair[place]
        if number is not None:
            rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    rules += [(_EQUAL, 0, 1, _CLONE3[place]), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    conditional: list[tuple[int, Callable[[], list[_Rule]]]] = [
        *([(_CLONE[place], _thread_only)] if threads else []),
        (_TGKILL[place], lambda: _one_of(0, process)),
        (_PRLIMIT64[place], lambda: _zero(2)),
        (_PRCTL[place], lambda: _one_of(0, _PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA)),
        (_IOCTL[place], lambda: _one_of(1, _FIONBIO)),
        (_FCNTL[place], lambda: _one_of(1, *_OF_DESCRIPTORS)),
    ]
    for number, body in conditional:
        # Each body ends in a return, so the number stays loaded for the comparisons behind it.
        then = body()
        rules += [(_EQUAL, 0, len(then), number), *then]
    return [*rules, (_RETURN, 0, 0, _DENY)]


def _argument(index: int, *, high: bool = False) -> int:
    return _ARGUMENTS + 8 * index + (4 if high else 0)


def _one_of(index: int, *values: int) -> list[_Rule]:
    tests: list[_Rule] = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(_LOAD, 0, 0, _argument(index)), *tests, (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]


def _zero(index: int) -> list[_Rule]:
    return [
        (_LOAD, 0, 0, _argument(index)),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, _argument(index, high=True)),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _thread_only() -> list[_Rule]:
    return [
        (_LOAD, 0, 0, _argument(0)),
        (_ANY_BIT, 2, 0, _CLONE_NAMESPACES),
        (_ANY_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]

"""A seccomp filter over all threads of a process, from an allow-list of ``odp._system.sandbox.system_calls``.

What the list does not name fails with EPERM. ``clone3``, whose arguments a filter cannot see, answers ENOSYS, and the C
library then uses ``clone``. A call of another architecture ends the process.

Source: seccomp(2); classic BPF, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

from odp._system.sandbox.system_calls import NUMBERS, CallList, Condition, Flags, OneOf, OwnProcess, Zero

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
    machine = platform.machine()
    if machine not in _MACHINES:
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

"""What an enclave process gives up: files, network, other processes, debuggers. Linux only; elsewhere all are refused.

Restrictions are taken in two steps. ``before_imports`` runs while the process has one thread, so whatever libraries
start later inherits it. ``before_run`` runs when everything is loaded, and closes the doors: after it no file can be
opened by any thread. Nothing can be taken back.

=======================  ==========================================================================
``no-new-privileges``    no program that it starts could have more rights
``not-dumpable``         no other process of the user may attach or read its memory
``no-core-dumps``        its memory is never written to a file
``landlock-read-only``   files are read-only; no TCP, no abstract sockets, no signals to others
``closed-descriptors``   of what it inherited, nothing is open but its two sockets
``resource-limits``      no new file can grow above zero bytes, and few descriptors can be open
``landlock-no-files``    no file below ``/`` is accessible, for the thread that serves and all that it starts
``seccomp``              system calls are limited to those of ``odp.enclave.seccomp``, for all threads
=======================  ==========================================================================

The platform adds the namespaces that it started the process in (``NAMESPACES``). Each restriction is checked after it
was taken, by asking the kernel or by trying what is forbidden, and only then reported as held.

Source: prctl(2), landlock(7), seccomp(2), namespaces(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from odp.enclave import seccomp

#: Namespaces of its own: users, network (empty), System V objects, processes.
NAMESPACES: tuple[str, ...] = ("namespace-user", "namespace-network", "namespace-ipc", "namespace-process")
BEFORE_IMPORTS: tuple[str, ...] = ("no-new-privileges", "not-dumpable", "no-core-dumps", "landlock-read-only")
BEFORE_RUN: tuple[str, ...] = ("closed-descriptors", "resource-limits", "landlock-no-files", "seccomp")
RESTRICTIONS: tuple[str, ...] = (*NAMESPACES, *BEFORE_IMPORTS, *BEFORE_RUN)

_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_SIGKILL = 9

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (for libraries that are loaded), read a file, list a folder
_WRITE = 1 << 1
# What each version of Landlock added, by name of the access rights in linux/landlock.h.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_RIGHTS = {4: 0b11}
_SCOPES = {6: 0b11}

_DESCRIPTORS = 64
_MOST_DESCRIPTORS = 2**16
_STANDARD = (0, 1, 2)


class Restrictions(NamedTuple):
    """Names of ``RESTRICTIONS`` that hold, and of those that the kernel refused; together all that were asked for."""

    held: tuple[str, ...]
    refused: tuple[str, ...]


def before_imports(*, debug: bool = False) -> Restrictions:
    """Takes the first step, in a process with one thread. ``debug`` leaves debuggers in."""
    steps: dict[str, Callable[[], bool]] = {
        "no-new-privileges": _no_new_privileges,
        "not-dumpable": _leave_open if debug else _not_dumpable,
        "no-core-dumps": _no_core_dumps,
        "landlock-read-only": lambda: (
            _landlock({"/": _READ, os.devnull: _WRITE}) and _fails_with(errno.EACCES, _write_to_zero)
        ),
    }
    return _take(steps)


def before_run(keep: Iterable[int], *, debug: bool = False) -> Restrictions:
    """Takes the second step, once everything is imported; of all descriptors, ``keep`` stay open.

    The three standard ones then lead nowhere, for their readers could be anybody; ``debug`` leaves them as they are.
    """
    kept = set(keep)
    steps: dict[str, Callable[[], bool]] = {
        "closed-descriptors": lambda: _close_all_but(kept, debug=debug),
        # A debugger's output may go to a file.
        "resource-limits": _leave_open if debug else _limit_resources,
        "landlock-no-files": lambda: _landlock({}) and _fails_with(errno.EACCES, _read_null),
        "seccomp": _seccomp,
    }
    return _take(steps)


def before_platform() -> Restrictions:
    """What the platform process itself takes: nobody may read its memory."""
    return _take({"not-dumpable": _not_dumpable, "no-core-dumps": _no_core_dumps})


def end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def _take(steps: dict[str, Callable[[], bool]]) -> Restrictions:
    held: list[str] = []
    refused: list[str] = []
    for name, step in steps.items():
        try:
            taken = sys.platform == "linux" and step()
        except OSError:
            taken = False
        (held if taken else refused).append(name)
    return Restrictions(tuple(held), tuple(refused))


def _no_new_privileges() -> bool:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    return _prctl(_PR_GET_NO_NEW_PRIVS) == 1


def _not_dumpable() -> bool:
    _prctl(_PR_SET_DUMPABLE, 0)
    return _prctl(_PR_GET_DUMPABLE) == 0


def _leave_open() -> bool:
    return False


def _no_core_dumps() -> bool:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)


def _limit_resources() -> bool:
    wanted = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _DESCRIPTORS}
    for limit, value in wanted.items():
        resource.setrlimit(limit, (value, value))
    return all(resource.getrlimit(limit) == (value, value) for limit, value in wanted.items())


def _close_all_but(kept: set[int], *, debug: bool) -> bool:
    if not debug:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in _STANDARD:
            os.dup2(null, standard)
    stay = sorted({*kept, *_STANDARD})
    end = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _MOST_DESCRIPTORS)
    for low, high in zip([-1, *stay], [*stay, end], strict=True):
        # An empty range that ends at zero would close all.
        if low + 1 < high:
            os.closerange(low + 1, high)
    return not any(_is_open(number) for number in range(end) if number not in stay)


def _is_open(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _seccomp() -> bool:
    seccomp.restrict()
    return all(_fails_with(errno.EPERM, attempt) for attempt in (_read_null, os.fork))


def _landlock(allowed: Mapping[str, int]) -> bool:
    """Restricts this thread, and all that it starts, to the file rights ``allowed`` below each path."""
    version = _syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    files, network, scopes = (
        sum(bits for since, bits in table.items() if since <= version)
        for table in (_FILE_RIGHTS, _NETWORK_RIGHTS, _SCOPES)
    )
    handled = struct.pack("=QQQ", files, network, scopes)
    # An older kernel takes the longer structure as long as what it does not know is zero.
    ruleset = _syscall(_CREATE_RULESET, handled, len(handled), 0)
    try:
        for path, rights in allowed.items():
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
            finally:
                os.close(beneath)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _read_null() -> object:
    return os.open(os.devnull, os.O_RDONLY)


def _write_to_zero() -> object:
    return os.open("/dev/zero", os.O_WRONLY)


def _fails_with(code: int, attempt: Callable[[], object]) -> bool:
    try:
        made = attempt()
    except OSError as error:
        return error.errno == code
    if attempt is os.fork and made == 0:
        os._exit(0)
    return False


def _prctl(option: int, value: int = 0) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return _checked(libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))))


def _syscall(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(libc.syscall(ctypes.c_long(number), *given))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)

"""Restrictions that a process takes for good, each checked afterwards. Linux only.

A restriction is a function that returns whether it holds: it asks the kernel, or tries what is forbidden. ``take`` runs
several and returns which hold; on systems other than Linux all are refused.

Namespaces are here too: which ones a process has of its own, and how it creates new ones.

Source: prctl(2), landlock(7), seccomp(2), capabilities(7), setrlimit(2), namespaces(7), unshare(2), setns(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from odp._system.sandbox import seccomp
from odp._system.sandbox.seccomp import CallList

#: Rights below a path, for ``landlock``.
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (for libraries that are loaded), read a file, list a folder
EVERYTHING = (1 << 15) - 1  # but for calls of devices

_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_SIGKILL = 9

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
# What each version of Landlock added, by name of the access rights in linux/landlock.h.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_RIGHTS = {4: 0b11}
_SCOPES = {6: 0b11}
_CAPABILITY_VERSION = 0x20080522

_MOST_DESCRIPTORS = 2**16
_STANDARD = (0, 1, 2)


class Restrictions(NamedTuple):
    """Names of restrictions that hold, and of those that the kernel refused; together all requested ones."""

    held: tuple[str, ...]
    refused: tuple[str, ...]


def end_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def take(steps: dict[str, Callable[[], bool]]) -> Restrictions:
    """Takes the restrictions in order; a failed one counts as refused, and the next one follows."""
    held: list[str] = []
    refused: list[str] = []
    for name, step in steps.items():
        try:
            taken = sys.platform == "linux" and step()
        except OSError:
            taken = False
        (held if taken else refused).append(name)
    return Restrictions(tuple(held), tuple(refused))


def prctl(option: int, value: int = 0) -> int:
    """Sets or reads an attribute of this process. Raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return _checked(libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))))


def no_new_privileges() -> bool:
    """No program that it starts could have more rights."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    return prctl(_PR_GET_NO_NEW_PRIVS) == 1


def not_dumpable() -> bool:
    """No other process of the user may attach to it or read its memory."""
    prctl(_PR_SET_DUMPABLE, 0)
    return prctl(_PR_GET_DUMPABLE) == 0


def let_debuggers_in() -> bool:
    """Undoes ``not_dumpable``, which a program that nobody can read has from its start; it does not hold."""
    prctl(_PR_SET_DUMPABLE, 1)
    return False


def leave_open() -> bool:
    """A restriction that is not requested."""
    return False


def no_core_dumps() -> bool:
    """Its memory is never written to a file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)


def limit_resources(wanted: Mapping[int, int]) -> bool:
    """Soft and hard limits of the module ``resource``, by its constants."""
    for limit, value in wanted.items():
        resource.setrlimit(limit, (value, value))
    return all(resource.getrlimit(limit) == (value, value) for limit, value in wanted.items())


def no_capabilities() -> bool:
    """The process keeps none of root's rights, also within its own namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked(libc.capset(header, bytes(24)))
    capabilities = ctypes.create_string_buffer(24)
    _checked(libc.capget(header, capabilities))
    return capabilities.raw == bytes(24)


def close_all_but(descriptors: set[int], *, nowhere: int | None = None, keep_standard: bool = False) -> bool:
    """Closes every descriptor but ``descriptors``; the standard ones then lead nowhere, or stay with ``keep_standard``.

    ``nowhere`` is an open one of ``/dev/null``, where no file can be opened any more.
    """
    if not keep_standard:
        null = os.open(os.devnull, os.O_RDWR) if nowhere is None else nowhere
        for standard in _STANDARD:
            os.dup2(null, standard)
    stay = sorted({*descriptors, *_STANDARD})
    end = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _MOST_DESCRIPTORS)
    # A descriptor that was opened under a higher limit may lie beyond the one of now.
    for low, high in zip([-1, *stay], [*stay, _MOST_DESCRIPTORS], strict=True):
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


def filter_system_calls(allowed: CallList) -> bool:
    """Only the system calls of a list (``odp._system.sandbox.seccomp``), for all threads."""
    seccomp.restrict(allowed)
    return all(fails_with(errno.EPERM, attempt) for attempt in (read_null, os.fork, count_faults))


def landlock(allowed: Mapping[str, int]) -> bool:
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
                _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights & files, beneath), 0)
            finally:
                os.close(beneath)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def read_null() -> object:
    """Opens a file that everybody may read."""
    return os.open(os.devnull, os.O_RDONLY)


def count_faults() -> object:
    """Reads the counters of this process."""
    return resource.getrusage(resource.RUSAGE_SELF)


def write_to_zero() -> object:
    """Opens a file that everybody may write."""
    return os.open("/dev/zero", os.O_WRONLY)


def fails_with(code: int, attempt: Callable[[], object]) -> bool:
    """Whether the attempt fails with this error number."""
    try:
        made = attempt()
    except OSError as error:
        return error.errno == code
    if attempt is os.fork and made == 0:
        os._exit(0)
    return False


def _syscall(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    c_arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(libc.syscall(ctypes.c_long(number), *c_arguments))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


#: Users, network (empty), System V objects, processes.
NAMES: tuple[str, ...] = ("namespace-user", "namespace-network", "namespace-ipc", "namespace-process")
#: Name -> (flag of clone, link in /proc/<pid>/ns).
NAMESPACES: Mapping[str, tuple[int, str]] = {
    "namespace-user": (0x10000000, "user"),
    "namespace-network": (0x40000000, "net"),
    "namespace-ipc": (0x08000000, "ipc"),
    "namespace-process": (0x20000000, "pid"),
}
#: To be tried in this order. With a user namespace anybody may have the others; without one, only root.
ATTEMPTS: tuple[tuple[str, ...], ...] = (
    NAMES,
    ("namespace-user", "namespace-network"),
    tuple(name for name in NAMES if name != "namespace-user"),
    (),
)


def flags_of(names: Iterable[str]) -> int:
    """The flags of clone and unshare for these namespaces."""
    return sum(NAMESPACES[name][0] for name in names)


def unshare(names: Iterable[str]) -> bool:
    """Creates new namespaces for this process (process ids: for its children); False if the kernel refuses."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).unshare(ctypes.c_int(flags_of(names))) == 0)


def enter(descriptor: int, name: str) -> bool:
    """Enters the namespace behind an open link of /proc/<pid>/ns; False if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.setns(ctypes.c_int(descriptor), ctypes.c_int(NAMESPACES[name][0])) == 0)


def links() -> dict[str, str]:
    """Name -> this process's namespace of that kind, as the kernel calls it; those that it tells."""
    read = {}
    for name, (_, link) in NAMESPACES.items():
        with contextlib.suppress(OSError):
            read[name] = os.readlink(f"/proc/self/ns/{link}")  # noqa: PTH115  # no path of a file
    return read


def apart(outside: Mapping[str, str]) -> list[str]:
    """Names of the namespaces that this process has of its own, and not from the one that ``outside`` is of."""
    return [name for name, link in links().items() if outside.get(name, link) != link]

"""Linux namespaces: which ones a process has of its own, and how it creates new ones.

Source: namespaces(7), unshare(2), setns(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Mapping

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

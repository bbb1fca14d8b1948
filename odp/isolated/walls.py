"""The restrictions of a call's process, taken before it runs any of the developer's code. Linux only.

=======================  ==========================================================================
``no-new-privileges``    no program that it starts could have more rights
``not-dumpable``         no other process of the user may attach or read its memory
``no-core-dumps``        its memory is never written to a file
``no-capabilities``      it keeps none of root's rights
``closed-descriptors``   of what it inherited, nothing is open but its channel
``memory-limit``         a number of bytes above the runtime's own memory
``processor-limit``      a number of seconds, for all its threads together
``file-limit``           no file can grow above zero bytes, and few descriptors can be open
``landlock-no-files``    no file below ``/`` is accessible; no TCP, no abstract sockets, no signals to others
``seccomp``              system calls are limited to ``odp._system.sandbox.seccomp.ISOLATED``
=======================  ==========================================================================

The template process, which it is copied from, has taken these before:

=======================  ==========================================================================
the namespaces           users, network, System V objects, processes of its own
``no-shared-pages``      the kernel merges none of its pages with others, and makes no huge ones
``private-memory``       no page of a file is mapped: libraries and program lie in memory of its own
=======================  ==========================================================================

Which of them the promises to a person rest on, ``PROMISES`` says.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping

from odp._system.posix import resource
from odp._system.sandbox import kernel
from odp._system.sandbox.kernel import Restrictions
from odp._system.sandbox.seccomp import ISOLATED

TAKEN: tuple[str, ...] = (
    "no-new-privileges", "not-dumpable", "no-core-dumps", "no-capabilities", "closed-descriptors", "memory-limit",
    "processor-limit", "file-limit", "landlock-no-files", "seccomp",
)  # fmt: skip
RESTRICTIONS: tuple[str, ...] = (*kernel.NAMES, "no-shared-pages", "private-memory", *TAKEN)

#: Promise -> the restrictions without which it is not kept; none: the runtime keeps it by itself. The others
#: are second walls: Landlock alone, say, leaves what files are called, and sockets that lie in folders.
PROMISES: Mapping[str, frozenset[str]] = {
    "no network": frozenset({"seccomp"}),
    "no files": frozenset({"seccomp", "closed-descriptors"}),
    "no other processes": frozenset({"seccomp"}),
    "no reading of its memory": frozenset({"not-dumpable", "no-core-dumps"}),
    "no traces of other calls": frozenset({"seccomp", "closed-descriptors", "private-memory", "no-shared-pages"}),
    "no count of other calls": frozenset({"namespace-process"}),
    "memory limit": frozenset({"memory-limit"}),
    "processor limit": frozenset({"processor-limit"}),
    "no environment": frozenset(),
    "deadline": frozenset(),
    "output limit": frozenset(),
    "rights to tables": frozenset({"closed-descriptors"}),
}

_DESCRIPTORS = 16


def broken_promises(held: Collection[str]) -> list[str]:
    """The promises that are not kept under these restrictions."""
    return [name for name, needed in PROMISES.items() if not needed <= set(held)]


def take(channel: int, *, memory_bytes: int, processor_seconds: int) -> Restrictions:
    """Takes all restrictions in the process of one call; ``memory_bytes`` is its whole address space."""
    steps: dict[str, Callable[[], bool]] = {
        "no-new-privileges": kernel.no_new_privileges,
        "not-dumpable": kernel.not_dumpable,
        "no-core-dumps": kernel.no_core_dumps,
        "no-capabilities": kernel.no_capabilities,
        "closed-descriptors": lambda: kernel.close_all_but({channel}),
        "memory-limit": lambda: kernel.limit_resources({resource.RLIMIT_AS: memory_bytes}),
        "processor-limit": lambda: kernel.limit_resources({resource.RLIMIT_CPU: processor_seconds}),
        "file-limit": lambda: kernel.limit_resources({resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _DESCRIPTORS}),
        "landlock-no-files": lambda: kernel.landlock({}) and kernel.fails_with(errno.EACCES, kernel.read_null),
        # No threads either: they take memory and numbers of the kernel that no limit of a process counts.
        "seccomp": lambda: kernel.filter_system_calls(ISOLATED),
    }
    return kernel.take(steps)

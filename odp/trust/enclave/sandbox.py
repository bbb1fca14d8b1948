"""The restrictions of an enclave process: no files, network, other processes or debuggers. Linux only.

Restrictions are taken in three steps. The platform takes those on files before the process becomes the enclave's image
(``odp.trust.enclave.image.running``): no instruction of the image could open one. ``before_imports`` runs while the
process has one thread, so whatever libraries start later inherits it. ``before_run`` runs when everything is loaded.
Nothing can be taken back.

=======================  ==========================================================================
``no-new-privileges``    no program that it starts could have more rights
``not-dumpable``         no other process of the user may attach or read its memory
``no-core-dumps``        its memory is never written to a file
``landlock-read-only``   no file can be written; no TCP, no abstract sockets, no signals to others
``landlock-no-files``    no file can be opened, from before its first instruction on
``closed-descriptors``   of what it inherited, nothing is open but its two sockets
``resource-limits``      no new file can grow above zero bytes, and few descriptors can be open
``seccomp``              system calls are limited to ``odp._system.sandbox.seccomp.COMPUTING``, for all threads
=======================  ==========================================================================

The platform adds the namespaces that it started the process in (``NAMESPACES``). Each restriction is checked after it
was taken, by asking the kernel or by trying what is forbidden, and only then reported as held.

Source: prctl(2), landlock(7), seccomp(2), namespaces(7).
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterable

from odp._system.sandbox import kernel
from odp._system.sandbox.kernel import Restrictions
from odp._system.sandbox.seccomp import COMPUTING

#: Namespaces of its own: users, network (empty), System V objects, processes.
NAMESPACES: tuple[str, ...] = kernel.NAMES
BEFORE_IMPORTS: tuple[str, ...] = (
    "no-new-privileges",
    "not-dumpable",
    "no-core-dumps",
    "landlock-read-only",
    "landlock-no-files",
)
BEFORE_RUN: tuple[str, ...] = ("closed-descriptors", "resource-limits", "seccomp")
RESTRICTIONS: tuple[str, ...] = (*NAMESPACES, *BEFORE_IMPORTS, *BEFORE_RUN)

#: Standard input, as the platform starts the process.
_NOWHERE = 0
_LIMITS = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 64}


def before_imports(*, debug: bool = False) -> Restrictions:
    """Takes the first step, in a process with one thread. ``debug`` leaves debuggers in."""
    steps: dict[str, Callable[[], bool]] = {
        "no-new-privileges": kernel.no_new_privileges,
        "not-dumpable": kernel.let_debuggers_in if debug else kernel.not_dumpable,
        "no-core-dumps": kernel.no_core_dumps,
        "landlock-read-only": lambda: kernel.fails_with(errno.EACCES, kernel.write_to_zero),
        "landlock-no-files": lambda: kernel.fails_with(errno.EACCES, kernel.read_null),
    }
    return kernel.take(steps)


def before_run(keep: Iterable[int], *, debug: bool = False) -> Restrictions:
    """Takes the second step, once everything is imported; of all descriptors, ``keep`` stay open.

    The three standard ones then lead nowhere, for their readers could be anybody; ``debug`` leaves them as they are.
    """
    descriptors = set(keep)
    steps: dict[str, Callable[[], bool]] = {
        "closed-descriptors": lambda: kernel.close_all_but(descriptors, nowhere=_NOWHERE, keep_standard=debug),
        # A debugger's output may go to a file.
        "resource-limits": kernel.leave_open if debug else lambda: kernel.limit_resources(_LIMITS),
        "seccomp": lambda: kernel.filter_system_calls(COMPUTING),
    }
    return kernel.take(steps)


def before_platform() -> Restrictions:
    """The restrictions of the platform process: no other process may read its memory."""
    return kernel.take({"not-dumpable": kernel.not_dumpable, "no-core-dumps": kernel.no_core_dumps})

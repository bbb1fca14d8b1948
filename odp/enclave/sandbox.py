"""The restrictions of an enclave process: no files, network, other processes or debuggers. Linux only.

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
``seccomp``              system calls are limited to ``odp.sandbox.system_calls.COMPUTING``, for all threads
=======================  ==========================================================================

The platform adds the namespaces that it started the process in (``NAMESPACES``). Each restriction is checked after it
was taken, by asking the kernel or by trying what is forbidden, and only then reported as held.

Source: prctl(2), landlock(7), seccomp(2), namespaces(7).
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable

from odp.sandbox import kernel, namespaces
from odp.sandbox.kernel import Restrictions
from odp.sandbox.system_calls import COMPUTING

#: Namespaces of its own: users, network (empty), System V objects, processes.
NAMESPACES: tuple[str, ...] = namespaces.NAMES
BEFORE_IMPORTS: tuple[str, ...] = ("no-new-privileges", "not-dumpable", "no-core-dumps", "landlock-read-only")
BEFORE_RUN: tuple[str, ...] = ("closed-descriptors", "resource-limits", "landlock-no-files", "seccomp")
RESTRICTIONS: tuple[str, ...] = (*NAMESPACES, *BEFORE_IMPORTS, *BEFORE_RUN)

_LIMITS = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 64}


def before_imports(*, debug: bool = False) -> Restrictions:
    """Takes the first step, in a process with one thread. ``debug`` leaves debuggers in."""
    steps: dict[str, Callable[[], bool]] = {
        "no-new-privileges": kernel.no_new_privileges,
        "not-dumpable": kernel.leave_open if debug else kernel.not_dumpable,
        "no-core-dumps": kernel.no_core_dumps,
        "landlock-read-only": lambda: (
            kernel.landlock({"/": kernel.READ, os.devnull: kernel.WRITE})
            and kernel.fails_with(errno.EACCES, kernel.write_to_zero)
        ),
    }
    return kernel.take(steps)


def before_run(keep: Iterable[int], *, debug: bool = False) -> Restrictions:
    """Takes the second step, once everything is imported; of all descriptors, ``keep`` stay open.

    The three standard ones then lead nowhere, for their readers could be anybody; ``debug`` leaves them as they are.
    """
    kept = set(keep)
    steps: dict[str, Callable[[], bool]] = {
        "closed-descriptors": lambda: kernel.close_all_but(kept, debug=debug),
        # A debugger's output may go to a file.
        "resource-limits": kernel.leave_open if debug else lambda: kernel.limit_resources(_LIMITS),
        "landlock-no-files": lambda: kernel.landlock({}) and kernel.fails_with(errno.EACCES, kernel.read_null),
        "seccomp": lambda: kernel.filter_system_calls(COMPUTING),
    }
    return kernel.take(steps)


def before_platform() -> Restrictions:
    """The restrictions of the platform process: no other process may read its memory."""
    return kernel.take({"not-dumpable": kernel.not_dumpable, "no-core-dumps": kernel.no_core_dumps})

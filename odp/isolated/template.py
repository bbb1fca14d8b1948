"""The template process: the processes of calls are forked from it, with all allowed imports and no private data.

Run by its path, in an interpreter that reads no environment and no site folder (``-I -S``), with one socket to the
runtime. It runs no code of the developer and sees no data: every call has a socket of its own from the runtime to its
process, made for it. So a developer's code finds nothing of an earlier call, whatever it did there.

::

    runtime                              template
    prepare(paths, preload, sources) ->
                                     <-  prepared(restrictions)
    fork(number) + a socket          ->  a process with that socket (``odp.isolated.worker``)
    end(number)                      ->  kills it
    end(number, tell)                ->
                                     <-  ended(signal)

It ends, and all that it made, when the runtime's end of the socket closes.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Its own check, as a template runs as a script that cannot import ODP.
if sys.platform != "win32":
    import resource

_LARGEST = 8 * 2**20
_DESCRIPTORS = 64
_CONTROL = 3
_HEADER = 1
_WAITS, _WAIT_SECONDS = 100, 0.002
# Loaded by others when they are first used, and by nobody once there are no files.
_LAZY = (
    "_strptime", "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.unicode_escape",
    "encodings.utf_16", "encodings.utf_8_sig", "linecache", "locale", "odp._system.own_packages", "string",
    "traceback", "typing",
)  # fmt: skip


class Template:
    """Forks processes on request.

    Args:
        control: to the runtime.
        prepared: what the runtime said first.
        held: restrictions that hold for this process, and so for those made of it.
        fresh_processes: its namespace of processes, as a descriptor, or None.
    """

    def __init__(
        self,
        control: socket.socket,
        prepared: dict[str, Any],
        *,
        held: Sequence[str],
        fresh_processes: int | None,
    ) -> None:
        self._control = control
        self._prepared = prepared
        self._held = [name for name in held if name != "namespace-process"]
        self._own_processes = fresh_processes
        self._children: dict[int, int] = {}
        # The address space that all this takes is not the developer's.
        self._base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def run(self) -> None:
        """Serves until the runtime closes the socket."""
        while True:
            # One byte carries the descriptor, where there is one; the frame follows.
            head, descriptors, _, _ = socket.recv_fds(self._control, _HEADER, 1)
            message = receive_frame(self._control, most=_LARGEST) if head else None
            if message is None:
                return
            if "fork" in message:
                self._fork(int(message["fork"]), descriptors[0])
            else:
                self._end(int(message["end"]), tell=bool(message.get("tell")))

    def _fork(self, number: int, channel: int) -> None:
        apart = self._own_processes is not None and namespaces.enter(self._own_processes, "namespace-process")
        # A number of its own would tell how many processes there were before.
        apart = apart and namespaces.unshare(("namespace-process",))
        process = os.fork()
        if process:
            os.close(channel)
            self._children[number] = process
            return
        try:
            end_with_parent()
            limits = self._prepared["limits"]
            worker.main(
                channel,
                sources={name: (text, package) for name, (text, package) in self._prepared["sources"].items()},
                module=self._prepared["module"],
                name=self._prepared["name"],
                inherited=[*self._held, "namespace-process"] if apart else self._held,
                memory_bytes=self._base + limits["memory_bytes"],
                processor_seconds=limits["processor_seconds"],
                output_bytes=limits["output_bytes"],
            )
        finally:
            os._exit(1)

    def _end(self, number: int, *, tell: bool) -> None:
        process = self._children.pop(number)
        # A process that ends closes its socket a little before it can be waited for.
        tries = _WAITS if tell else 1
        ended, status = os.waitpid(process, os.WNOHANG)
        while not ended and tries > 1:
            time.sleep(_WAIT_SECONDS)
            ended, status = os.waitpid(process, os.WNOHANG)
            tries -= 1
        if not ended:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        if tell:
            send_frame(self._control, {"ended": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0})


def main() -> None:
    """Prepares in namespaces of its own, and serves."""
    # Nothing else was passed on. The number is below the limit from here on, so that a call's process closes its copy.
    os.dup2(int(sys.argv[1]), _CONTROL, inheritable=False)
    os.closerange(_CONTROL + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    control = socket.socket(fileno=_CONTROL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    held = next(names for names in namespaces.ATTEMPTS if not names or namespaces.unshare(names))
    if "namespace-process" in held:
        child = os.fork()  # it is in the new namespace, and this process is not
        if child:
            control.close()
            os.waitpid(child, 0)
            os._exit(0)
        end_with_parent()
    own_processes = None
    if "namespace-process" in held:
        own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY)
    kernel.take({name: getattr(kernel, name) for name in ("no_new_privileges", "not_dumpable", "no_core_dumps")})
    alone = kernel.take({"no-shared-pages": private_memory.no_shared_pages})
    prepared = receive_frame(control, most=_LARGEST)
    if prepared is None:
        return
    sys.path += prepared["paths"]
    missing = [name for name in prepared["preload"] if not _imported(name)]
    for name in _LAZY:
        _imported(name)
    os.environ.clear()
    install_paths.forget((*prepared["paths"], str(Path(__file__).parents[2])))
    gc.collect()
    gc.freeze()
    # After this nothing is loaded from a file, or it would be shared again.
    copied = kernel.take({"private-memory": private_memory.own_copies})
    held = (*held, *alone.held, *copied.held)
    send_frame(control, {"prepared": list(held), "missing": missing})
    Template(control, prepared, held=held, fresh_processes=own_processes).run()


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit):  # a service names what it likes, and some modules are for other systems
        return False
    return True


if __name__ == "__main__":
    # The packages are beside this one; of their folder nothing else is wanted.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from odp._system.sandbox import install_paths, kernel, namespaces, private_memory
    from odp._system.sandbox.frames import receive_frame, send_frame
    from odp._system.sandbox.kernel import end_with_parent
    from odp.isolated import worker

    main()

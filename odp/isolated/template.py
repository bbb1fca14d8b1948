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

Takes out of a process where it is installed: a folder's name may have a person's name in it, and tells users apart.

What Python and C keep of it is overwritten: arguments and environment of the start, the program's name in the auxiliary
vector, ``sys``, and the files of modules and functions, which become relative. Nothing can be loaded from a file after.

Not found are copies in freed memory, and the names of libraries that the dynamic linker keeps.

Source: proc_pid_stat(5) (arg_start to env_end), getauxval(3) (AT_EXECFN), PEP 451 (origin of a module).
"""

from __future__ import annotations

import _imp
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_AT_EXECFN = 31
# Of the fields of /proc/self/stat after the program's name, which ends with ")": arg_start to env_end.
_START_FIELDS = slice(45, 49)
_LONGEST = 2**21
# Of the functions of C that return a text of wide characters, those of this version of Python.
_WIDE = (
    "Py_GetProgramFullPath", "Py_GetPrefix", "Py_GetExecPrefix", "Py_GetPath", "Py_GetProgramName", "Py_GetPythonHome",
)  # fmt: skip
_OF_SYS = (
    "prefix", "exec_prefix", "base_prefix", "base_exec_prefix", "executable", "_base_executable", "_stdlib_dir",
    "pycache_prefix",
)  # fmt: skip


def forget(folders: Iterable[str]) -> None:
    """Overwrites the names of ``folders`` and of Python's own, wherever the process keeps them.

    Raises:
      OSError: ``/proc`` cannot be read.
    """
    folders_to_hide = (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent), *sys.path, *folders)
    hidden = sorted({folder for folder in folders_to_hide if len(folder) > 1}, key=len, reverse=True)
    _forget_start()
    _forget_sys()
    for module in list(sys.modules.values()):
        _forget_module(module, hidden)
    codes = [function.__code__ for function in gc.get_objects() if isinstance(function, FunctionType)]
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    for code in codes:
        _forget_code(code, hidden)


def _forget_start() -> None:
    """The strings of the start lie on the stack, where nothing else does."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    arguments, arguments_end, environment, environment_end = map(int, fields[_START_FIELDS])
    for start, end in ((arguments, arguments_end), (environment, environment_end)):
        if 0 < start < end < start + _LONGEST:
            ctypes.memset(start, 0, end - start)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "getauxval"):
        libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        if name := libc.getauxval(_AT_EXECFN):
            ctypes.memset(name, 0, len(ctypes.string_at(name)))


def _forget_sys() -> None:
    for name in _WIDE:
        if (function := getattr(ctypes.pythonapi, name, None)) is not None:
            function.restype = ctypes.c_void_p
            if text := function():
                ctypes.memset(text, 0, len(ctypes.wstring_at(text)) * ctypes.sizeof(ctypes.c_wchar))
    sys.path[:], sys.argv[:] = [], [""]
    sys.orig_argv[:] = []
    sys.path_importer_cache.clear()
    for name in _OF_SYS:
        if getattr(sys, name, None):
            setattr(sys, name, "")


def _forget_module(module: ModuleType, hidden: list[str]) -> None:
    names = getattr(module, "__dict__", None)
    if not isinstance(names, dict):
        return
    for name, value in list(names.items()):
        if isinstance(value, (str, PurePath)) and (short := _short(str(value), hidden)) != str(value):
            names[name] = type(value)(short)
    if isinstance(names.get("__path__"), list):
        names["__path__"][:] = []
    if (spec := names.get("__spec__")) is not None:
        _forget_attributes(spec, ("origin", "cached", "_cached"), hidden)
        if isinstance(getattr(spec, "submodule_search_locations", None), list):
            spec.submodule_search_locations[:] = []
        _forget_attributes(spec.loader, ("path",), hidden)
    _forget_attributes(names.get("__loader__"), ("path",), hidden)


def _forget_attributes(held: Any, names: Iterable[str], hidden: list[str]) -> None:
    attributes = getattr(held, "__dict__", {})
    for name in names:
        if isinstance(attributes.get(name), str):
            setattr(held, name, _short(attributes[name], hidden))


def _forget_code(code: CodeType, hidden: list[str]) -> None:
    if (short := _short(code.co_filename, hidden)) != code.co_filename:
        # What an import does with a module that was compiled elsewhere.
        _imp._fix_co_filename(code, short)  # type: ignore[attr-defined]


def _short(path: str, hidden: list[str]) -> str:
    """The path from the folder on that is not to be seen; no other text is changed."""
    for folder in hidden:
        if path == folder:
            return ""
        if path.startswith(f"{folder}/"):
            return path[len(folder) + 1 :]
    return path


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
        apart = self._own_processes is not None and kernel.enter(self._own_processes, "namespace-process")
        # A number of its own would tell how many processes there were before.
        apart = apart and kernel.unshare(("namespace-process",))
        if process := os.fork():
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
    held = next(names for names in kernel.ATTEMPTS if not names or kernel.unshare(names))
    if "namespace-process" in held:
        if child := os.fork():  # it is in the new namespace, and this process is not
            control.close()
            os.waitpid(child, 0)
            os._exit(0)
        end_with_parent()
    own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY) if "namespace-process" in held else None
    kernel.take({name: getattr(kernel, name) for name in ("no_new_privileges", "not_dumpable", "no_core_dumps")})
    alone = kernel.take({"no-shared-pages": private_memory.no_shared_pages})
    if (prepared := receive_frame(control, most=_LARGEST)) is None:
        return
    sys.path += prepared["paths"]
    missing = [name for name in prepared["preload"] if not _imported(name)]
    for name in _LAZY:
        _imported(name)
    os.environ.clear()
    forget((*prepared["paths"], str(Path(__file__).parents[2])))
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
    from odp._system.sandbox import kernel, private_memory
    from odp._system.sandbox.frames import receive_frame, send_frame
    from odp._system.sandbox.kernel import end_with_parent
    from odp.isolated import worker

    main()

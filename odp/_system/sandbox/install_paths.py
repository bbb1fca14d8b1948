"""Takes out of a process where it is installed: a folder's name may have a person's name in it, and tells users apart.

What Python and C keep of it is overwritten: arguments and environment of the start, the program's name in the auxiliary
vector, ``sys``, and the files of modules and functions, which become relative. Nothing can be loaded from a file after.

Not found are copies in freed memory, and the names of libraries that the dynamic linker keeps.

Source: proc_pid_stat(5) (arg_start to env_end), getauxval(3) (AT_EXECFN), PEP 451 (origin of a module).
"""

from __future__ import annotations

import _imp
import ctypes
import gc
import sys
from collections.abc import Iterable
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
        name = libc.getauxval(_AT_EXECFN)
        if name:
            ctypes.memset(name, 0, len(ctypes.string_at(name)))


def _forget_sys() -> None:
    for name in _WIDE:
        function = getattr(ctypes.pythonapi, name, None)
        if function is not None:
            function.restype = ctypes.c_void_p
            text = function()
            if text:
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
    spec = names.get("__spec__")
    if spec is not None:
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
    short = _short(code.co_filename, hidden)
    if short != code.co_filename:
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

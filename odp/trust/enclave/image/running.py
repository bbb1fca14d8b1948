"""The process that becomes an image: its parts in sealed memory files, the doors closed, then exec.

From the first instruction of the program on, no file can be opened but what the caller allows: the dynamic loader, the
C library, the interpreter and all modules come from memory files that hold what the manifest lists, and that nobody can
write any more. A kernel without Landlock cannot close the files; what its system loads into every process
(``/etc/ld.so.preload``) is then a reason to refuse.

Source: memfd_create(2), fcntl(2) on seals, ld.so(8), landlock(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import marshal
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from odp._system.sandbox import kernel
from odp.errors import StateError
from odp.trust.enclave.image.parts import ImageFile, Part

#: Where the first of the descriptors that a process keeps lies; the others follow.
FIRST_INHERITED = 3
#: The module of the zip that takes over.
BOOTSTRAP = "odp_enclave_bootstrap"

_CLOEXEC, _ALLOW_SEALING, _EXEC = 0x1, 0x2, 0x10
_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8  # no further seals; no shrinking, growing or writing
#: Executable by all and readable by nobody but through its descriptor: the process cannot be looked at from its start.
_EXECUTE_ONLY, _READ_AND_EXECUTE = 0o111, 0o500
_NOWHERE = "/nonexistent"
_PRELOAD = Path("/etc/ld.so.preload")
#: Errors of a kernel without Landlock, or of a container that forbids it; any other is a reason not to start.
_NO_LANDLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_MOST_DESCRIPTORS = 2**16
_PYTHON = ("-S", "-s", "-P", "-B")
_ENVIRONMENT = {
    "PYTHONHOME": _NOWHERE,
    "PYTHONUTF8": "1",
    # Where a kernel cannot close files, a configuration of the system could load a provider.
    "OPENSSL_CONF": os.devnull,
    # Many small products: threads of BLAS that wait for each other cost more than they do.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Loaded:
    """An image in memory files: descriptors of this process, which a child inherits.

    Attributes:
        loader: of the dynamic loader.
        program: of the interpreter.
        start: of the zip with which it starts.
        modules: of all compiled modules.
        libraries: of the shared libraries.
        extensions: module -> descriptor.
    """

    loader: int
    program: int
    start: int
    modules: int
    libraries: tuple[int, ...]
    extensions: Mapping[str, int]

    @property
    def descriptors(self) -> list[int]:
        """All of them, in the order of the attributes."""
        return [self.loader, self.program, self.start, self.modules, *self.libraries, *self.extensions.values()]


@contextlib.contextmanager
def loaded(file: ImageFile) -> Iterator[Loaded]:
    """Copies an image into sealed memory files, checking each part; they are open while the body runs.

    Raises:
        ConfigurationError: a part is not the one that the manifest lists.
        StateError: this system forbids executable memory files, or has no memory for them.
    """
    image = file.image
    opened: list[int] = []

    def memory_file(part: Part, *, mode: int = _READ_AND_EXECUTE) -> int:
        opened.append(_memory_file())
        with _no_memory():
            file.copy(part, opened[-1])
            _seal(opened[-1], mode)
        file.check_copy(part, opened[-1])
        return opened[-1]

    try:
        modules = {part.name: (file.read(part), part.kind == "package") for part in image.of_kind("module", "package")}
        opened.append(_memory_file())
        with _no_memory():
            _write(opened[0], marshal.dumps(modules, 2))
            _seal(opened[0], _READ_AND_EXECUTE)
        yield Loaded(
            memory_file(image.only("dynamic-loader"), mode=_EXECUTE_ONLY),
            memory_file(image.only("program")),
            memory_file(image.only("start")),
            opened[0],
            tuple(memory_file(part) for part in image.of_kind("library")),
            {part.name: memory_file(part) for part in image.of_kind("extension")},
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)


def become(
    image: Loaded,
    first: str,
    inherited: Sequence[int],
    arguments: Mapping[str, object],
    *,
    files: Mapping[str, int],
) -> NoReturn:
    """In a process with one thread: becomes the image, and runs ``main(names, **arguments)`` of its module ``first``.

    Standard input has to be ``/dev/null``; standard output becomes that, too, and standard error stays.

    Args:
        image: what it becomes.
        first: import name.
        inherited: descriptors that stay open, at ``FIRST_INHERITED`` and the places behind it.
        arguments: written by ``repr``.
        files: path -> rights below it (``odp._system.sandbox.kernel``); no other file can be opened any more.
    """
    try:
        places = _arrange([*inherited, *image.descriptors])
        os.chdir("/")
        kernel.no_new_privileges()
        _close_files(files)
        loader, program, start, modules = places[len(inherited) : len(inherited) + 4]
        rest = places[len(inherited) + 4 :]
        libraries, extensions = rest[: len(image.libraries)], rest[len(image.libraries) :]
        numbered = dict(zip(image.extensions, extensions, strict=True))
        command = f"import {BOOTSTRAP} as b; b.main({modules}, {numbered!r}, {first!r}, {dict(arguments)!r})"
        preload = ":".join(map(_path, libraries))
        linker = ["ld.so", "--inhibit-cache", "--argv0", f"{_NOWHERE}/odp-enclave", "--library-path", _NOWHERE]
        os.execve(
            loader,
            [*linker, "--preload", preload, _path(program), *_PYTHON, "-c", command],
            {**_ENVIRONMENT, "PYTHONPATH": _path(start)},
        )
    except Exception as error:
        os.write(2, f"odp: a process could not start from its image: {error}\n".encode())
    finally:
        os._exit(127)


def _arrange(descriptors: Sequence[int]) -> list[int]:
    """Moves descriptors to ``FIRST_INHERITED`` and the places behind it, and closes all others but standard error."""
    floor = FIRST_INHERITED + len(descriptors)
    # Above every place first, so that none is overwritten by another.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, floor) for descriptor in descriptors]
    places = list(range(FIRST_INHERITED, floor))
    for source, place in zip(moved, places, strict=True):
        os.dup2(source, place, inheritable=True)
    os.dup2(0, 1)
    # Others are closed by exec; one of a program of another language might not be.
    os.closerange(floor, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_DESCRIPTORS))
    return places


def _close_files(allowed: Mapping[str, int]) -> None:
    try:
        kernel.landlock(allowed)
    except OSError as error:
        if error.errno not in _NO_LANDLOCK:
            raise
        # What loads into every process would run before anything else does.
        if _PRELOAD.exists() and _PRELOAD.read_bytes().strip():
            raise StateError(
                f"{_PRELOAD} loads libraries into every process, and without Landlock (Linux 5.13) no enclave can keep "
                f"them out ({error.strerror}): empty that file, or run services on a newer kernel"
            ) from None


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _memory_file() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.memfd_create(b"odp-image", _CLOEXEC | _ALLOW_SEALING | _EXEC)
    if descriptor < 0 and ctypes.get_errno() == errno.EINVAL:  # before Linux 6.3 all memory files can be executable
        descriptor = libc.memfd_create(b"odp-image", _CLOEXEC | _ALLOW_SEALING)
    if descriptor >= 0:
        return int(descriptor)
    reason = os.strerror(ctypes.get_errno())
    if ctypes.get_errno() in (errno.EMFILE, errno.ENFILE):
        raise StateError(f"no memory file for a part of an image ({reason}): raise the limit (`ulimit -n`)")
    if ctypes.get_errno() == errno.ENOMEM:
        raise StateError(f"no memory for the image of an enclave: {reason.lower()}")
    raise StateError(
        f"this system makes no executable memory file ({reason}), and enclaves run from nothing else: allow them "
        "(`sysctl vm.memfd_noexec=0`, and memfd_create in a container's system calls)"
    )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _seal(descriptor: int, mode: int) -> None:
    os.fchmod(descriptor, mode)
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)


@contextlib.contextmanager
def _no_memory() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or "error").lower()
        if error.errno in (errno.ENOMEM, errno.ENOSPC):
            raise StateError(f"no memory for the image of an enclave: {why}") from None
        raise StateError(f"cannot copy the image of an enclave into memory: {why}") from None

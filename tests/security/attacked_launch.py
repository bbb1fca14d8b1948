"""A program that launches or measures an enclave on a machine whose files are an attacker's; started by the tests.

It takes a request as JSON on its command line, changes what this process and its children see of the file system in a
mount namespace of their own, and prints an answer as JSON. Only root may do that.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from odp.errors import OdpError
from odp.trust.enclave import launcher, measurement
from odp.trust.enclave.launcher import LaunchedEnclave, launch
from odp.trust.enclave.policy import EnclavePolicy

POLICY = EnclavePolicy(role="aggregator", minimum_cohort=7).to_bytes()
NOBODY = 65534

_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    arguments = [value.encode() if value is not None else None for value in (source, target, kind)]
    if _LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: mount {target}")


def new_mount_namespace() -> None:
    """Of this process, which has to be root's."""
    if _LIBC.unshare(_NEW_MOUNTS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mount("none", "/", flags=_RECURSIVE | _PRIVATE)


def add_files(upper: str, target: str) -> None:
    """Shows the files of the folder ``upper`` inside of ``target``, in this mount namespace alone."""
    work = tempfile.mkdtemp(dir=Path(upper).parent)
    mount("overlay", target, "overlay", options=f"lowerdir={target},upperdir={upper},workdir={work}")


def open_the_way_to(path: Path) -> None:
    """Makes a folder reachable by every user that lies below one of root's, in this mount namespace alone."""
    closed = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
    if closed:
        shown = closed[0] / path.relative_to(closed[0]).parts[0]
        aside = tempfile.mkdtemp()
        mount(str(shown), aside, flags=_BIND | _RECURSIVE)
        mount("none", str(closed[0]), "tmpfs", options="mode=755")
        shown.mkdir()
        mount(aside, str(shown), flags=_BIND | _RECURSIVE)


class Observer(threading.Thread):
    """Looks at the platform and the enclave of this process from their start on, as another process could.

    Attributes:
        looks: role -> how often its image was looked at.
        faults: what an observer must not see.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.looks = {"platform": 0, "enclave": 0}
        self.faults: set[str] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        """Looks until ``end``."""
        while not self._ended.is_set():
            for platform in _children(os.getpid()):
                self._look("platform", platform)
                for enclave in _children(platform):
                    self._look("enclave", enclave)
            time.sleep(0.0005)

    def end(self) -> None:
        """Ends the looking."""
        self._ended.set()
        self.join()

    def _look(self, role: str, process: int) -> None:
        try:
            if os.geteuid() == 0:
                self._look_at_maps(role, process)
            else:
                self._open_memory(role, process)
        except (FileNotFoundError, ProcessLookupError):
            pass

    def _look_at_maps(self, role: str, process: int) -> None:
        if not _program(process).startswith("/memfd:"):
            return
        self.looks[role] += 1
        self.faults |= faults_of_maps(role, Path(f"/proc/{process}/maps").read_text())

    def _open_memory(self, role: str, process: int) -> None:
        try:
            program = _program(process)
            os.close(os.open(f"/proc/{process}/mem", os.O_RDONLY))
        except PermissionError:
            self.looks[role] += 1
            return
        # The platform is still the host's own program before it becomes its image.
        if role == "enclave" or program.startswith("/memfd:"):
            self.faults.add(f"{role}: memory of {program} was open")


def faults_of_maps(role: str, maps: str) -> set[str]:
    """What the maps of a process have that is neither of its image nor memory, or is writable and executable."""
    faults = set()
    for line in maps.splitlines():
        _, rights, _, _, _, *name = line.split(maxsplit=5)
        path = name[0].strip() if name else ""
        memory = path in ("", "[heap]", "[stack]", "[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")
        if not memory and path != "/memfd:odp-image (deleted)":
            faults.add(f"{role} maps {path}")
        if "w" in rights and "x" in rights:
            faults.add(f"{role} can write what it executes: {line}")
        if "x" in rights and memory and path not in ("[vdso]", "[vsyscall]"):
            faults.add(f"{role} executes memory that is no file: {line}")
    return faults


def _program(process: int) -> str:
    return str(Path(f"/proc/{process}/exe").readlink())


def _children(process: int) -> list[int]:
    numbers = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            numbers += [int(number) for number in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return numbers


def _shipped(request: dict[str, Any]) -> dict[str, Path]:
    if "images" not in request:
        return {}
    measurement.FILES = {**measurement.FILES, request["entry"]: "enclave.image"}  # type: ignore[misc]  # a test's own
    return {"images": Path(request["images"])}


def _described(enclave: LaunchedEnclave, observer: Observer | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"digest": enclave.image_digest, "refused": enclave.refused}
    if observer is not None:
        if os.geteuid() == 0:
            for role, process in zip(("platform", "enclave"), enclave.processes, strict=True):
                observer.faults |= faults_of_maps(role, Path(f"/proc/{process}/maps").read_text())
        observer.end()
        answer |= {"looks": observer.looks, "faults": sorted(observer.faults)}
    return answer


def main() -> None:
    """Answers one request."""
    request = json.loads(sys.argv[1])
    if request.get("files") or request.get("binds") or request.get("user"):
        try:
            new_mount_namespace()
            for upper, target in request.get("files", ()):
                add_files(upper, target)
            for source, target in request.get("binds", ()):
                mount(source, target, flags=_BIND)
            if request.get("user"):
                open_the_way_to(Path(sys.executable).resolve())
        except OSError as error:
            print(json.dumps({"not allowed": str(error)}))  # noqa: T201  # the answer
            return
    if request.get("user"):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    os.environ.update(request.get("environment", {}))
    if "platform" in request:
        launcher._PLATFORM = ("-P", "-c", request["platform"])
    observer = Observer() if request.get("observe") else None
    if observer is not None:
        observer.start()
    try:
        if request.get("measure"):
            answer: dict[str, Any] = {"digest": measurement.measure(request["entry"]).digest}
        else:
            folder = Path(request["folder"]) / "chip"
            with launch(platform_folder=folder, entry=request["entry"], policy=POLICY, **_shipped(request)) as enclave:
                answer = _described(enclave, observer)
    except OdpError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))  # noqa: T201  # the answer


if __name__ == "__main__":
    main()

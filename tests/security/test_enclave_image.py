"""Attacks on what an enclave and its platform run: files beside the real interpreter, changed files, open memory.

Each attack that changes files takes place in a mount namespace of its own. Code that an attack brings into a process
writes the process's number and program, and nothing of it may come from a process that runs an image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odp.trust.enclave import launcher
from odp.trust.enclave.image.built import built, image_of
from odp.trust.enclave.launcher import launch
from odp.trust.enclave.measurement import PLATFORM_ENTRY
from odp.trust.enclave.policy import EnclavePolicy

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("attacked_launch.py")
#: Its image has numpy and its library of linear algebra.
ENTRY = "hostile_enclave.computing"
PROBE = "odp.trust.enclave.probe"
POLICY = EnclavePolicy(role="aggregator", minimum_cohort=7).to_bytes()
CODE = Path(__file__).parents[1] / "trust" / "enclave" / "images"
SECONDS = 300.0
NOBODY = 65534

MARKER = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void) {
    char program[256] = {0};
    readlink("/proc/self/exe", program, sizeof program - 1);
    int file = open(MARKS, O_WRONLY | O_APPEND | O_CREAT, 0666);
    dprintf(file < 0 ? 2 : file, "MARKER %d %s\\n", getpid(), program);
}
"""
MODULE = """
import os
_line = f"MARKER {{os.getpid()}} {{os.readlink('/proc/self/exe')}}\\n".encode()
try:
    _file = os.open({marks!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
except OSError:
    _file = 2
os.write(_file, _line)
"""


class Attack:
    """A folder for an attack's files, which processes see elsewhere.

    Attributes:
        folder: its files.
        marks: where its code writes that it ran.
        errors: what the last run wrote to its standard error.
        request: of ``attacked_launch``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.errors = ""
        self.request: dict[str, Any] = {"folder": str(folder), "environment": {}, "files": [], "binds": []}

    def beside(self, target: Path) -> Path:
        """A folder whose files appear in the folder ``target``."""
        upper = self.folder / f"upper{len(self.request['files'])}"
        upper.mkdir()
        self.request["files"].append((str(upper), str(target)))
        return upper

    def marker(self, path: Path, *options: str) -> None:
        """Compiles a shared object that marks where it is loaded."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is installed to make an attacker's library")
        source = self.folder / "marker.c"
        source.write_text(MARKER)
        command = [compiler, "-shared", "-fPIC", f'-DMARKS="{self.marks}"', "-o", str(path), str(source), *options]
        subprocess.run(command, check=True, capture_output=True)

    def standard_library(self, folder: Path) -> None:
        """A standard library of links to the real one, whose first module marks that it ran."""
        real = Path(sysconfig.get_path("stdlib"))
        folder.mkdir(parents=True)
        for path in real.iterdir():
            if path.name not in ("encodings", "site-packages", "__pycache__"):
                (folder / path.name).symlink_to(path)
        shutil.copytree(real / "encodings", folder / "encodings", ignore=shutil.ignore_patterns("__pycache__"))
        self.mark_module(folder / "encodings" / "__init__.py")

    def mark_module(self, path: Path) -> None:
        """Adds to a module that it marks that it ran."""
        path.write_text(path.read_text() + MODULE.format(marks=str(self.marks)))

    def run(self, **changes: Any) -> dict[str, Any]:
        """The answer of a process that sees the attack's files; whatever ran inside of an image fails the test."""
        request = json.dumps({"entry": ENTRY, **self.request, **changes})
        done = subprocess.run(
            [sys.executable, str(PROGRAM), request], capture_output=True, text=True, timeout=SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CODE), *sys.path])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.errors = done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        if "not allowed" in answer:
            pytest.skip(f"a mount namespace is not allowed here: {answer['not allowed']}")
        assert "\n" not in answer.get("error", "")
        lines = [*done.stderr.splitlines(), *(self.marks.read_text().splitlines() if self.marks.exists() else [])]
        marks = {line.split(" ", 2)[2] for line in lines if line.startswith("MARKER 1 ") or "/memfd:" in line}
        assert not marks, f"the attacker's code ran inside of {marks}"
        return answer

    @property
    def ran(self) -> bool:
        """Whether the attack's code ran in any process: if not, the attack shows nothing."""
        return self.marks.exists()


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount an attacker's files beside the real ones")
    return Attack(tmp_path)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of images that were built before any attack."""
    if sys.platform != "linux":
        pytest.skip("enclave processes need Linux")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(CODE))
        folder = tmp_path_factory.mktemp("images")
        (folder / "enclave.image").symlink_to(built(ENTRY))
        (folder / "platform.image").symlink_to(built(PLATFORM_ENTRY))
        yield folder


@pytest.fixture
def clean(images: Path) -> str:
    """The digest of the enclave's image."""
    return image_of(images / "enclave.image").digest


# Files beside the real interpreter and the real libraries.


def faster_library(attack: Attack) -> None:
    """A variant of numpy's linear algebra for newer processors, which every dynamic loader prefers."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    real = next(folder.glob("libscipy_openblas64_-*.so"))
    variant = attack.beside(folder) / "glibc-hwcaps" / "x86-64-v3"
    variant.mkdir(parents=True)
    copied = variant / real.name.replace("libscipy", "libreal1", 1)
    copied.write_bytes(real.read_bytes().replace(b"libscipy_openblas64_-", b"libreal1_openblas64_-"))
    attack.marker(variant / real.name, f"-L{variant}", "-Wl,--no-as-needed", f"-l:{copied.name}", "-Wl,-rpath,$ORIGIN",
                  f"-Wl,-rpath-link,{folder}")  # fmt: skip


def zip_beside_the_standard_library(attack: Attack) -> None:
    """``lib/python311.zip``, from which every Python imports first."""
    real = Path(sysconfig.get_path("stdlib"))
    folder = attack.folder / "encodings"
    shutil.copytree(real / "encodings", folder, ignore=shutil.ignore_patterns("__pycache__"))
    attack.mark_module(folder / "__init__.py")
    name = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    with zipfile.ZipFile(attack.beside(real.parent) / name, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"encodings/{path.name}")


def configuration_of_the_interpreter(attack: Attack) -> None:
    """``pyvenv.cfg`` beside the base interpreter, which names another standard library."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    attack.standard_library(attack.folder / "home" / "lib" / version)
    (attack.folder / "home" / "bin").mkdir()
    beside = attack.beside(Path(sys.executable).resolve().parent)
    (beside / "pyvenv.cfg").write_text(f"home = {attack.folder}/home/bin\n")


def preloaded_library(attack: Attack) -> None:
    """``/etc/ld.so.preload``, which the dynamic loader of every program obeys."""
    attack.marker(attack.folder / "preload.so")
    (attack.beside(Path("/etc")) / "ld.so.preload").write_text(f"{attack.folder}/preload.so\n")


def preloaded_by_the_environment(attack: Attack) -> None:
    """The environment of the host, which its dynamic loader and its Python obey."""
    attack.marker(attack.folder / "preload.so")
    attack.request["environment"] = {"LD_PRELOAD": str(attack.folder / "preload.so")}


def provider_of_openssl(attack: Attack) -> None:
    """A configuration where the OpenSSL of ``cryptography`` looks for one, and in the host's environment."""
    attack.marker(attack.folder / "provider.so")
    folder = attack.beside(Path("/opt")) / "pyca" / "cryptography" / "openssl"
    folder.mkdir(parents=True)
    (folder / "openssl.cnf").write_text(
        "openssl_conf = a\n[a]\nproviders = b\n[b]\ndefault = c\nmarker = d\n[c]\nactivate = 1\n"
        f"[d]\nmodule = {attack.folder}/provider.so\nactivate = 1\n"
    )
    attack.request["environment"] = {"OPENSSL_CONF": "/opt/pyca/cryptography/openssl/openssl.cnf"}


#: Attack -> why no image is built, if none is; and the process that its code reaches where images are built or started.
BESIDE: list[tuple[Callable[[Attack], None], str, str]] = [
    (faster_library, "no library of an enclave installed it", "builder"),
    (zip_beside_the_standard_library, "no library of an enclave installed it", "builder"),
    (configuration_of_the_interpreter, "no library of an enclave installed it", "builder"),
    (preloaded_library, "", "builder"),
    (preloaded_by_the_environment, "", "host"),
    (provider_of_openssl, "", "builder"),
]
NAMES = [bring.__name__ for bring, *_ in BESIDE]


@pytest.mark.parametrize(("bring", "refusal", "reached"), BESIDE, ids=NAMES)
def test_r440_files_beside_the_real_ones_are_loaded_by_no_enclave_and_no_platform(
    attack: Attack, images: Path, clean: str, bring: Callable[[Attack], None], refusal: str, reached: str
) -> None:
    bring(attack)
    answer = attack.run(images=str(images))
    assert attack.ran or reached == "builder", "the attack's code ran nowhere: it is no attack"
    assert answer.get("digest") == clean, answer


#: The platform process as the host runs it, on a kernel that can close no files.
WITHOUT_LANDLOCK = """
import sys
from odp.trust.enclave import platform_process
from odp._system.sandbox import kernel
def refuse(*_):
    raise OSError(38, "Function not implemented")
kernel.landlock = refuse
control, channel, image = map(int, sys.argv[1:4])
platform_process.main(names=(), control=control, channel=channel, image=image)
"""


@pytest.mark.parametrize(("bring", "refusal", "reached"), BESIDE, ids=NAMES)
def test_r440_without_landlock_they_are_loaded_by_no_enclave_either(
    attack: Attack, images: Path, clean: str, bring: Callable[[Attack], None], refusal: str, reached: str
) -> None:
    bring(attack)
    answer = attack.run(images=str(images), platform=WITHOUT_LANDLOCK)
    if bring is preloaded_library:
        assert "ended while it started" in answer.get("error", ""), answer
        assert "/etc/ld.so.preload loads libraries into every process" in attack.errors
    else:
        assert answer.get("digest") == clean, answer
        assert "landlock-no-files" in answer["refused"]


@pytest.mark.parametrize(("bring", "refusal", "reached"), BESIDE, ids=NAMES)
def test_r441_files_beside_the_real_ones_are_part_of_no_image_with_the_clean_digest(
    attack: Attack, images: Path, clean: str, bring: Callable[[Attack], None], refusal: str, reached: str
) -> None:
    bring(attack)
    cache = {"XDG_CACHE_HOME": str(attack.folder / "cache")}
    answer = attack.run(measure=True, environment={**attack.request["environment"], **cache})
    assert attack.ran or reached == "host", "the attack's code ran nowhere: it is no attack"
    if refusal:
        assert refusal in answer.get("error", ""), answer
    else:
        assert answer.get("digest") == clean, answer


SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libz.so.1")


def test_r441_changed_libraries_of_the_system_change_the_digest_and_reach_no_image_that_was_built_before(
    attack: Attack, images: Path, clean: str
) -> None:
    files = json.loads((images / "enclave.image").resolve().with_suffix(".json").read_text())
    changed = [Path(file) for file in files if Path(file).name in SYSTEM_LIBRARIES]
    assert len(changed) >= 2
    for path in changed:
        copy = attack.folder / path.name
        copy.write_bytes(path.read_bytes() + b"changed")
        copy.chmod(0o755)
        attack.request["binds"].append((str(copy), str(path)))
    assert attack.run(images=str(images)).get("digest") == clean
    measured = attack.run(measure=True, environment={"XDG_CACHE_HOME": str(attack.folder / "cache")})
    assert measured["digest"] != clean


# Open memory, and memory that is not the image's.


def test_r440_from_their_first_instruction_on_enclave_and_platform_map_their_images_alone(
    attack: Attack, images: Path, clean: str
) -> None:
    answer = attack.run(observe=True)
    assert answer["faults"] == []
    assert min(answer["looks"].values()) > 0, answer


def test_r440_a_user_without_rights_builds_and_starts_the_same_image_and_cannot_open_its_memory(
    attack: Attack, images: Path, clean: str
) -> None:
    # Folders of pytest are closed to other users.
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, NOBODY, NOBODY)
        environment = {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache"}
        answer = attack.run(user=True, observe=True, folder=home, environment=environment)
    assert answer.get("digest") == clean, answer
    assert answer["faults"] == []
    assert min(answer["looks"].values()) > 0, answer
    assert "not-dumpable" not in answer["refused"]


# A debugger that attached before the platform became its image.

#: The platform process, which waits for its debugger before its first line.
WAITS = """
import time
from pathlib import Path
from odp.trust.enclave.platform_start import main
while "TracerPid:\\t0\\n" in Path("/proc/self/status").read_text():
    time.sleep(0.01)
main()
"""
#: Attaches to a process, follows all that it starts, and prints each process that it can stop; ends with the first.
DEBUGGER = """
import ctypes, os, sys
SEIZE, CONTINUE, FOLLOW, ALL = 0x4206, 7, 0x2 | 0x4 | 0x8 | 0x10, 0x40000000
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
platform = int(sys.argv[1])
if ptrace(SEIZE, platform, None, FOLLOW) != 0:
    sys.exit("not allowed")
process, status = platform, 0
while True:
    process, status = os.waitpid(-1, ALL)
    if os.WIFSTOPPED(status):
        print(process, flush=True)
        event, number = status >> 16, os.WSTOPSIG(status)
        ptrace(CONTINUE, process, None, 0 if event or number in (5, 19) else number)
    elif process == platform:
        break
"""


def test_r440_a_debugger_that_follows_the_platform_from_before_its_start_does_not_get_the_enclave(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debuggers: list[subprocess.Popen[str]] = []

    def start(*arguments: Any) -> subprocess.Popen[bytes]:
        platform = start_platform(*arguments)
        command = [sys.executable, "-c", DEBUGGER, str(platform.pid)]
        debuggers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return platform

    start_platform = launcher._start_platform
    monkeypatch.setattr(launcher, "_start_platform", start)
    monkeypatch.setattr(launcher, "_PLATFORM", ("-P", "-c", WAITS))
    with launch(platform_folder=tmp_path / "chip", entry=PROBE, policy=POLICY) as enclave:
        status = Path(f"/proc/{enclave.pid}/status").read_text()
        processes = enclave.processes
    (debugger,) = debuggers
    followed, error = debugger.communicate(timeout=SECONDS)
    assert str(processes[0]) in followed.split(), f"the debugger did not attach: {error}"
    assert str(processes[1]) not in followed.split()
    assert "TracerPid:\t0\n" in status

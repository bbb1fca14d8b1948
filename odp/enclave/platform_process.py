"""The platform as a process: it emulates the CPU below one enclave. Started by ``odp.enclave.launcher``.

It opens the emulated chip, measures the image that it was asked to launch, starts the enclave process from what it
measured, and then answers the enclave's calls (``odp.enclave.guest_socket``) until one of the three ends:

- the enclave ends: its socket closes, and the platform ends;
- the host ends: the control socket closes, the platform kills the enclave and ends;
- the platform ends: the kernel kills the enclave, and its channel to the host closes.

So no process outlives another. The enclave gets two sockets and no environment of its caller, and where the kernel
allows it, starts in namespaces of its own. It never states its own measurement: only the platform does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from odp.enclave import sandbox
from odp.enclave.guest_socket import CALL_SECONDS, MOST_AT_ONCE, error_frame
from odp.enclave.measurement import (
    UNMEASURED_STANDARD,
    Measurement,
    measure,
    package_folder,
    packages_of,
    standard_library,
)
from odp.enclave.platform import EmulatedGuest, EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError, DiskFailed, OdpError, StateError
from odp.sandbox import namespaces
from odp.sandbox.frames import receive_frame, send_frame
from odp.sandbox.kernel import end_with_parent
from odp.transport.durability import Health

#: Time limit of an enclave's imports, warm-up and compilation, in seconds.
START_SECONDS = 180.0

_CHANNEL, _PLATFORM = 3, 4
_PYTHON = ("-I", "-S", "-B", "-X", "utf8")
# Many small products: threads of BLAS that wait for each other cost more than they do.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_CLONE = {"x86_64": 56, "aarch64": 220}
_LARGEST_RESTRICTIONS = 32
_LONGEST_REASON = 1000


class PlatformProcess:
    """One launch, from measurement to end.

    Args:
        control: socket to the host; takes one request, and ends the launch when it closes.
        channel: the enclave's end of its socket to the host.
    """

    def __init__(self, control: socket.socket, channel: socket.socket) -> None:
        self._control = control
        self._channel = channel
        self._guest: EmulatedGuest | None = None
        self._image: dict[str, object] = {}
        self._digest: dict[str, object] = {}
        self._enclave = 0
        self._running = False

    def run(self) -> None:
        """Launches the enclave and serves it; returns after the end of the enclave."""
        try:
            platform_end, health = self._launch()
        except OdpError as error:
            with contextlib.suppress(OSError):
                send_frame(self._control, error_frame(error))
            return
        try:
            self._serve(platform_end, health)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._enclave, signal.SIGKILL)
            os.waitpid(self._enclave, 0)

    def _launch(self) -> tuple[socket.socket, Health]:
        request = receive_frame(self._control)
        if request is None:
            raise StateError("the host ended")
        entry, policy, debug = str(request["entry"]), bytes.fromhex(request["policy"]), bool(request["debug"])
        packages = tuple(request["packages"]) or packages_of(entry)
        role = EnclavePolicy.from_bytes(policy).role
        platform = EmulatedPlatform.open(Path(request["platform_folder"]))
        measured = measure(entry, packages)
        self._guest = platform.launch(image_digest=measured.digest, policy=policy, name=role, debug=debug)
        self._image = _image(entry, packages, measured, debug=debug)
        self._digest = {"image_digest": measured.digest, "components": dict(measured.components)}
        ours, theirs = socket.socketpair()
        with theirs, self._channel:
            self._enclave = _start(self._channel.fileno(), theirs.fileno())
        return ours, platform.health

    def _serve(self, connection: socket.socket, health: Health) -> None:
        # An enclave that stops reading must not keep its platform from noticing that the host is gone.
        connection.settimeout(CALL_SECONDS)
        waiting = select.poll()
        for watched in (self._control, connection):
            waiting.register(watched, select.POLLIN | select.POLLHUP)
        while True:
            events = waiting.poll(None if self._running else START_SECONDS * 1000)
            if not events:
                self._tell_host(error_frame(StateError(f"the enclave did not start within {START_SECONDS:.0f} s")))
                return
            if any(descriptor == self._control.fileno() for descriptor, _ in events):
                return  # the host sends nothing after its request: this is its end
            try:
                call = receive_frame(connection)
                if call is None:
                    self._tell_host(error_frame(StateError("the enclave ended while it started")))
                    return
                send_frame(connection, self._answer(call))
                health.require()
            except DiskFailed as error:
                print(f"odp: the platform ends: {error}", file=sys.stderr, flush=True)  # noqa: T201  # the host's log
                return
            except (OSError, ConfigurationError):
                return  # not a call: whatever the enclave has become, it gets nothing more

    def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        calls: Mapping[str, Callable[[dict[str, Any]], object]] = {
            "image": self._loading,
            "launched": lambda _: {"policy": self._launched.policy.hex(), "image_digest": self._launched.image_digest},
            "bind_keys": self._bind_keys,
            "evidence": self._evidence,
            "sealing_key": lambda _: self._launched.sealing_key().hex(),
            "counter_value": lambda given: self._launched.counter(_text(given, "name")).value,
            "counter_advance": self._advance,
            "slot_create": lambda given: self._launched.slots.create(_text(given, "name")).hex(),
            "slot_read": lambda given: (self._launched.slots.read(_text(given, "name")) or b"").hex(),
            "slots_erase": lambda given: self._launched.slots.erase(_strings(given.get("names"), most=MOST_AT_ONCE)),
            "extend": lambda given: self._launched.extend(_text(given, "event")),
            "ready": self._ready,
            "failed": self._failed,
        }
        try:
            wanted = calls.get(_text(call, "call"))
            if wanted is None:
                raise ConfigurationError("Expected a call that a platform knows")
            return {"ok": wanted(call)}
        except OdpError as error:
            return error_frame(error)

    @property
    def _launched(self) -> EmulatedGuest:
        if self._guest is None:
            raise StateError("nothing was launched")
        return self._guest

    def _loading(self, _: dict[str, Any]) -> object:
        """The image to import from, once. At this time the process runs the loader, and its namespaces are visible."""
        image, self._image = self._image, {}
        if not image:
            raise StateError("the image was read before")
        held = namespaces.apart(self._enclave)
        self._record(held, [name for name in sandbox.NAMESPACES if name not in held])
        return image

    def _record(self, held: Sequence[str], refused: Sequence[str]) -> None:
        for word, names in (("held", held), ("refused", refused)):
            for name in names:
                self._launched.extend_register("sandbox", f"{word} {name}")
            self._digest[word] = [*_strings(self._digest.get(word, [])), *names]

    def _ready(self, given: dict[str, Any]) -> None:
        if self._running:
            raise StateError("the enclave reported before that it runs")
        held, refused = _strings(given.get("held")), _strings(given.get("refused"))
        # The enclave cannot report what only the platform knows.
        allowed = {*sandbox.BEFORE_IMPORTS, *sandbox.BEFORE_RUN}
        if len({*held, *refused}) != len(held) + len(refused) or not allowed.issuperset((*held, *refused)):
            raise ConfigurationError("Expected each restriction of an enclave once")
        self._record(held, refused)
        self._running = True
        self._tell_host({"ok": {**self._digest, "pid": self._enclave}})

    def _failed(self, given: dict[str, Any]) -> None:
        # One line, whatever the enclave sends.
        message = "".join(
            letter if letter.isprintable() else "?" for letter in _text(given, "message")[:_LONGEST_REASON]
        )
        if self._running:
            print(f"odp: the enclave ended: {message}", file=sys.stderr, flush=True)  # noqa: T201  # the host's log
        else:
            self._tell_host(error_frame(StateError(f"the enclave did not start: {message}")))

    def _tell_host(self, message: object) -> None:
        with contextlib.suppress(OSError):
            send_frame(self._control, message)

    def _bind_keys(self, given: dict[str, Any]) -> None:
        hpke_public, signing_public = (_bytes(given, name) for name in ("hpke_public", "signing_public"))
        self._launched.bind_keys(hpke_public=hpke_public, signing_public=signing_public)

    def _evidence(self, given: dict[str, Any]) -> dict[str, str]:
        found = self._launched.evidence(_bytes(given, "nonce"))
        return {"token": found.token, "event_log": found.event_log.decode("ascii")}

    def _advance(self, given: dict[str, Any]) -> None:
        counter = self._launched.counter(_text(given, "name"))
        counter.advance(expected=given.get("expected", -1), to=given.get("to", -1))


def _image(entry: str, packages: Sequence[str], measured: Measurement, *, debug: bool) -> dict[str, object]:
    library = standard_library()
    return {
        "entry": entry,
        "packages": {name: str(package_folder(name)) for name in packages},
        "standard": [str(library), str(Path(sysconfig.get_path("stdlib")) / "lib-dynload")],
        "unmeasured_standard": sorted(UNMEASURED_STANDARD),
        "folders": list(measured.dependencies.folders),
        "files": list(measured.dependencies.files),
        "debug": debug,
    }


def _start(channel: int, platform: int) -> int:
    """Starts the enclave process in as many new namespaces as the kernel allows; returns its process id."""
    binary = str(Path(sys.executable).resolve())
    program = [binary, *_PYTHON, str(package_folder("odp") / "enclave" / "loader.py"), str(_CHANNEL), str(_PLATFORM)]
    for names in namespaces.ATTEMPTS:
        flags = namespaces.flags_of(names)
        process = _clone(flags) if flags else os.fork()
        if process == 0:
            _become(program, channel, platform)
        if process > 0:
            return process
    raise StateError("the enclave process could not be started")


def _clone(flags: int) -> int:
    """Forks with new namespaces: the process id, 0 in the child, or -1 if the kernel refuses."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _CLONE:
        return -1
    # Unlike CDLL, PyDLL keeps the interpreter's lock over the call: the child then has it too. One thread runs here.
    return int(ctypes.PyDLL(None).syscall(_CLONE[machine], ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0))


def _become(program: Sequence[str], channel: int, platform: int) -> None:
    """In the new process: keeps two sockets and stderr, and becomes the enclave. Never returns."""
    try:
        end_with_parent()
        # Out of the way first, so that neither is overwritten by the other.
        for source, place in [(os.dup(fd), place) for fd, place in ((channel, _CHANNEL), (platform, _PLATFORM))]:
            moved = source if source > _PLATFORM else os.dup(source)
            os.dup2(moved, place, inheritable=True)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)
        os.closerange(_PLATFORM + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.execve(program[0], list(program), _ENVIRONMENT)
    finally:
        os._exit(127)


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(f"Expected {name} to be text")
    return value


def _bytes(given: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(_text(given, name))
    except ValueError:
        raise ConfigurationError(f"Expected {name} to be hex") from None


def _strings(value: object, *, most: int = _LARGEST_RESTRICTIONS) -> list[str]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"Expected a list of at most {most} names")
    return list(value)


def main() -> None:
    """``python -m odp.enclave.platform_process <control> <channel>``: two inherited sockets, by descriptor."""
    control, channel = (socket.socket(fileno=int(argument)) for argument in sys.argv[1:3])
    # The chip's secrets are in this process: it is as closed to debuggers as an enclave.
    sandbox.before_platform()
    PlatformProcess(control, channel).run()


if __name__ == "__main__":
    main()

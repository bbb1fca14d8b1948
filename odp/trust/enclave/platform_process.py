"""The platform as a process: it emulates the CPU below one enclave. Started by ``odp.trust.enclave.launcher``.

It opens the emulated chip, measures the image that it was asked to launch, starts the enclave process from what it
measured, and then answers the enclave's calls (``odp.trust.enclave.guest_socket``) until one of the three ends:

- the enclave ends: its socket closes, and the platform ends;
- the host ends: the control socket closes, the platform kills the enclave and ends;
- the platform ends: the kernel kills the enclave, and its channel to the host closes.

So no process outlives another. The enclave gets two sockets and no environment of its caller, and where the kernel
allows it, starts in namespaces of its own. It never states its own measurement: only the platform does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from odp._system.files.durability import Health
from odp._system.sandbox import kernel
from odp._system.sandbox.frames import receive_frame, send_frame
from odp._system.sandbox.kernel import end_with_parent
from odp.crypto import late_imports
from odp.errors import ConfigurationError, DiskFailed, OdpError, StateError
from odp.trust.enclave import sandbox
from odp.trust.enclave.guest_socket import CALL_SECONDS, MOST_AT_ONCE, error_frame
from odp.trust.enclave.image.parts import ImageFile
from odp.trust.enclave.image.running import FIRST_INHERITED, Loaded, become, loaded
from odp.trust.enclave.platform import EmulatedGuest, EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy

#: Time limit of an enclave's imports, in seconds.
START_SECONDS = 180.0

_CHANNEL, _PLATFORM = FIRST_INHERITED, FIRST_INHERITED + 1
_CLONE = {"x86_64": 56, "aarch64": 220}
#: Of clone(2): a debugger that follows the platform's children does not get this one.
_UNTRACED = 0x00800000
_LARGEST_RESTRICTIONS = 32
_LONGEST_REASON = 1000


class PlatformProcess:
    """One launch, from measurement to end.

    Args:
        control: socket to the host; takes one request, and ends the launch when it closes.
        channel: the enclave's end of its socket to the host.
        image: descriptor of the file of the enclave's image.
    """

    def __init__(self, control: socket.socket, channel: socket.socket, image: int) -> None:
        self._control, self._channel, self._image = control, channel, image
        self._guest: EmulatedGuest | None = None
        self._report: dict[str, object] = {}
        self._enclave = 0
        self._running = False

    def run(self) -> None:
        """Launches the enclave and serves it; returns after the end of the enclave."""
        try:
            platform_end, health = self._launch()
        except (OdpError, OSError) as error:
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
        if (request := receive_frame(self._control)) is None:
            raise StateError("the host ended")
        policy, debug = bytes.fromhex(request["policy"]), bool(request["debug"])
        role = EnclavePolicy.from_bytes(policy).role
        platform = EmulatedPlatform.open(Path(request["platform_folder"]))
        file = ImageFile(self._image)
        file.image.require_entry(request["entry"])
        self._guest = platform.launch(image_digest=file.image.digest, policy=policy, name=role, debug=debug)
        self._report = {"image_digest": file.image.digest, "components": file.image.components}
        ours, theirs = socket.socketpair()
        with theirs, self._channel, loaded(file) as image:
            self._enclave, held = _start(image, file.image.entry, self._channel, theirs, debug=debug)
        os.close(self._image)
        self._record(held, [name for name in sandbox.NAMESPACES if name not in held])
        return ours, platform.health

    def _serve(self, connection: socket.socket, health: Health) -> None:
        # An enclave that stops reading must not keep its platform from noticing that the host is gone.
        connection.settimeout(CALL_SECONDS)
        waiting = select.poll()
        for watched in (self._control, connection):
            waiting.register(watched, select.POLLIN | select.POLLHUP)
        while True:
            if not (events := waiting.poll(None if self._running else START_SECONDS * 1000)):
                self._tell_host(error_frame(StateError(f"the enclave did not start within {START_SECONDS:.0f} s")))
                return
            if any(descriptor == self._control.fileno() for descriptor, _ in events):
                return  # the host sends nothing after its request: this is its end
            try:
                if (call := receive_frame(connection)) is None:
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
            "launched": lambda _: {"policy": self._launched.policy.hex(), "image_digest": self._launched.image_digest},
            "bind_keys": self._bind_keys,
            "evidence": self._evidence,
            "sealing_key": lambda _: self._launched.sealing_key().hex(),
            "counter_value": lambda call: self._launched.counter(_text(call, "name")).value,
            "counter_advance": self._advance,
            "slot_create": lambda call: self._launched.slots.create(_text(call, "name")).hex(),
            "slot_read": lambda call: (self._launched.slots.read(_text(call, "name")) or b"").hex(),
            "slots_erase": lambda call: self._launched.slots.erase(_strings(call.get("names"), most=MOST_AT_ONCE)),
            "extend": lambda call: self._launched.extend(_text(call, "event")),
            "ready": self._ready,
            "failed": self._failed,
        }
        try:
            if (wanted := calls.get(_text(call, "call"))) is None:
                raise ConfigurationError("Expected a call that a platform knows")
            return {"ok": wanted(call)}
        except OdpError as error:
            return error_frame(error)

    @property
    def _launched(self) -> EmulatedGuest:
        if self._guest is None:
            raise StateError("nothing was launched")
        return self._guest

    def _record(self, held: Sequence[str], refused: Sequence[str]) -> None:
        for word, names in (("held", held), ("refused", refused)):
            for name in names:
                self._launched.extend_register("sandbox", f"{word} {name}")
            self._report[word] = [*_strings(self._report.get(word, [])), *names]

    def _ready(self, call: dict[str, Any]) -> None:
        if self._running:
            raise StateError("the enclave reported before that it runs")
        held, refused = _strings(call.get("held")), _strings(call.get("refused"))
        # The enclave cannot report what only the platform knows.
        allowed = {*sandbox.BEFORE_IMPORTS, *sandbox.BEFORE_RUN}
        if len({*held, *refused}) != len(held) + len(refused) or not allowed.issuperset((*held, *refused)):
            raise ConfigurationError("Expected each restriction of an enclave once")
        self._record(held, refused)
        self._running = True
        self._tell_host({"ok": {**self._report, "pid": self._enclave}})

    def _failed(self, call: dict[str, Any]) -> None:
        # One line, whatever the enclave sends.
        message = "".join(
            letter if letter.isprintable() else "?" for letter in _text(call, "message")[:_LONGEST_REASON]
        )
        if self._running:
            print(f"odp: the enclave ended: {message}", file=sys.stderr, flush=True)  # noqa: T201  # the host's log
        else:
            self._tell_host(error_frame(StateError(f"the enclave did not start: {message}")))

    def _tell_host(self, message: object) -> None:
        with contextlib.suppress(OSError):
            send_frame(self._control, message)

    def _bind_keys(self, call: dict[str, Any]) -> None:
        hpke_public, signing_public = (_bytes(call, name) for name in ("hpke_public", "signing_public"))
        self._launched.bind_keys(hpke_public=hpke_public, signing_public=signing_public)

    def _evidence(self, call: dict[str, Any]) -> dict[str, str]:
        evidence = self._launched.evidence(_bytes(call, "nonce"))
        return {"token": evidence.token, "event_log": evidence.event_log.decode("ascii")}

    def _advance(self, call: dict[str, Any]) -> None:
        counter = self._launched.counter(_text(call, "name"))
        counter.advance(expected=call.get("expected", -1), to=call.get("to", -1))


def _start(
    image: Loaded, entry: str, channel: socket.socket, platform: socket.socket, *, debug: bool
) -> tuple[int, list[str]]:
    """Starts the enclave in as many new namespaces as the kernel allows: its process id, and those that it has."""
    arguments = {"entry": entry, "channel": _CHANNEL, "platform": _PLATFORM, "debug": debug}
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as report, os.fdopen(writing, "wb", buffering=0) as reporting:
        outside = kernel.links()
        for names in kernel.ATTEMPTS:
            flags = kernel.flags_of(names)
            if (process := _clone(flags)) == 0:
                end_with_parent()
                # Still this program: the enclave cannot report what only the platform knows.
                reporting.write((" ".join(kernel.apart(outside)) + "\n").encode())
                become(image, "odp.trust.enclave.boot", (channel.fileno(), platform.fileno()), arguments, files={})
            if process > 0:
                reporting.close()
                return process, report.readline().decode().split()
    raise StateError(f"the enclave process could not be started: {os.strerror(ctypes.get_errno()).lower()}")


def _clone(flags: int) -> int:
    """Forks with new namespaces: the process id, 0 in the child, or -1 and ``ctypes.get_errno`` if it is refused."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _CLONE:
        return -1 if flags else os.fork()
    # Unlike CDLL, PyDLL keeps the interpreter's lock over the call: the child then has it too. One thread runs here.
    libc = ctypes.PyDLL(None, use_errno=True)
    return int(libc.syscall(_CLONE[machine], ctypes.c_ulong(flags | _UNTRACED | signal.SIGCHLD), 0, 0, 0, 0))


def _text(call: dict[str, Any], name: str) -> str:
    value = call.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(f"Expected {name} to be text")
    return value


def _bytes(call: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(_text(call, name))
    except ValueError:
        raise ConfigurationError(f"Expected {name} to be hex") from None


def _strings(value: object, *, most: int = _LARGEST_RESTRICTIONS) -> list[str]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"Expected a list of at most {most} names")
    return list(value)


def warm_up() -> None:
    """Imports what is imported late, as an enclave's entry module does (``odp.trust.enclave.boot``)."""
    late_imports.load()


def main(*, names: Sequence[str], control: int, channel: int, image: int) -> None:
    """Serves one launch between two sockets (descriptors); see ``odp.trust.enclave.platform_start``."""
    # The chip's secrets are in this process: it is as closed to debuggers as an enclave.
    sandbox.before_platform()
    for name in names:
        importlib.import_module(name)
    kernel.close_all_but({control, channel, image}, keep_standard=True)
    PlatformProcess(socket.socket(fileno=control), socket.socket(fileno=channel), image).run()

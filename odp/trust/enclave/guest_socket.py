"""The guest of an enclave process: calls to its platform over one inherited socket.

A call and its answer are one frame each: four bytes of length, big-endian, then a JSON object; byte strings travel as
hex. An answer is ``{"ok": ..}`` or ``{"error": [kind, message]}``. The platform answers one call at a time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Sequence
from typing import Any

from odp._system.sandbox.frames import receive_frame, send_frame
from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.guest import Evidence, MonotonicCounter

CALL_SECONDS = 60.0
#: Slots that one call erases.
MOST_AT_ONCE = 1024

_ERRORS = {"ConfigurationError": ConfigurationError, "StateError": StateError}


def error_frame(error: Exception) -> dict[str, list[str]]:
    """An error as a frame: kind and one line."""
    kind = next((name for name, known in _ERRORS.items() if isinstance(error, known)), "StateError")
    return {"error": [kind, str(error)]}


def result_of(answer: dict[str, Any] | None, *, of: str) -> Any:
    """The result in ``answer``, or its error; ``of`` is the expected sender.

    Raises:
        ConfigurationError, StateError: what the other side raised; StateError where it is gone.
    """
    if answer is None:
        raise StateError(f"the {of} ended")
    if "error" in answer:
        kind, message = answer["error"]
        raise _ERRORS.get(kind, StateError)(message)
    return answer["ok"]


class SocketGuest:
    """A ``Guest`` whose platform is another process; thread-safe. Takes ``connection`` over."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(CALL_SECONDS)
        self._connection = connection
        self._lock = threading.Lock()
        told = self._call("launched")
        self.policy = bytes.fromhex(told["policy"])
        self.image_digest = str(told["image_digest"])

    def bind_keys(self, *, hpke_public: bytes, signing_public: bytes) -> None:
        self._call("bind_keys", hpke_public=hpke_public.hex(), signing_public=signing_public.hex())

    def evidence(self, nonce: bytes) -> Evidence:
        found = self._call("evidence", nonce=nonce.hex())
        return Evidence(found["token"], self.policy, found["event_log"].encode("ascii"))

    def sealing_key(self) -> bytes:
        return bytes.fromhex(self._call("sealing_key"))

    def counter(self, name: str) -> MonotonicCounter:
        counter = _SocketCounter(self, name)
        # Asked once, so that a name that cannot be is refused here and not on first use.
        _ = counter.value
        return counter

    @property
    def slots(self) -> _SocketSlots:
        return _SocketSlots(self)

    def extend(self, event: str) -> None:
        self._call("extend", event=event)

    def ready(self, *, held: Sequence[str], refused: Sequence[str]) -> None:
        """Reports, once, that the enclave runs, and its restrictions; recorded in the register ``sandbox``."""
        self._call("ready", held=list(held), refused=list(refused))

    def failed(self, message: str) -> None:
        """Reports why the enclave ends; the host gets it if the platform is still running."""
        with contextlib.suppress(StateError):
            self._call("failed", message=message[:1000])

    def _call(self, call: str, **arguments: object) -> Any:
        try:
            with self._lock:
                send_frame(self._connection, {"call": call, **arguments})
                answer = receive_frame(self._connection)
        except OSError:
            # An answer that comes late would be taken for that of the next call.
            self._connection.close()
            raise StateError("the platform ended, or does not answer") from None
        return result_of(answer, of="platform")


class _SocketCounter:
    """A ``MonotonicCounter`` behind a ``SocketGuest``."""

    def __init__(self, guest: SocketGuest, name: str) -> None:
        self._guest, self._name = guest, name

    @property
    def value(self) -> int:
        return int(self._guest._call("counter_value", name=self._name))

    def advance(self, *, expected: int, to: int) -> None:
        self._guest._call("counter_advance", name=self._name, expected=expected, to=to)


class _SocketSlots:
    """``ErasableSlots`` behind a ``SocketGuest``."""

    def __init__(self, guest: SocketGuest) -> None:
        self._guest = guest

    def create(self, name: str) -> bytes:
        return bytes.fromhex(self._guest._call("slot_create", name=name))

    def read(self, name: str) -> bytes | None:
        return bytes.fromhex(self._guest._call("slot_read", name=name)) or None

    def erase(self, names: Collection[str]) -> None:
        given = list(names)
        for start in range(0, len(given), MOST_AT_ONCE):
            self._guest._call("slots_erase", names=given[start : start + MOST_AT_ONCE])

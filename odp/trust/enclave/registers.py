"""Runtime registers: hashes of all events since the launch, which can be extended and never set.

A register starts as 48 zero bytes; extending it by an event makes it SHA-384(register || SHA-384(event)). So whoever
has the event log, one line per event, computes the registers again, and whoever has signed registers knows that the
log is whole and in order.

=================  ========================================================================
``configuration``  extended by the platform alone, at launch: policy, debug bit
``sandbox``        restrictions that hold for the process, and those that the kernel refused
``runtime``        what the enclave did: its public keys, the charters that it put in force, the ids of its ledgers
=================  ========================================================================

    >>> registers = Registers()
    >>> registers.extend("runtime", "keys 00 11")
    >>> registers.log
    b'runtime keys 00 11\\n'
    >>> replay(registers.log) == registers.values()
    True

Source: the PCRs of TPM 2.0 and the RTMRs of Intel TDX.
"""

from __future__ import annotations

import hashlib
import re

from odp import _validate
from odp.errors import ConfigurationError, StateError

NAMES: tuple[str, ...] = ("configuration", "sandbox", "runtime")
REGISTER_BYTES = 48
LARGEST_LOG = 2**18

_LONGEST_EVENT = 512
_EVENT = re.compile(r"[!-~]+(?: [!-~]+)*")


class Registers:
    """The registers of one launch and their log; not thread-safe."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(NAMES, bytes(REGISTER_BYTES))
        self._log = bytearray()

    def extend(self, register: str, event: str) -> None:
        """Records ``event`` (words of printable ASCII, at most 512 characters) in ``register``, for good.

        Raises:
            ConfigurationError: no such register, or the event is not of that form.
            StateError: the log is full; a new launch starts an empty one.
        """
        _validate.one_of(NAMES, register=register)
        if len(event) > _LONGEST_EVENT or not _EVENT.fullmatch(event):
            raise ConfigurationError(
                f"Expected an event of 1 to {_LONGEST_EVENT} printable ASCII characters, single spaces between words"
            )
        line = f"{register} {event}\n".encode("ascii")
        if len(self._log) + len(line) > LARGEST_LOG:
            raise StateError("the enclave's event log is full: start the enclave again")
        self._values[register] = _extended(self._values[register], event)
        self._log += line

    @property
    def log(self) -> bytes:
        """One line ``register event`` per event, in order; ASCII."""
        return bytes(self._log)

    def values(self) -> dict[str, bytes]:
        """Register name -> 48 bytes."""
        return dict(self._values)


def replay(log: bytes) -> dict[str, bytes]:
    """The registers (name -> 48 bytes) that ``log`` leads to.

    Raises:
        ConfigurationError: not an event log.
    """
    registers = Registers()
    for register, event in read(log):
        registers.extend(register, event)
    return registers.values()


def read(log: bytes) -> list[tuple[str, str]]:
    """The events of ``log`` as (register, event), in order.

    Raises:
        ConfigurationError: not an event log.
    """
    if len(log) > LARGEST_LOG:
        raise ConfigurationError(f"Expected an event log of at most {LARGEST_LOG} bytes, got {len(log)}")
    if log and not log.endswith(b"\n"):
        raise ConfigurationError("Expected every line of the event log to end")
    try:
        lines = log.decode("ascii").split("\n")[:-1]
    except UnicodeDecodeError:
        raise ConfigurationError("Expected the event log in ASCII") from None
    events: list[tuple[str, str]] = []
    for line in lines:
        register, _, event = line.partition(" ")
        if register not in NAMES or len(event) > _LONGEST_EVENT or not _EVENT.fullmatch(event):
            raise ConfigurationError(f"Expected line {len(events) + 1} of the event log to be a register and an event")
        events.append((register, event))
    return events


def _extended(value: bytes, event: str) -> bytes:
    return hashlib.sha384(value + hashlib.sha384(event.encode("ascii")).digest()).digest()

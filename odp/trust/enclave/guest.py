"""The enclave's interface to the platform that launched it.

``Guest`` is all that an enclave knows of the machine below it. The platform measured the enclave before it ran: a guest
*receives* its policy and its image digest and cannot choose them. ``EmulatedPlatform.launch`` gives a guest within one
process; ``SocketGuest`` (``odp.trust.enclave.guest_socket``) is the one of an enclave process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Protocol


class MonotonicCounter(Protocol):
    """A durable number that only grows: sealed state that names its value cannot be rolled back unnoticed."""

    @property
    def value(self) -> int:
        """The present value; 0 for a counter that was never advanced."""

    def advance(self, *, expected: int, to: int) -> None:
        """Moves the counter up from ``expected`` to ``to``, durably and at once (compare-and-set).

        A counter that stands at ``to`` already is left there, so that a caller can repeat the step after a crash.

        Raises:
            StateError: the counter stands at neither number, ``to`` is below ``expected``, or it cannot be stored.
        """


class ErasableSlots(Protocol):
    """Durable secrets of one measurement on one chip, by name; an erased secret cannot be restored."""

    def create(self, name: str) -> bytes:
        """Draws 32 new random bytes into a slot, durably; erases its old content.

        Raises:
            ConfigurationError: the name is not an identifier.
            StateError: they cannot be stored, or what was in it cannot be erased.
        """

    def read(self, name: str) -> bytes | None:
        """The content of a slot; None if it was erased or never created.

        Raises ConfigurationError as ``create``; StateError where the platform cannot tell.
        """

    def erase(self, names: Collection[str]) -> None:
        """Erases slots, durably; empty slots stay empty.

        Raises ConfigurationError as ``create``; StateError where one cannot be erased.
        """


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Evidence over one nonce, all of one instant; public.

    Attributes:
        token: the signed claims (``odp.trust.enclave.evidence``).
        policy: the policy that the enclave was launched with.
        event_log: what leads to the registers that the token names (``odp.trust.enclave.registers``).
    """

    token: str
    policy: bytes
    event_log: bytes


class Guest(Protocol):
    """One launched enclave's side of its platform; thread-safe."""

    @property
    def policy(self) -> bytes:
        """The configuration that the enclave was launched with; measured."""

    @property
    def image_digest(self) -> str:
        """Measurement of its code, ``"sha384:<96 hex digits>"``."""

    def bind_keys(self, *, hpke_public: bytes, signing_public: bytes) -> None:
        """Registers the enclave's two public keys (32 bytes each), once per launch: later evidence binds them.

        Raises:
            ConfigurationError: a key is not 32 bytes.
            StateError: other keys were bound before.
        """

    def evidence(self, nonce: bytes) -> Evidence:
        """Fresh evidence over a caller's nonce (16 to 64 bytes), by the platform's clock.

        Raises:
            ConfigurationError: the nonce is too short or too long.
            StateError: no keys are bound.
        """

    def sealing_key(self) -> bytes:
        """32 bytes that only this chip can derive, at its present TCB, for this measurement and debug bit."""

    def counter(self, name: str) -> MonotonicCounter:
        """The chip's counter of that name; all enclaves of one chip share its counters.

        Raises:
            ConfigurationError: the name is not an identifier.
        """

    @property
    def slots(self) -> ErasableSlots:
        """The slots of this measurement and debug bit on this chip: other code cannot read them."""

    def extend(self, event: str) -> None:
        """Records an event in the ``runtime`` register; all later evidence contains it.

        Raises:
            ConfigurationError: not 1 to 512 printable ASCII characters with single spaces between words.
            StateError: the log is full.
        """

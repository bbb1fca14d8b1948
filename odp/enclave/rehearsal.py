"""A guest in memory alone, for the rehearsal of an enclave before its restrictions."""

from __future__ import annotations

import os
from collections.abc import Collection

from odp.enclave.guest import Evidence
from odp.enclave.policy import EnclavePolicy
from odp.errors import StateError


class RehearsalCounter:
    """Implements ``MonotonicCounter``."""

    def __init__(self) -> None:
        self.value = 0

    def advance(self, *, expected: int, to: int) -> None:
        if self.value not in (expected, to):
            raise StateError(f"the counter stands at {self.value}, not at {expected}")
        self.value = to


class RehearsalSlots:
    """Implements ``ErasableSlots``."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    def create(self, name: str) -> bytes:
        self._secrets[name] = os.urandom(32)
        return self._secrets[name]

    def read(self, name: str) -> bytes | None:
        return self._secrets.get(name)

    def erase(self, names: Collection[str]) -> None:
        for name in names:
            self._secrets.pop(name, None)


class RehearsalGuest:
    """Implements ``Guest``, with a public sealing key and no evidence: seal nothing real under it."""

    image_digest = "sha384:" + "0" * 96

    def __init__(self, policy: EnclavePolicy) -> None:
        self.policy = policy.to_bytes()
        self.slots = RehearsalSlots()
        self._counters: dict[str, RehearsalCounter] = {}

    def bind_keys(self, *, hpke_public: bytes, signing_public: bytes) -> None:
        """Does nothing."""

    def evidence(self, nonce: bytes) -> Evidence:
        """Raises StateError: this guest has no platform."""
        raise StateError("a rehearsal has no evidence")

    def sealing_key(self) -> bytes:
        """32 zero bytes."""
        return bytes(32)

    def counter(self, name: str) -> RehearsalCounter:
        """The counter of that name."""
        return self._counters.setdefault(name, RehearsalCounter())

    def extend(self, event: str) -> None:
        """Does nothing."""

"""The enclaves that the device host has verified: it sends nothing to any other.

Evidence is asked for with a fresh random nonce, checked against the reference values that the person pinned, and then
trusted until it expires, or until the person pins other values. All devices of a process share it: they pin the same
reference values.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from device_runtime.network.services import Services
from odp.errors import AttestationError
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence

_NONCE_BYTES = 32


@dataclass(frozen=True)
class Evidence:
    """An enclave's evidence, and the nonce that it answers, as received; public. ``time`` is the time of the check."""

    role: str
    address: str
    nonce: bytes
    token: str
    policy: bytes
    event_log: bytes
    time: float


@dataclass(frozen=True)
class Checked:
    """A verified enclave, and the evidence for it."""

    enclave: VerifiedEnclave
    evidence: Evidence


class Enclaves:
    """Verified enclaves by role and address; thread-safe.

    Args:
      services: how to reach them.
      reference_values: gives what the person pins now: roots, images, policies. The same object means the same values.
      clock: seconds since the epoch.
      random_bytes: source of nonces.
    """

    def __init__(
        self,
        services: Services,
        reference_values: Callable[[], ReferenceValues],
        *,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._services, self._reference_values = services, reference_values
        self._values = reference_values()
        self._clock, self._random_bytes = clock, random_bytes
        self._lock = threading.Lock()
        self._asking: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._verified: dict[tuple[str, str], Checked] = {}

    def verified(
        self, role: str, address: str, *, unlike: bytes | None = None, older_than: float | None = None
    ) -> Checked:
        """The enclave of ``role`` behind ``address``, verified now, or earlier if its evidence has not expired.

        ``unlike`` is an HPKE key that did not work: evidence that names it is asked for again. So is evidence that was
        checked before or at ``older_than``, seconds since the epoch.

        Raises:
          AttestationError: its evidence was refused; the message names the service. Nothing is remembered.
          ServiceUnavailable: nobody answers there.
        """
        key = (role, address)
        values = self._reference_values()
        with self._lock:
            if values is not self._values:
                self._values = values
                self._verified.clear()
            asking = self._asking[key]
        # One thread asks, the others wait for its answer.
        with asking:
            earlier = self._verified.get(key)
            valid = (
                earlier is not None and self._clock() < earlier.enclave.expires and earlier.enclave.hpke_key != unlike
            )
            if earlier is not None and valid and (older_than is None or earlier.evidence.time > older_than):
                return earlier
            self._verified.pop(key, None)
            nonce = self._random_bytes(_NONCE_BYTES)
            reply = self._services.evidence(address, nonce, role=role)
            evidence = Evidence(role, address, nonce, reply.token, reply.policy, reply.event_log, self._clock())
            try:
                enclave = verify_evidence(
                    token=reply.token,
                    policy=reply.policy,
                    event_log=reply.event_log,
                    nonce=nonce,
                    role=role,
                    reference_values=values,
                    now=evidence.time,
                )
            except AttestationError as error:
                reason = str(error).removeprefix(f"evidence refused ({error.reason}): ")
                raise AttestationError(error.reason, f"{role} at {address}: {reason}") from error
            checked = Checked(enclave, evidence)
            self._verified[key] = checked
            return checked

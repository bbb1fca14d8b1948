"""The end of a chip's certificate, which devices refuse an enclave by: told to operators before it comes.

A host and a server do not verify evidence, and nothing here does: it reads the dates that a chain states.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from cryptography import x509

from odp.errors import OdpError
from odp.transport.logs import Log
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import utc
from odp.trust.enclave.evidence import NONCE_BYTES, malformed, read_token
from odp.v1 import attestation_pb2

#: Days before the end from which it is told.
WARN_DAYS = 30.0
_LOOK_SECONDS = 3600.0
#: What an operator can do.
ADVICE = (
    "have the maker of the platform certify it again; an emulated chip ends with its certificate, and populations "
    "begin anew on another one"
)

Evidence = Callable[[bytes], attestation_pb2.GetEvidenceResponse]


def chain_ends(token: str) -> float:
    """When the first certificate of the chain in a token ends, in seconds since the epoch; unverified.

    Raises:
        AttestationError: ``malformed``.
    """
    try:
        chain = [x509.load_der_x509_certificate(der) for der in read_token(token).chain]
        return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)
    except ValueError:
        raise malformed("its chain has a certificate that cannot be read") from None


class ChipLooks:
    """What a server knows of the chip of its aggregator: it looks once an hour.

    Args:
        evidence: of the aggregator.
        clock: seconds since the epoch.
        monotonic: seconds that only grow.
    """

    def __init__(self, evidence: Evidence, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._evidence, self._clock, self._monotonic = evidence, clock, monotonic
        self._next = float("-inf")
        #: What is wrong, as of ``trouble``, at the last look that succeeded.
        self.trouble = ""

    def look(self) -> None:
        """Looks, where that is due; an aggregator that is away changes nothing."""
        if self._monotonic() < self._next:
            return
        self._next = self._monotonic() + _LOOK_SECONDS
        with contextlib.suppress(OdpError):
            self.trouble = trouble(self._evidence, now=self._clock())


def trouble(evidence: Evidence, *, now: float) -> str:
    """What is wrong with the chip of an enclave at ``now``, as part of a sentence; empty if nothing is.

    Raises AttestationError, and as ``evidence``.
    """
    ends = chain_ends(evidence(os.urandom(NONCE_BYTES.stop - 1)).token)
    if now <= ends:
        return ""
    return f"the certificate of the aggregator's chip ended at {utc(ends)}, and devices refuse it: {ADVICE}"


def watch(evidence: Evidence, log: Log, *, clock: Callable[[], float] = time.time) -> Sweeping:
    """Logs, now and every day, that the certificate of an enclave's chip has ended or ends within ``WARN_DAYS``."""
    return Sweeping(lambda: look(evidence, log, now=clock()), log, every=DAY)


def look(evidence: Evidence, log: Log, *, now: float) -> None:
    """One check of ``watch``. Raises AttestationError, and as ``evidence``."""
    ends = chain_ends(evidence(os.urandom(NONCE_BYTES.stop - 1)).token)
    if now > ends:
        log.error("chip_certificate_ended", at=utc(ends), why=f"devices refuse this enclave: {ADVICE}")
    elif ends - now < WARN_DAYS * DAY:
        log.warning("chip_certificate_expires", at=utc(ends), days=int((ends - now) // DAY))

"""The platform under an enclave: evidence, sealing keys and monotonic counters; here, its software emulation.

``Platform``, ``Launched`` and ``MonotonicCounter`` are what an enclave relies on. ``EmulatedPlatform`` plays them from
one folder: a chip secret, a chip key certified by the platform's own root, and counters that never go down. It gives
the protocol of confidential hardware and none of its protection: whoever reads the folder holds every secret in it.
Its evidence says so (``emulated``, ``hwmodel``, and the root's own name).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp import _validate
from odp.crypto import domains
from odp.enclave import _files, chain, sealing
from odp.enclave.evidence import (
    DEBUG_DISABLED,
    EMULATED_HARDWARE,
    EMULATED_ISSUER,
    KEY_BYTES,
    NONCE_BYTES,
    Claims,
    report_data,
    write_token,
)
from odp.errors import ConfigurationError, StateError

TOKEN_SECONDS = 3600

_FORMAT = 1
_SECRET_BYTES = 32
_LARGEST_FILE = 1 << 20
_LARGEST_COUNT = 2**63 - 1


class MonotonicCounter(Protocol):
    """A durable number that only grows: sealed state that names its value cannot be rolled back unnoticed."""

    @property
    def value(self) -> int:
        """The present value; 0 for a counter that was never raised."""
        ...

    def advance(self, *, expected: int, to: int) -> None:
        """Moves the counter up from ``expected`` to ``to``, durably and at once (compare-and-set).

        A counter that stands at ``to`` already is left there, so that a caller can repeat the step after a crash.

        Raises:
            StateError: the counter stands at neither number, ``to`` is below ``expected``, or it cannot be stored.
        """
        ...


class Launched(Protocol):
    """One running enclave, as its platform knows it."""

    def token(self, nonce: bytes, now: float) -> str:
        """Fresh evidence over the caller's nonce (16 to 64 bytes), issued at ``now`` (seconds since the epoch).

        Raises:
            ConfigurationError: the nonce is too short or too long.
        """
        ...


class Platform(Protocol):
    """What an enclave gets from the machine below it."""

    @property
    def root_certificate_pem(self) -> str:
        """The root under which this platform's evidence verifies: verifiers pin it."""
        ...

    def launch(
        self, image_digest: str, policy: bytes, hpke_public: bytes, signing_public: bytes, name: str
    ) -> Launched:
        """Registers an enclave and the two public keys that it made."""
        ...

    def sealing_key(self, image_digest: str) -> bytes:
        """32 bytes that only this chip can derive, and only for this measurement."""
        ...

    def counter(self, name: str) -> MonotonicCounter:
        """The counter of that name."""
        ...


@dataclasses.dataclass(frozen=True, repr=False)
class EmulatedLaunch:
    """An enclave on the emulated platform; see ``Launched``."""

    _issued: chain.IssuedChain
    _image_digest: str
    _policy: bytes
    _hpke_public: bytes
    _signing_public: bytes
    _name: str

    def token(self, nonce: bytes, now: float) -> str:
        """Fresh evidence over the caller's nonce; see ``Launched.token``."""
        if len(nonce) not in NONCE_BYTES:
            limits = f"{NONCE_BYTES.start} to {NONCE_BYTES.stop - 1}"
            raise ConfigurationError(f"Expected a nonce of {limits} bytes, got {len(nonce)}")
        claims = Claims(
            issuer=EMULATED_ISSUER,
            issued=int(now),
            expires=int(now) + TOKEN_SECONDS,
            nonce=nonce,
            debug_status=DEBUG_DISABLED,
            hardware_model=EMULATED_HARDWARE,
            software_name=f"odp-{self._name}",
            emulated=True,
            image_digest=self._image_digest,
            report_data=report_data(
                nonce=nonce, hpke_key=self._hpke_public, signing_key=self._signing_public, policy=self._policy
            ),
            hpke_key=self._hpke_public,
            signing_key=self._signing_public,
        )
        return write_token(claims, chain=self._issued.certificates, key=self._issued.key)


class EmulatedPlatform:
    """A chip played by one folder; implements ``Platform``. Several programs may have the folder open."""

    def __init__(self, folder: Path, issued: chain.IssuedChain, secret: bytes) -> None:
        self._folder = folder
        self._issued = issued
        self._secret = secret

    @classmethod
    def open(cls, folder: Path, *, now: float | None = None) -> EmulatedPlatform:
        """Opens the platform in ``folder``; on first use creates it, whole or not at all.

        Args:
            folder: readable by its owner only; created where missing.
            now: seconds since the epoch at which new certificates start; the system's clock where None.

        Raises:
            StateError: the folder cannot be used, is readable by others, or its content is damaged. A damaged
                platform is never replaced: its secrets are the only way to what was sealed under them.
        """
        _files.make_private_folder(folder)
        with _files.locked(folder / "platform.lock"):
            data = _files.read_private(folder / "platform.json", limit=_LARGEST_FILE)
            if data is not None:
                return cls(folder, *_parse_platform(data, folder))
            issued = chain.issue(now=time.time() if now is None else now)
            secret = os.urandom(_SECRET_BYTES)
            # The counters come first: a platform without them has lost them, and must not start again at zero.
            _write_counters(folder, {})
            _files.write_atomically(folder / "platform.json", _format_platform(issued, secret), mode=_files.PRIVATE)
        return cls(folder, issued, secret)

    @property
    def root_certificate_pem(self) -> str:
        """The root under which this platform's evidence verifies, PEM."""
        root = x509.load_der_x509_certificate(self._issued.certificates[-1])
        return root.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def launch(
        self, image_digest: str, policy: bytes, hpke_public: bytes, signing_public: bytes, name: str
    ) -> EmulatedLaunch:
        """Registers an enclave.

        Args:
            image_digest: measurement of its code, ``"sha384:<hex>"``.
            policy: its policy, as bytes; the platform only hashes them.
            hpke_public: its HPKE public key, 32 bytes.
            signing_public: its Ed25519 public key, 32 bytes.
            name: its role; evidence says ``odp-<name>``.

        Raises:
            ConfigurationError: a key is not 32 bytes, or the name is not an identifier.
        """
        _validate.identifier(name=name)
        for what, key in (("hpke_public", hpke_public), ("signing_public", signing_public)):
            if len(key) != KEY_BYTES:
                raise ConfigurationError(f"Expected {what} to be {KEY_BYTES} bytes, got {len(key)}")
        return EmulatedLaunch(self._issued, image_digest, policy, hpke_public, signing_public, name)

    def sealing_key(self, image_digest: str) -> bytes:
        """32 bytes from the chip's secret and the measurement: HKDF-SHA-384 (RFC 5869)."""
        info = domains.SEALING + image_digest.encode("utf-8")
        return HKDF(hashes.SHA384(), length=sealing.KEY_BYTES, salt=None, info=info).derive(self._secret)

    def counter(self, name: str) -> MonotonicCounter:
        """The counter of that name.

        Raises:
            ConfigurationError: the name is not an identifier.
        """
        _validate.identifier(name=name)
        return EmulatedCounter(self._folder, name)


class EmulatedCounter:
    """A counter in the platform's folder; implements ``MonotonicCounter``, also across programs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    @property
    def value(self) -> int:
        """The present value; 0 for a counter that was never raised."""
        return _read_counters(self._folder).get(self._name, 0)

    def advance(self, *, expected: int, to: int) -> None:
        """Moves the counter from ``expected`` to ``to``, durably; see ``MonotonicCounter.advance``."""
        _validate.integer(low=0, high=_LARGEST_COUNT, expected=expected, to=to)
        if to < expected:
            raise StateError(f"counter {self._name!r} cannot go down from {expected} to {to}")
        with _files.locked(self._folder / "counters.lock"):
            counters = _read_counters(self._folder)
            present = counters.get(self._name, 0)
            if present not in (expected, to):
                raise StateError(f"counter {self._name!r} stands at {present}, not at {expected}: old state came back")
            if present != to:
                _write_counters(self._folder, {**counters, self._name: to})


def _read_counters(folder: Path) -> dict[str, int]:
    path = folder / "counters.json"
    data = _files.read_private(path, limit=_LARGEST_FILE)
    if data is None:
        raise StateError(f"{path} is gone: without its counters this platform cannot tell old state from new")
    try:
        values = json.loads(data)
    except ValueError:
        raise StateError(f"{path} is corrupt: it is not JSON") from None
    if not isinstance(values, dict) or not all(type(count) is int and count >= 0 for count in values.values()):
        raise StateError(f"{path} is corrupt: it does not map names to counts")
    return values


def _write_counters(folder: Path, counters: Mapping[str, int]) -> None:
    _files.write_atomically(
        folder / "counters.json", json.dumps(counters, sort_keys=True).encode(), mode=_files.PRIVATE
    )


def _format_platform(issued: chain.IssuedChain, secret: bytes) -> bytes:
    key = issued.key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "format": _FORMAT,
        "warning": chain.EMULATED_ORGANIZATION,
        "chip_secret": _text(secret),
        "chip_key": _text(key),
        "certificates": [_text(certificate) for certificate in issued.certificates],
    }
    return json.dumps(content, indent=1).encode()


def _parse_platform(data: bytes, folder: Path) -> tuple[chain.IssuedChain, bytes]:
    path = folder / "platform.json"
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] != _FORMAT:
            raise StateError(f"{path} has format {content['format']!r}; this version reads format {_FORMAT}")
        secret = base64.b64decode(content["chip_secret"], validate=True)
        key = serialization.load_der_private_key(base64.b64decode(content["chip_key"], validate=True), None)
        chip, ask, ark = (base64.b64decode(text, validate=True) for text in content["certificates"])
        certified = x509.load_der_x509_certificate(chip).public_key()
    except (ValueError, KeyError, TypeError):
        raise StateError(f"{path} is corrupt: restore it, or start over in an empty folder") from None
    if len(secret) != _SECRET_BYTES or not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certified:
        raise StateError(f"{path} is corrupt: its keys do not belong together")
    return chain.IssuedChain((chip, ask, ark), key), secret


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

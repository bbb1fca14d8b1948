"""The platform below an enclave (evidence, sealing keys, counters, erasable slots) and its software emulation.

What an enclave relies on is ``odp.trust.enclave.guest``. ``EmulatedPlatform`` plays it from one folder: a chip secret,
a chip key certified by the platform's own root, counters that never go down, and erasable slots. It gives the protocol
of confidential hardware and none of its protection: whoever reads the folder holds every secret in it. Its evidence
says so (``emulated``, ``hwmodel``, and the root's own name).

``launch`` here is the bookkeeping of a launch alone; ``odp.trust.enclave.platform_process`` measures and starts a
process.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp import _validate
from odp._system.files.durability import Health
from odp.crypto import domains
from odp.crypto.public_keys import KEY_BYTES
from odp.errors import AttestationError, ConfigurationError, StateError
from odp.transport import owner_files
from odp.trust.enclave import chain, sealing
from odp.trust.enclave.evidence import (
    DEBUG_DISABLED,
    DEBUG_ENABLED,
    EMULATED_HARDWARE,
    EMULATED_ISSUER,
    NONCE_BYTES,
    Claims,
    report_data,
    write_token,
)
from odp.trust.enclave.guest import Evidence, MonotonicCounter
from odp.trust.enclave.registers import Registers
from odp.trust.enclave.slots import CHIP_FILE, EmulatedSlots, require_slots_folder

TOKEN_SECONDS = 3600


#: Registers that an enclave may extend; the others are the platform's.
EXTENDABLE = ("sandbox", "runtime")

_FORMAT = 2
_SECRET_BYTES = 32
_LARGEST_FILE = 1 << 20
_LARGEST_COUNT = 2**63 - 1
# Among the counters, under a name that no counter can have: the folder of slots was made.
_HAS_SLOTS = "slots/"


class EmulatedGuest:
    """One launched enclave; implements ``Guest``. Made by ``EmulatedPlatform.launch``."""

    def __init__(self, platform: EmulatedPlatform, *, image_digest: str, policy: bytes, name: str, debug: bool) -> None:
        self._platform, self.image_digest, self.policy = platform, image_digest, policy
        self._name, self._debug = name, debug
        self._lock = threading.Lock()
        self._keys: tuple[bytes, bytes] | None = None
        self._registers = Registers()
        self._registers.extend("configuration", f"policy {hashlib.sha256(policy).hexdigest()}")
        self._registers.extend("configuration", f"debug {'on' if debug else 'off'}")

    def bind_keys(self, *, hpke_public: bytes, signing_public: bytes) -> None:
        for what, key in (("hpke_public", hpke_public), ("signing_public", signing_public)):
            if len(key) != KEY_BYTES:
                raise ConfigurationError(f"Expected {what} to be {KEY_BYTES} bytes, got {len(key)}")
        with self._lock:
            if self._keys is None:
                self._registers.extend("runtime", f"keys {hpke_public.hex()} {signing_public.hex()}")
                self._keys = (hpke_public, signing_public)
            elif self._keys != (hpke_public, signing_public):
                raise StateError("the enclave bound other keys before: one launch has one pair of keys")

    def evidence(self, nonce: bytes) -> Evidence:
        if len(nonce) not in NONCE_BYTES:
            limits = f"{NONCE_BYTES.start} to {NONCE_BYTES.stop - 1}"
            raise ConfigurationError(f"Expected a nonce of {limits} bytes, got {len(nonce)}")
        with self._lock:
            if self._keys is None:
                raise StateError("the enclave has bound no keys yet: there is nothing to give evidence of")
            hpke_key, signing_key = self._keys
            registers, event_log = self._registers.values(), self._registers.log
        now = int(self._platform.clock())
        claims = Claims(
            issuer=EMULATED_ISSUER,
            issued=now,
            expires=now + TOKEN_SECONDS,
            nonce=nonce,
            debug_status=DEBUG_ENABLED if self._debug else DEBUG_DISABLED,
            hardware_model=EMULATED_HARDWARE,
            software_name=f"odp-{self._name}",
            emulated=True,
            image_digest=self.image_digest,
            registers=registers,
            report_data=report_data(nonce=nonce, hpke_key=hpke_key, signing_key=signing_key, policy=self.policy),
            hpke_key=hpke_key,
            signing_key=signing_key,
        )
        return Evidence(self._platform.sign(claims), self.policy, event_log)

    def sealing_key(self) -> bytes:
        return self._platform.sealing_key(self.image_digest, debug=self._debug)

    def counter(self, name: str) -> MonotonicCounter:
        return self._platform.counter(name)

    @property
    def slots(self) -> EmulatedSlots:
        return self._platform.slots(self.image_digest, debug=self._debug)

    def extend(self, event: str) -> None:
        self.extend_register("runtime", event)

    def extend_register(self, register: str, event: str) -> None:
        """Extends ``runtime`` or ``sandbox``; ``configuration`` is extended at launch alone.

        Raises:
            ConfigurationError: another register, or not an event; StateError: the log is full.
        """
        _validate.one_of(EXTENDABLE, register=register)
        with self._lock:
            self._registers.extend(register, event)


class EmulatedPlatform:
    """A chip emulated by one folder. Several programs may open the folder. Thread-safe."""

    def __init__(
        self, folder: Path, issued: chain.IssuedChain, secret: bytes, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._issued, self._secret = folder, issued, secret
        self.clock = clock
        #: Of its disk: from the first sync on that failed, no counter moves and no slot changes (DiskFailed).
        self.health = Health()

    @classmethod
    def open(
        cls, folder: Path, *, clock: Callable[[], float] = time.time, tcb: chain.Tcb = chain.EMULATED_TCB
    ) -> EmulatedPlatform:
        """Opens the platform in ``folder``; on first use creates it, completely or not at all.

        Args:
            folder: readable by its owner only; created where missing.
            clock: seconds since the epoch: the platform's own clock, by which it dates evidence.
            tcb: firmware versions of a platform that is created.

        Raises:
            StateError: the folder cannot be used, is readable by others, or its content is damaged or incomplete. A
                damaged platform is never replaced: its secrets are the only way to what was sealed under them.
        """
        owner_files.make_private_folder(folder, marker=CHIP_FILE)
        with owner_files.locked(folder / "platform.lock"):
            if (data := owner_files.read_private(folder / CHIP_FILE, limit=_LARGEST_FILE)) is not None:
                platform = cls(folder, *_parse_platform(data, folder), clock=clock)
                _require_slots(folder)
                return platform
            if (folder / "counters.json").exists() and _read_counters(folder).keys() - {_HAS_SLOTS}:
                raise StateError(f"{folder / 'platform.json'} is gone and its counters are not: restore it from a copy")
            issued = chain.issue(now=clock(), tcb=tcb)
            secret = os.urandom(_SECRET_BYTES)
            # Both come first: a platform without them has lost them, and must not start again without.
            _write_counters(folder, {})
            _require_slots(folder)
            owner_files.write_atomically(folder / CHIP_FILE, _format_platform(issued, secret), mode=owner_files.PRIVATE)
        return cls(folder, issued, secret, clock=clock)

    @property
    def root_certificate_pem(self) -> str:
        """The root certificate of this platform's evidence, PEM."""
        root = x509.load_der_x509_certificate(self._issued.certificates[-1])
        return root.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def launch(self, *, image_digest: str, policy: bytes, name: str, debug: bool = False) -> EmulatedGuest:
        """Registers an enclave.

        Args:
            image_digest: measurement of its code, ``"sha384:<hex>"``, by whoever starts it for this platform.
            policy: its configuration, as bytes; the platform only hashes them.
            name: its role; evidence says ``odp-<name>``.
            debug: a debugger may read its memory, and its evidence says so.

        Raises:
            ConfigurationError: the name is not an identifier.
        """
        _validate.identifier(name=name)
        return EmulatedGuest(self, image_digest=image_digest, policy=policy, name=name, debug=debug)

    def sign(self, claims: Claims) -> str:
        """A token of ``claims`` under the chip's key."""
        return write_token(claims, chain=self._issued.certificates, key=self._issued.key)

    def sealing_key(self, image_digest: str, *, debug: bool = False) -> bytes:
        """32 bytes from the chip's secret, its TCB, the debug bit and the measurement: HKDF-SHA-384 (RFC 5869)."""
        version = bytes(dataclasses.astuple(self._issued.tcb))
        info = domains.SEALING + version + bytes([debug]) + image_digest.encode("utf-8")
        return HKDF(hashes.SHA384(), length=sealing.KEY_BYTES, salt=None, info=info).derive(self._secret)

    def counter(self, name: str) -> MonotonicCounter:
        """The counter of that name.

        Raises:
            ConfigurationError: the name is not an identifier.
        """
        _validate.identifier(name=name)
        return EmulatedCounter(self._folder, name, self.health)

    def slots(self, image_digest: str, *, debug: bool = False) -> EmulatedSlots:
        """The erasable slots of one measurement."""
        owner = bytes([debug]) + image_digest.encode("utf-8")
        return EmulatedSlots(_slots_of(self._folder), owner=owner, health=self.health)


class EmulatedCounter:
    """A counter in the platform's folder; implements ``MonotonicCounter``, also across programs."""

    def __init__(self, folder: Path, name: str, health: Health) -> None:
        self._folder, self._name, self._health = folder, name, health

    @property
    def value(self) -> int:
        """The present value; 0 for a counter that was never advanced."""
        return _read_counters(self._folder).get(self._name, 0)

    def advance(self, *, expected: int, to: int) -> None:
        """Moves the counter from ``expected`` to ``to``, durably; see ``MonotonicCounter.advance``."""
        _validate.integer(low=0, high=_LARGEST_COUNT, expected=expected, to=to)
        if to < expected:
            raise StateError(f"counter {self._name!r} cannot go down from {expected} to {to}")
        with self._health, owner_files.locked(self._folder / "counters.lock"):
            counters = _read_counters(self._folder)
            if (present := counters.get(self._name, 0)) not in (expected, to):
                raise StateError(f"counter {self._name!r} is at {present}, not at {expected}: this is old state")
            # Also where it stands there already: an earlier process may have ended before that was on the disk.
            _write_counters(self._folder, {**counters, self._name: to})


def _read_counters(folder: Path) -> dict[str, int]:
    path = folder / "counters.json"
    if (data := owner_files.read_private(path, limit=_LARGEST_FILE)) is None:
        raise StateError(
            f"{path} is gone: without its counters this platform cannot detect old state; put that file back. If it is "
            "lost, so is the chip, with every ledger that was sealed on it"
        )
    try:
        values = json.loads(data)
    except ValueError:
        raise StateError(f"{path} is corrupt: it is not JSON") from None
    if not isinstance(values, dict) or not all(type(count) is int and count >= 0 for count in values.values()):
        raise StateError(f"{path} is corrupt: it does not map names to counts")
    return values


def _write_counters(folder: Path, counters: Mapping[str, int]) -> None:
    owner_files.write_atomically(
        folder / "counters.json", json.dumps(counters, sort_keys=True).encode(), mode=owner_files.PRIVATE
    )


def _slots_of(folder: Path) -> Path:
    return folder / "slots"


def _require_slots(folder: Path) -> None:
    """Makes the folder of slots where the platform never had one. Raises StateError where it is lost."""
    with owner_files.locked(folder / "counters.lock"):
        counters = _read_counters(folder)
        if _HAS_SLOTS not in counters:
            owner_files.make_private_folder(_slots_of(folder), marker="")
            _write_counters(folder, {**counters, _HAS_SLOTS: 1})
        require_slots_folder(_slots_of(folder))


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
    path = folder / CHIP_FILE
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] != _FORMAT:
            raise StateError(f"{path} has format {content['format']!r}; this version reads format {_FORMAT}")
        secret = base64.b64decode(content["chip_secret"], validate=True)
        key = serialization.load_der_private_key(base64.b64decode(content["chip_key"], validate=True), None)
        chip, ask, ark = (base64.b64decode(text, validate=True) for text in content["certificates"])
        certificate = x509.load_der_x509_certificate(chip)
        certified, tcb = certificate.public_key(), chain.tcb_of(certificate)
    except (ValueError, KeyError, TypeError, AttestationError):
        raise StateError(f"{path} is corrupt: restore it, or start over in an empty folder") from None
    if len(secret) != _SECRET_BYTES or not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certified:
        raise StateError(f"{path} is corrupt: its keys do not belong together")
    return chain.IssuedChain((chip, ask, ark), key, tcb), secret


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

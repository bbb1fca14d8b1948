"""Reference values: the pinned values that a verifier needs before it trusts any evidence.

A device ships with them, or a person checks them in. Everything is denied by default: no root, no digest or no policy
listed means that nothing is accepted, and emulated platforms are accepted only where the file says so.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from odp import _validate
from odp.crypto.public_keys import require_x25519
from odp.errors import ConfigurationError
from odp.trust.enclave import chain
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import ROLES

#: Services that a server names to devices.
ADDRESSED: tuple[str, ...] = (*ROLES, "issuer")

_LARGEST_FILE = 1 << 20
_LONGEST_AGE_SECONDS = 7 * 24 * 3600
_DIGEST = re.compile(r"sha384:[0-9a-f]{96}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SERIAL = re.compile(r"[1-9a-f][0-9a-f]{0,39}")
_CHIP = re.compile(rf"[0-9a-f]{{{2 * chain.CHIP_ID_BYTES}}}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}")
_RESTRICTION = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_LARGEST_TIME = 2.0**40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validity:
    """The time in which a measurement is accepted: seconds since the epoch, from ``not_before`` to before
    ``not_after``.
    """

    not_before: float = 0.0
    not_after: float = _LARGEST_TIME

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            _validate.within(low=0, high=_LARGEST_TIME, **{name: value})


@dataclasses.dataclass(frozen=True)
class ReferenceValues:
    """Pinned values; public.

    Attributes:
        roots: PEM certificates of the platforms' roots.
        image_digests: role -> accepted measurements, ``"sha384:<96 hex digits>"``.
        policy_sha256: role -> SHA-256 of accepted policies, 64 hex digits.
        allow_emulated: True accepts platforms without hardware protection. For development and tests.
        allow_debug: True accepts enclaves whose memory a debugger may read.
        allow_test_noise: True accepts enclaves whose noise comes from a seed in their policy: it protects nobody. For
            tests that have to be repeatable to the byte.
        max_age_seconds: evidence older than this is refused, whatever its own expiry says.
        image_validity: measurement -> when it may be accepted; a listed one without an entry may be always.
        withdrawn_images: measurements that are refused from now on, listed or not.
        minimum_tcb: firmware component -> lowest version accepted; ``chain.Tcb`` has the components.
        revoked_certificates: serial numbers (hex) of certificates that nothing may descend from.
        revoked_chips: chip ids (128 hex digits) that are refused.
        required_restrictions: what has to hold for the enclave's process, by the names of
        ``odp.trust.enclave.sandbox``.
        helper_keys: public keys (64 hex digits) of helpers that are accepted as the second of two parties that answer
            requests for rows: run by somebody whom the person trusts not to conspire with the distributor's host.
        addresses: role, or "issuer" of tokens -> ``host:port`` at which devices may connect to it; of others that a
            server names, they refuse.
        emulated_vendor: folder of the emulated vendor that vouches for these devices to an issuer of tokens; empty for
            none. For development: it holds a private key.
        populations: name -> SHA-256 (64 hex digits) of the charter that founded it; of a population that is not listed,
            a device trusts the founding that it sees first.
        log: the transparency log in which tasks, models and endorsements have to be; None requires no log.

    Raises:
        ConfigurationError: a value is not of its form.
    """

    roots: tuple[str, ...]
    image_digests: Mapping[str, tuple[str, ...]]
    policy_sha256: Mapping[str, tuple[str, ...]]
    allow_emulated: bool
    allow_debug: bool = False
    allow_test_noise: bool = False
    max_age_seconds: float = 3600.0
    image_validity: Mapping[str, Validity] = dataclasses.field(default_factory=dict)
    withdrawn_images: tuple[str, ...] = ()
    minimum_tcb: Mapping[str, int] = dataclasses.field(default_factory=dict)
    revoked_certificates: tuple[str, ...] = ()
    revoked_chips: tuple[str, ...] = ()
    required_restrictions: tuple[str, ...] = ()
    helper_keys: tuple[str, ...] = ()
    addresses: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    populations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    emulated_vendor: str = ""
    log: LogPolicy | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "roots", tuple(_strings(self.roots, "roots")))
        for pem in self.roots:
            chain.read_root(pem)
        object.__setattr__(self, "image_digests", _per_role(self.image_digests, _DIGEST, "image_digests"))
        object.__setattr__(self, "policy_sha256", _per_role(self.policy_sha256, _SHA256, "policy_sha256"))
        for name in ("allow_emulated", "allow_debug", "allow_test_noise"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"Expected {name}={getattr(self, name)!r} to be true or false")
        object.__setattr__(self, "addresses", _per_role(self.addresses, _ADDRESS, "addresses", ADDRESSED))
        if not isinstance(self.emulated_vendor, str):
            raise ConfigurationError("Expected emulated_vendor to be the path of a folder")
        _validate.within(low=1, high=_LONGEST_AGE_SECONDS, max_age_seconds=self.max_age_seconds)
        object.__setattr__(self, "image_validity", _validities(self.image_validity))
        object.__setattr__(self, "minimum_tcb", _minimum_tcb(self.minimum_tcb))
        for name, form in (
            ("withdrawn_images", _DIGEST),
            ("revoked_certificates", _SERIAL),
            ("revoked_chips", _CHIP),
            ("required_restrictions", _RESTRICTION),
            ("helper_keys", _SHA256),
        ):
            object.__setattr__(self, name, tuple(_matching(_strings(getattr(self, name), name), form, name)))
        for key in self.helper_keys:
            require_x25519(bytes.fromhex(key), name="each of helper_keys")
        object.__setattr__(self, "populations", _populations(self.populations))

    @classmethod
    def load(cls, path: Path) -> ReferenceValues:
        """Reads the JSON file that ``save`` writes.

        Raises:
            ConfigurationError: the file is missing, is not JSON, or a key is unknown, missing or of a wrong form.
        """
        from odp._system.files.settings_file import load_settings

        return load_settings(
            path, lambda values: cls(**_fields(values)), what="reference values", parse=json.loads,
            largest=_LARGEST_FILE,
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Writes the values as JSON, atomically.

        Raises:
            StateError: the file cannot be written.
        """
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"
        from odp.transport import owner_files

        owner_files.write_atomically(path, text.encode(), mode=owner_files.PUBLIC)


def _fields(values: object) -> dict[str, Any]:
    fields = _validate.fields_of(values, ReferenceValues, where="the reference values")
    if fields.get("log") is not None:
        fields["log"] = LogPolicy.from_json(fields["log"])
    return fields


def _per_role(
    values: object, form: re.Pattern[str], name: str, roles: tuple[str, ...] = ROLES
) -> dict[str, tuple[str, ...]]:
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"Expected {name} to map roles to lists")
    _validate.known_keys(values, roles, where=name)
    found = {role: tuple(_strings(listed, f"{name}[{role}]")) for role, listed in values.items()}
    for listed in found.values():
        _matching(listed, form, name)
    return found


def _validities(values: object) -> dict[str, Validity]:
    if not isinstance(values, Mapping):
        raise ConfigurationError("Expected image_validity to map measurements to not_before and not_after")
    _matching(values, _DIGEST, "image_validity")
    found = {}
    for digest, given in values.items():
        if isinstance(given, Mapping):
            _validate.known_keys(given, ("not_before", "not_after"), where=f"image_validity[{digest[:20]}..]")
            given = Validity(**given)
        if not isinstance(given, Validity):
            raise ConfigurationError("Expected every value of image_validity to hold not_before and not_after")
        found[digest] = given
    return found


def _minimum_tcb(values: object) -> dict[str, int]:
    if not isinstance(values, Mapping):
        raise ConfigurationError("Expected minimum_tcb to map firmware components to versions")
    _validate.known_keys(values, chain.TCB_COMPONENTS, where="minimum_tcb")
    _validate.integer(low=0, high=255, **values)
    return dict(values)


def _populations(values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        raise ConfigurationError("Expected populations to map names to hashes of founding charters")
    for name in values:
        _validate.identifier(population=name)
    _matching(values.values(), _SHA256, "populations")
    return dict(values)


def _matching(values: Iterable[str], form: re.Pattern[str], name: str) -> Iterable[str]:
    for value in values:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ConfigurationError(f"Expected every value of {name} to match {form.pattern}, got {value!r}")
    return values


def _strings(values: object, name: str) -> list[str]:
    # A lone string is a sequence of strings too, and would pin single letters.
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise ConfigurationError(f"Expected {name} to be a list of strings")
    return list(values)

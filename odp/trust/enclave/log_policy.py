"""The pinned values of a log's reader: the log's keys, witnesses, endorsers of enclaves, and an age limit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from odp import _validate
from odp.crypto.note import Kind, VerifierKey
from odp.errors import ConfigurationError

_KEY = re.compile(r"[0-9a-f]{64}")
_MOST_KEYS = 64
_LONGEST_AGE_SECONDS = 90 * 24 * 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogPolicy:
    """Pinned values; public.

    Attributes:
        log_keys: verifier keys of the log, in text form; all of one name, the log's origin.
        witness_keys: verifier keys of witnesses (cosignature keys), in text form.
        quorum: how many of these witnesses must have cosigned a checkpoint. 0: none, and a log that shows different
            people different trees is noticed only by who compares them.
        endorser_keys: Ed25519 keys whose endorsements of enclaves count, 64 hex digits each.
        max_age_seconds: how long ago the quorum (without one: the log itself) may have vouched for a checkpoint.

    Raises:
        ConfigurationError: a value is malformed, or more witnesses are asked for than there are.
    """

    log_keys: tuple[str, ...]
    endorser_keys: tuple[str, ...]
    witness_keys: tuple[str, ...] = ()
    quorum: int = 0
    max_age_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        for name in ("log_keys", "endorser_keys", "witness_keys"):
            object.__setattr__(self, name, _strings(getattr(self, name), name))
        if not self.log_keys:
            raise ConfigurationError("Expected at least one of log_keys: without any, no checkpoint is ever accepted")
        _distinct(self.logs, Kind.NOTE, "log_keys")
        _distinct(self.witnesses, Kind.COSIGNATURE, "witness_keys")
        if len({key.name for key in self.logs}) != 1:
            raise ConfigurationError("Expected all log_keys to have one name, the log's origin")
        for key in self.endorser_keys:
            if not _KEY.fullmatch(key):
                raise ConfigurationError(f"Expected every value of endorser_keys to be 64 hex digits, got {key!r}")
        _validate.integer(low=0, high=len(self.witness_keys), quorum=self.quorum)
        _validate.within(low=1, high=_LONGEST_AGE_SECONDS, max_age_seconds=self.max_age_seconds)

    @property
    def origin(self) -> str:
        """The log's name."""
        return self.logs[0].name

    @property
    def logs(self) -> tuple[VerifierKey, ...]:
        """``log_keys``, read."""
        return tuple(VerifierKey.from_text(text) for text in self.log_keys)

    @property
    def witnesses(self) -> tuple[VerifierKey, ...]:
        """``witness_keys``, read."""
        return tuple(VerifierKey.from_text(text) for text in self.witness_keys)

    @classmethod
    def from_json(cls, values: object) -> LogPolicy:
        """The policy of a decoded JSON object. Raises ConfigurationError."""
        return cls(**_validate.fields_of(values, cls, where="log"))


def _strings(values: object, name: str) -> tuple[str, ...]:
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(value, str) for value in values)
    ):
        raise ConfigurationError(f"Expected {name} to be a list of strings")
    if len(values) > _MOST_KEYS:
        raise ConfigurationError(f"Expected {name} to have at most {_MOST_KEYS} values")
    return tuple(values)


def _distinct(keys: Sequence[VerifierKey], kind: Kind, name: str) -> None:
    # One key under two names would count as two witnesses.
    if len({key.public for key in keys}) != len(keys):
        raise ConfigurationError(f"Expected the keys of {name} to be distinct")
    for key in keys:
        if key.kind is not kind:
            raise ConfigurationError(f"Expected {key.name!r} in {name} to be a key of type {int(kind)}")

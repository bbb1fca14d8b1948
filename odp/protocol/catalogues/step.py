"""Steps of a catalogue: what changes from one version to the next, as bytes that are hashed, signed and logged.

Bytes from another party are checked here for their form. Whether a step follows the one before is for
``odp.protocol.catalogues.catalogue``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from odp import _validate
from odp.crypto import domains
from odp.crypto.signing import SigningKey, verify
from odp.errors import ConfigurationError
from odp.identity import is_normal
from odp.v1 import catalogue_pb2

HASH_BYTES = 32
#: Of a model of items (``odp.signed.task.MOST_ITEMS``).
MOST_ITEMS = 2**24
LARGEST_STEP = 16 * 2**20
LONGEST_KEY = 256
#: A version a week for 190 years.
LARGEST_VERSION = 10_000


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step whose form was checked; public.

    Attributes:
      population: whose catalogue it is of.
      version: 1, 2, ..
      previous_sha256: of the step before, 32 bytes; empty in version 1.
      added, retired: keys, distinct, and none in both.
      withdrawn: earlier versions, ascending, that no task may name from here on.
      items: number of items of the version.
    """

    population: str
    version: int
    previous_sha256: bytes
    added: tuple[str, ...] = field(repr=False)
    retired: tuple[str, ...] = field(default=(), repr=False)
    withdrawn: tuple[int, ...] = ()
    items: int

    def encode(self) -> bytes:
        """The bytes of the step.

        Raises:
          ConfigurationError: a field is out of its range.
        """
        self._check()
        data = catalogue_pb2.CatalogueStep(
            population=self.population,
            version=self.version,
            previous_sha256=self.previous_sha256,
            added=self.added,
            retired=self.retired,
            withdrawn=self.withdrawn,
            items=self.items,
        ).SerializeToString(deterministic=True)
        _check_length(data)
        return data

    @classmethod
    def decode(cls, data: bytes) -> Step:
        """The step of bytes from another party.

        Raises:
          ConfigurationError: they are no step, or a field is out of its range.
        """
        _check_length(data)
        message, understood = catalogue_pb2.CatalogueStep(), catalogue_pb2.CatalogueStep()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise ConfigurationError("Expected a catalogue step: this is not a valid message") from error
        understood.CopyFrom(message)
        understood.DiscardUnknownFields()
        if understood.ByteSize() != len(data):
            raise ConfigurationError(
                "the catalogue step holds fields that this version does not know; update this program"
            )
        step = cls(
            population=message.population,
            version=message.version,
            previous_sha256=message.previous_sha256,
            added=tuple(message.added),
            retired=tuple(message.retired),
            withdrawn=tuple(message.withdrawn),
            items=message.items,
        )
        step._check()
        return step

    def _check(self) -> None:
        _validate.identifier(population=self.population)
        _validate.integer(low=1, high=LARGEST_VERSION, version=self.version)
        _validate.integer(low=1, high=MOST_ITEMS, items=self.items)
        wanted = HASH_BYTES if self.version > 1 else 0
        if len(self.previous_sha256) != wanted:
            raise ConfigurationError(
                f"Expected previous_sha256 of catalogue version {self.version} to be {wanted} bytes "
                f"(got {len(self.previous_sha256)})"
            )
        for name in ("added", "retired"):
            check_keys(getattr(self, name), name=name)
        if both := set(self.added).intersection(self.retired):
            raise ConfigurationError(f"Expected the key {min(both)!r} to be added or retired, not both in one step")
        if list(self.withdrawn) != sorted(set(self.withdrawn)) or not all(
            0 < version < self.version for version in self.withdrawn
        ):
            raise ConfigurationError(
                f"Expected withdrawn={list(self.withdrawn)} to be versions from 1 to {self.version - 1}, ascending"
            )
        if not (self.added or self.retired or self.withdrawn):
            raise ConfigurationError(f"Expected catalogue version {self.version} to change something")


@dataclass(frozen=True)
class SignedStep:
    """A step under the signature of an owner of its population; ``key`` is the owner's public key, 32 bytes."""

    step: bytes = field(repr=False)
    key: bytes
    signature: bytes

    @classmethod
    def by(cls, key: SigningKey, step: bytes) -> SignedStep:
        """The step ``step`` under ``key``."""
        return cls(step, key.public, key.sign(domains.CATALOGUE, step))

    def open(self) -> Step:
        """The step, after its signature and its form were checked; whether ``key`` is an owner is for the caller.

        Raises:
          SignatureError: the signature is not that of ``key``.
          ConfigurationError: as ``Step.decode``.
        """
        verify(self.key, self.signature, domains.CATALOGUE, self.step)
        return Step.decode(self.step)


def step_sha256(step: bytes) -> bytes:
    """The id of a version: SHA-256 of its step's bytes."""
    return hashlib.sha256(step).digest()


def check_keys(keys: Sequence[str], *, name: str) -> None:
    """Raises ConfigurationError unless ``keys`` are distinct printable texts of 1 to 256 bytes in UTF-8, in NFC.

    In normal form C (Unicode Standard Annex 15) a text has one spelling: two would be two items that look alike.
    """
    if isinstance(keys, str):
        raise ConfigurationError(f"Expected {name}={keys[:80]!r} to be a list of keys, not one text")
    if _all_fine(keys):
        return
    places: dict[str, int] = {}
    for place, key in enumerate(keys):
        if not isinstance(key, str) or not key or not key.isprintable() or len(key.encode()) > LONGEST_KEY:
            raise ConfigurationError(
                f"Expected {name}[{place}]={str(key)[:80]!r} to be a printable key of 1 to {LONGEST_KEY} bytes"
            )
        if not is_normal(key):
            raise ConfigurationError(
                f"Expected {name}[{place}]={key[:80]!r} in the normal form NFC: pass it through "
                "unicodedata.normalize('NFC', key)"
            )
        if places.setdefault(key, place) != place:
            raise ConfigurationError(
                f"Expected {name} to name each item once: {key!r} stands at {places[key]} and {place}"
            )


def _check_length(data: bytes) -> None:
    if not 0 < len(data) <= LARGEST_STEP:
        raise ConfigurationError(
            f"Expected a catalogue step of 1 to {LARGEST_STEP} bytes, got {len(data)}: add the items in several"
        )


def _all_fine(keys: Sequence[str]) -> bool:
    """Whether no key is wrong, at the speed that a million of them needs; the caller says which one is."""
    if not all(type(key) is str for key in keys):
        return False
    distinct, longest = set(keys), max(map(len, keys), default=0)
    whole = "".join(keys)
    # A character has 4 bytes at most.
    return (
        len(distinct) == len(keys)
        and "" not in distinct
        and 4 * longest <= LONGEST_KEY
        and whole.isprintable()
        and is_normal(whole)
    )

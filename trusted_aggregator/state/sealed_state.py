"""The sealed records of the enclave at its host: their names and encodings.

=========================  ==========================================================================================
key                        plaintext
=========================  ==========================================================================================
``population/<name>``      charter, head of the ledger and its id, abandoned tasks, keys of void openings, whom it was
                           handed over to, and the stamp that ties them to the platform's counters (``rollback.py``)
``ledger-state/<name>``    the state after the first entries of the ledger; their number precedes it in clear
``ledger/<name>/<n>``      entry n of the ledger, not sealed: it is public, and the head stands for it
``task/<task>``            the signed task definition, and what limits need to know of it
``round/<task>/<n>``       of a round that is open or charged: its order, the name of its noise, the seed of its draw,
                           its private key, its token key
``noise/<task>/<n>``       the noise of such a round
``participation/<t>/<n>``  of a stream before its round n: the last release, and who was in the rounds so far
``stream/<task>/<n>``      of a stream before its round n: the last release, and the sums that round n needs
``release/<task>/<n>``     the signed release of the newest round that has one
=========================  ==========================================================================================

The records of a round and of its noise are sealed under a key that is erased with the round (``enclave/state.py``),
those of a stream under one that is erased when the next round is released (``streams.py``).

Every record but an entry is sealed under its own name, so the host can neither read one nor put it in another's place.
It can bring back an *older* one; only that of the population needs protection from that, because everything else is
checked against it: which rounds were charged, which release of each was signed, which release a stream goes on from,
and which tasks are over.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from odp.algorithms.declared import DeclaredRelease
from odp.crypto.hpke import DecryptionError
from odp.crypto.refusals import MOST_VOIDED
from odp.errors import StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.ledger_state import LedgerHead, LedgerState
from odp.signed.charter import Charter, open_charter
from odp.trust.enclave.sealing import seal, unseal
from odp.v1 import common_pb2, population_pb2
from trusted_aggregator.state.records import SealedRecord
from trusted_aggregator.state.rollback import ZERO, Stamp

HASH_BYTES = 32
#: Void openings that a population remembers of rounds that were charged since, or whose task ended; the newest stay.
MOST_PAST_VOIDED = 64
_TASK_HEADER = struct.Struct("!QI")


class Sealer:
    """Seals records under one key, each bound to its own name."""

    def __init__(self, sealing_key: bytes) -> None:
        self._sealing_key = sealing_key

    def seal(self, key: str, plaintext: bytes) -> SealedRecord:
        """The record of ``plaintext``."""
        return SealedRecord(key, seal(self._sealing_key, plaintext, key.encode()))

    def open(self, key: str, data: bytes) -> bytes:
        """The plaintext of the host's bytes for ``key``. Raises StateError unless they were sealed for it."""
        try:
            return unseal(self._sealing_key, data, key.encode())
        except DecryptionError as error:
            raise StateError(
                f"sealed record {key!r} was changed, or made by other code or another chip: restore the state folder"
            ) from error


class Successor(NamedTuple):
    """The one enclave that a population was handed over to; ``policy_sha256`` is 64 hex digits."""

    image_digest: str
    policy_sha256: str


class VoidedKey(NamedTuple):
    """The public key of an opening of a round that never had a release, and never will."""

    task_sha256: bytes
    round: int
    hpke_key: bytes


@dataclass(frozen=True)
class PopulationRecord:
    """One version of a population, with the stamp of this version and of the one before it. Nothing changes in it.

    Attributes:
        name: the population's.
        charter_bytes: the serialized SignedCharter in force; empty in the version before the first.
        ledger: what its charges come to. The record holds its head alone.
        abandoned: ids of the tasks that an owner ended, 32 bytes each.
        stamp, parent: of this version, and of the one before it.
        ledger_id: 32 random bytes, drawn with the first version: every later one has them, whichever code wrote it.
        successor: whom the population was handed over to; None where it is this enclave's.
        voided: openings of rounds that ended without a charge, by a hand-over or with their task, oldest first. They
            stay void, also when another opening of the round is charged, or the task ends: at most ``MOST_PAST_VOIDED``
            of those are remembered, and ``MOST_VOIDED`` of all.
    """

    name: str
    charter_bytes: bytes
    ledger: LedgerState
    abandoned: frozenset[bytes]
    stamp: Stamp
    parent: Stamp
    ledger_id: bytes
    successor: Successor | None = None
    voided: tuple[VoidedKey, ...] = ()

    @classmethod
    def unfounded(cls, name: str) -> PopulationRecord:
        """The version before the first."""
        return cls(name, b"", LedgerState(name), frozenset(), ZERO, ZERO, os.urandom(HASH_BYTES))

    def after(
        self, *, ledger: LedgerState, charter: Charter | None = None, abandoned: frozenset[bytes] | None = None,
        voided: Sequence[VoidedKey] = (),
    ) -> PopulationRecord:  # fmt: skip
        """The next version, with a new stamp; None keeps the old value. ``voided`` are openings that end with it."""
        return dataclasses.replace(
            self,
            charter_bytes=self.charter_bytes if charter is None else charter.signed.SerializeToString(),
            ledger=ledger,
            abandoned=self.abandoned if abandoned is None else abandoned,
            stamp=self.stamp.successor(),
            parent=self.stamp,
            voided=(*self.voided, *voided),
        )._without_oldest_voided()

    def handed_to(self, successor: Successor | None, *, voided: Sequence[VoidedKey] = ()) -> PopulationRecord:
        """The next version, owned by ``successor``; None means the enclave that writes it.

        ``voided`` are the openings that end with it, besides those that ended before.
        """
        return dataclasses.replace(
            self,
            stamp=self.stamp.successor(),
            parent=self.stamp,
            successor=successor,
            voided=(*self.voided, *voided),
        )._without_oldest_voided()

    def is_past(self, opening: VoidedKey) -> bool:
        """Whether the round of a void opening was charged since, or its task ended."""
        task = opening.task_sha256
        return task in self.abandoned or self.ledger.find(task.hex(), opening.round) is not None

    def _without_oldest_voided(self) -> PopulationRecord:
        """The same version, which remembers no more void openings than it may."""
        past = [opening for opening in self.voided if self.is_past(opening)]
        forgotten = set(past[: max(0, len(past) - MOST_PAST_VOIDED)])
        remembered = [opening for opening in self.voided if opening not in forgotten]
        return dataclasses.replace(self, voided=tuple(remembered[-MOST_VOIDED:]))

    def knows(self, task_sha256: bytes) -> bool:
        """Whether a task was charged or ended."""
        return task_sha256 in self.abandoned or bool(self.ledger.rounds(task_sha256.hex()))

    @functools.cached_property
    def charter(self) -> Charter | None:
        """The charter in force; None in the version before the first."""
        if not self.charter_bytes:
            return None
        return open_charter(population_pb2.SignedCharter.FromString(self.charter_bytes))

    def encode(self) -> bytes:
        """The plaintext of the record."""
        value = {
            "abandoned": sorted(task.hex() for task in self.abandoned),
            "charter": self.charter_bytes.hex(),
            "ledger": self.ledger.head.encode().decode("ascii"),
            "ledger_id": self.ledger_id.hex(),
            "name": self.name,
            "parent": list(self.parent),
            "stamp": list(self.stamp),
            "successor": None if self.successor is None else list(self.successor),
            "voided": [[task.hex(), round, key.hex()] for task, round, key in self.voided],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, ledger_at: Callable[[LedgerHead], LedgerState]) -> PopulationRecord:
        """The inverse of ``encode``, for bytes that were unsealed; ``ledger_at`` has the state under a head."""
        value = json.loads(data)
        return cls(
            name=value["name"],
            charter_bytes=bytes.fromhex(value["charter"]),
            ledger=ledger_at(LedgerHead.decode(value["ledger"].encode("ascii"))),
            abandoned=frozenset(map(bytes.fromhex, value["abandoned"])),
            stamp=Stamp(*value["stamp"]),
            parent=Stamp(*value["parent"]),
            ledger_id=bytes.fromhex(value["ledger_id"]),
            successor=None if value["successor"] is None else Successor(*value["successor"]),
            # Earlier versions wrote none.
            voided=tuple(
                VoidedKey(bytes.fromhex(task), round, bytes.fromhex(key))
                for task, round, key in value.get("voided", ())
            ),
        )


@dataclass(frozen=True)
class TaskRecord:
    """A task that has rounds here; it will have ``planned`` releases of at most ``largest`` bytes each."""

    signed: common_pb2.SignedTask
    largest: int
    planned: int

    def encode(self) -> bytes:
        """The plaintext of the record."""
        return _TASK_HEADER.pack(self.largest, self.planned) + self.signed.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes) -> TaskRecord:
        """The inverse of ``encode``, for bytes that were unsealed."""
        largest, planned = _TASK_HEADER.unpack_from(data)
        return cls(common_pb2.SignedTask.FromString(data[_TASK_HEADER.size :]), largest, planned)


@dataclass(frozen=True)
class RoundRecord:
    """A round that is open or charged: order, name of its noise (32 random bytes), seed of its draw, private HPKE key.

    ``token_key`` is the serialized SignedTokenKey that it was opened with; empty where anybody may contribute.
    ``noise_id`` is no hash of the noise: the ledger is published, and a hash would confirm a guess of the noise of a
    small release. ``draw_seed`` (32 random bytes) decides which contributions of a sampled round count; it is as secret
    as the noise. ``policy_sha256`` is of the policy that the round was opened under: under any other it is lost, or a
    host could have its noise drawn by a laxer one.
    """

    order: bytes
    noise_id: bytes
    draw_seed: bytes = field(repr=False)
    hpke_key: bytes = field(repr=False)
    token_key: bytes = b""
    policy_sha256: bytes = b""

    def encode(self) -> bytes:
        """The plaintext of the record."""
        value = {name: field.hex() for name, field in vars(self).items()}
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> RoundRecord:
        """The inverse of ``encode``, for bytes that were unsealed."""
        return cls(**{name: bytes.fromhex(text) for name, text in json.loads(data).items()})


@dataclass(frozen=True)
class RoundNoise:
    """The noise of every release of one round, int64 of the declared shapes by release name; ``noise_id`` names it."""

    noise_id: bytes
    arrays: Mapping[str, Int64Array] = field(repr=False)

    def encode(self, releases: Sequence[DeclaredRelease]) -> bytes:
        """The plaintext: id, then the arrays in the order of ``releases``, int64 little-endian."""
        parts = [np.ascontiguousarray(self.arrays[release.name], dtype="<i8").tobytes() for release in releases]
        return b"".join([self.noise_id, *parts])

    @classmethod
    def decode(cls, data: bytes, releases: Sequence[DeclaredRelease]) -> RoundNoise:
        """The inverse of ``encode``. Raises StateError where the length does not fit the declared releases."""
        if len(data) != HASH_BYTES + 8 * sum(release.coordinates for release in releases):
            raise StateError("the sealed noise does not fit the declared releases: restore the state folder")
        arrays: dict[str, Int64Array] = {}
        start = HASH_BYTES
        for release in releases:
            values = np.frombuffer(data, dtype="<i8", count=release.coordinates, offset=start)
            arrays[release.name] = values.astype(np.int64, copy=False).reshape(release.shape)
            start += values.nbytes
        return cls(data[:HASH_BYTES], arrays)

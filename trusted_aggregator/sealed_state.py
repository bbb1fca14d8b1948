"""What the enclave asks its host to keep: the names and the encodings of its sealed records.

=========================  ==========================================================================================
key                        plaintext
=========================  ==========================================================================================
``task/<task>``            the signed task definition
``ledger/<population>``    the privacy ledger, and the stamp that ties it to the platform's counters (``rollback.py``)
``round/<task>/<n>``       the order of the round, the name of its noise, and the hash of its release once there is one
``noise/<task>/<n>``       noise and seed of the draw; erased with the contributions once the release is stored
``release/<task>/<n>``     the signed release
=========================  ==========================================================================================

Every record is sealed under its own key, so the host can neither read one nor put it in another's place. It can bring
back an *older* one; only the ledger needs protection from that, because everything else is checked against the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from odp.algorithms.seam import DeclaredRelease, Int64Array
from odp.crypto.hpke import DecryptionError
from odp.enclave.sealing import seal, unseal
from odp.errors import StateError
from odp.privacy.ledger import Ledger
from trusted_aggregator.records import SealedRecord
from trusted_aggregator.rollback import Stamp

HASH_BYTES = 32
_NOISE_HEADER = 3 * HASH_BYTES  # id, model, seed of the draw


class Sealer:
    """Seals records under the enclave's sealing key, each bound to its own key."""

    def __init__(self, sealing_key: bytes) -> None:
        self._sealing_key = sealing_key

    def seal(self, key: str, plaintext: bytes) -> SealedRecord:
        """The record of ``plaintext``."""
        return SealedRecord(key, seal(self._sealing_key, plaintext, key.encode()))

    def open(self, key: str, data: bytes) -> bytes:
        """The plaintext of what the host kept under ``key``. Raises StateError unless it was sealed there."""
        try:
            return unseal(self._sealing_key, data, key.encode())
        except DecryptionError as error:
            raise StateError(
                f"sealed record {key!r} was changed, or made by other code or another chip: restore the state folder"
            ) from error


@dataclass(frozen=True)
class LedgerRecord:
    """A population's ledger with the stamp of this version and of the one before it."""

    ledger: Ledger
    stamp: Stamp
    parent: Stamp

    def encode(self) -> bytes:
        """The plaintext of the record."""
        value = {
            "ledger": self.ledger.encode().decode("ascii"),
            "parent": list(self.parent),
            "stamp": list(self.stamp),
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> LedgerRecord:
        """The inverse of ``encode``, for bytes that were unsealed. Raises StateError for a damaged ledger."""
        value = json.loads(data)
        return cls(
            ledger=Ledger.decode(value["ledger"].encode("ascii")),
            stamp=Stamp(*value["stamp"]),
            parent=Stamp(*value["parent"]),
        )


@dataclass(frozen=True)
class RoundRecord:
    """A round that was opened: its order, the name of its noise; ``release_sha256`` is empty until it is released."""

    order: bytes
    noise_id: bytes
    release_sha256: bytes = b""

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
    """The noise of every release of one round, int64 of the declared shapes by release name.

    ``noise_id`` (32 random bytes) names it in the ledger. It is no hash of the noise: the ledger is published, and a
    hash would confirm a guess of the noise of a small release. ``draw_seed`` (32 random bytes) decides which
    contributions of a sampled round count; it is as secret as the noise, and named by the same id.
    """

    noise_id: bytes
    model_sha256: bytes
    draw_seed: bytes = field(repr=False)
    arrays: Mapping[str, Int64Array] = field(repr=False)

    def encode(self, releases: Sequence[DeclaredRelease]) -> bytes:
        """The plaintext: id, model, seed, then the arrays in the order of ``releases``, int64 little-endian."""
        parts = [np.ascontiguousarray(self.arrays[release.name], dtype="<i8").tobytes() for release in releases]
        return b"".join([self.noise_id, self.model_sha256, self.draw_seed, *parts])

    @classmethod
    def decode(cls, data: bytes, releases: Sequence[DeclaredRelease]) -> RoundNoise:
        """The inverse of ``encode``. Raises StateError where the length does not fit the declared releases."""
        if len(data) != _NOISE_HEADER + 8 * sum(release.coordinates for release in releases):
            raise StateError("the sealed noise does not fit the declared releases: restore the state folder")
        arrays: dict[str, Int64Array] = {}
        start = _NOISE_HEADER
        for release in releases:
            values = np.frombuffer(data, dtype="<i8", count=release.coordinates, offset=start)
            arrays[release.name] = values.astype(np.int64, copy=False).reshape(release.shape)
            start += values.nbytes
        noise_id, model, seed = (data[place : place + HASH_BYTES] for place in range(0, _NOISE_HEADER, HASH_BYTES))
        return cls(noise_id, model, seed, arrays)

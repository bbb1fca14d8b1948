"""The signed release of a round: its noisy sums and their cost, nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from odp.algorithms.declared import TensorCharge
from odp.algorithms.release import charge_of, is_detached, release_bytes
from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.events import releases_of
from odp.privacy.ledger_entry import Entry
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent
from odp.privacy.local_events import LocalReport
from odp.privacy.matrix.encoding import Encoder
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.sealed_state import RoundNoise


class MadeRelease(NamedTuple):
    """A signed release; ``values`` are its integers by tensor where it has their hash alone, and else empty."""

    signed: common_pb2.SignedRelease
    values: Sequence[Int64Array]


def signed_release(
    round: Round,
    entry: Entry,
    key: SigningKey,
    *,
    noise: RoundNoise,
    host_sum: HostSum | None = None,
    encoder: Encoder | None = None,
) -> MadeRelease:
    """The release of a frozen round under the ledger entry that charged it.

    A function of its arguments alone (Ed25519 signatures are deterministic), so that a release that is made again after
    a crash is the same release. ``encoder`` takes in the round's sum.

    Raises:
        StateError: the entry does not charge this set of contributions with this noise.
        PrivacyError, ConfigurationError: as ``Round.noisy_sums``.
    """
    if (*round.freeze(), round.record.noise_id) != (entry.contributions, entry.id_set_sha256, entry.noise_id):
        raise StateError(f"the contributions or the noise of round {round.number} differ from the charged ones")
    sums = round.noisy_sums(noise, host_sum, encoder)
    releases = round.query.releases
    detached = is_detached(releases)
    values = [np.ascontiguousarray(sums[declared.name], dtype="<i8") for declared in releases]
    release = common_pb2.Release(
        task_sha256=round.task_sha256,
        round=round.number,
        model_sha256=round.model_sha256,
        tensors=[
            common_pb2.ReleasedTensor(
                name=declared.name,
                integers=b"" if detached else array.tobytes(),
                shape=declared.shape,
                step=declared.step,
            )
            for declared, array in zip(releases, values, strict=True)
        ],
        charges=[charge_of(charge) for event in entry.events for charge in _releases_of(event)],
        epsilon_spent=entry.task_epsilon,
        epsilon_remaining=max(0.0, entry.task_budget.epsilon - entry.task_epsilon),
        contributions=entry.contributions,
        values_sha256=_sha256(values) if detached else b"",
        values_bytes=release_bytes(releases) if detached else 0,
    )
    data = release.SerializeToString(deterministic=True)
    signed = common_pb2.SignedRelease(release=data, signature=key.sign(domains.RELEASE, data))
    return MadeRelease(signed, values if detached else ())


def _sha256(values: Sequence[Int64Array]) -> bytes:
    digest = hashlib.sha256()
    for array in values:
        digest.update(array.data.cast("B"))
    return digest.digest()


def _releases_of(event: LedgerEvent) -> tuple[TensorCharge, ...]:
    if isinstance(event, LocalReport):
        raise StateError(f"{event.name!r} is a report of a device, which no enclave releases")
    if isinstance(event, CoveredRelease):
        return (event,)
    return tuple(release for release in releases_of(event) if not isinstance(release, LocalReport))


def release_sha256(signed: common_pb2.SignedRelease) -> bytes:
    """The hash that names a release in the ledger: SHA-256 of its signed bytes."""
    return hashlib.sha256(signed.release).digest()

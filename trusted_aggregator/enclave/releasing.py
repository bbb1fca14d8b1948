"""The signed release of a round: its noisy sums and their cost, nothing else."""

from __future__ import annotations

import hashlib

from odp.algorithms.release import TensorCharge, charge_of
from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import StateError
from odp.privacy.events import releases_of
from odp.privacy.ledger_entry import Entry
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent
from odp.privacy.matrix.encoding import Encoder
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.records import noise_key
from trusted_aggregator.state.sealed_state import RoundNoise, Sealer


def signed_release(
    found: Round,
    entry: Entry,
    key: SigningKey,
    *,
    noise: RoundNoise,
    host_sum: HostSum | None = None,
    encoder: Encoder | None = None,
) -> common_pb2.SignedRelease:
    """The SignedRelease of a frozen round under the ledger entry that charged it.

    A function of its arguments alone (Ed25519 signatures are deterministic), so that a release that is made again after
    a crash is the same release. ``encoder`` takes in the round's sum.

    Raises:
        StateError: the entry does not charge this set of contributions with this noise.
        PrivacyError, ConfigurationError: as ``Round.noisy_sums``.
    """
    if (*found.freeze(), found.record.noise_id) != (entry.contributions, entry.id_set_sha256, entry.noise_id):
        raise StateError(f"the contributions or the noise of round {found.number} differ from the charged ones")
    sums = found.noisy_sums(noise, host_sum, encoder)
    release = common_pb2.Release(
        task_sha256=found.task_sha256,
        round=found.number,
        model_sha256=found.model_sha256,
        tensors=[
            common_pb2.ReleasedTensor(
                name=declared.name,
                integers=sums[declared.name].astype("<i8", copy=False).tobytes(),
                shape=declared.shape,
                step=declared.step,
            )
            for declared in found.query.releases
        ],
        charges=[charge_of(charge) for event in entry.events for charge in _releases_of(event)],
        epsilon_spent=entry.task_epsilon,
        epsilon_remaining=max(0.0, entry.task_budget.epsilon - entry.task_epsilon),
        contributions=entry.contributions,
    )
    data = release.SerializeToString(deterministic=True)
    return common_pb2.SignedRelease(release=data, signature=key.sign(domains.RELEASE, data))


def _releases_of(event: LedgerEvent) -> tuple[TensorCharge, ...]:
    return (event,) if isinstance(event, CoveredRelease) else releases_of(event)


def release_sha256(signed: common_pb2.SignedRelease) -> bytes:
    """The hash that names a release in the ledger: SHA-256 of its signed bytes."""
    return hashlib.sha256(signed.release).digest()


def opened_noise(found: Round, record: bytes | None, sealer: Sealer | None) -> RoundNoise:
    """The noise of a charged round, from the record under ``noise_key``. Raises StateError if it is missing or changed.

    ``sealer`` is of the round; None if its secret is erased.
    """
    releases = found.noised(found.query)
    if not releases:
        return RoundNoise(found.record.noise_id, {})
    if record is None or sealer is None:
        raise StateError(f"the noise of round {found.number} is not stored; restore the newest state folder")
    return RoundNoise.decode(sealer.open(noise_key(found.task_sha256, found.number), record), releases)

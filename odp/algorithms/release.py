"""From exact sums to a release: the noise of a declared release, its charge, and the values that a server reads.

Shared by the aggregator's enclave and the simulator, so that both release the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from odp.algorithms.cohorts import draw_of, draws_of
from odp.algorithms.declared import (
    DeclaredRelease,
    GaussianSum,
    SharedNoiseSum,
    ShuffledCounts,
    StreamSum,
    TensorCharge,
)
from odp.algorithms.seam import Algorithm, Query
from odp.errors import ConfigurationError, PrivacyError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import (
    DistributedRelease,
    Event,
    GaussianRelease,
    SampledRound,
    Sampling,
    StreamRelease,
)
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent, charged
from odp.privacy.local_events import ShuffledReports
from odp.privacy.mechanisms.rounded_gaussian import IntegerNoise
from odp.protocol.aggregation import mode_of
from odp.v1 import common_pb2

#: Up to here a release travels, is sealed and is logged as one message of at most 32 MiB, with room for all that is not
#: integers. The integers of a longer one travel in pieces, and the release has their hash.
LARGEST_ATTACHED_BYTES = 31 * 2**20
#: The integers of a release at all: of 2^25 numbers.
LARGEST_RELEASE_BYTES = 2**28
#: A contribution: the numbers of the largest release in 8 bits each.
LARGEST_CONTRIBUTION_BYTES = 2**25
_INTEGER_BYTES = 8

_WRITTEN = {
    Adjacency.ZERO_OUT_USER: common_pb2.ADJACENCY_ZERO_OUT_USER,
    Adjacency.ADD_REMOVE_USER: common_pb2.ADJACENCY_ADD_REMOVE_USER,
}


def release_bytes(releases: Iterable[DeclaredRelease]) -> int:
    """Length of the integers of a round's release."""
    return _INTEGER_BYTES * sum(release.coordinates for release in releases)


def is_detached(releases: Iterable[DeclaredRelease]) -> bool:
    """Whether the integers of a round's release, or its noise, travel in pieces beside the message."""
    return release_bytes(releases) > LARGEST_ATTACHED_BYTES


def require_sizes(query: Query, definition: common_pb2.TaskDefinition) -> None:
    """Returns if release and contributions of a round can travel.

    Raises ConfigurationError, which names the limit.
    """
    size = release_bytes(query.releases)
    numbers = size // _INTEGER_BYTES
    mode = mode_of(definition.cohort)
    whole, largest = "", LARGEST_RELEASE_BYTES
    if any(isinstance(release, StreamSum) for release in query.releases):
        whole, largest = "a stream keeps its sums", LARGEST_ATTACHED_BYTES
    elif mode.in_session:
        whole, largest = f"aggregation={mode.name!r} takes its sum", LARGEST_ATTACHED_BYTES
    elif definition.HasField("model"):
        whole, largest = "a model of items is released", LARGEST_ATTACHED_BYTES
    if size > largest:
        raise ConfigurationError(
            f"Expected releases of at most {largest:,} bytes, got {size:,} for {numbers:,} numbers"
            + (f": {whole} in one message" if whole else "")
            + "; release fewer numbers: take a smaller model, fewer items or bins, or a lower rank, or odp.simulate"
        )
    if query.payload_bytes > LARGEST_CONTRIBUTION_BYTES:
        raise ConfigurationError(
            f"Expected contributions of at most {LARGEST_CONTRIBUTION_BYTES:,} bytes, got {query.payload_bytes:,} for "
            f"{numbers:,} numbers; "
            + ("take a smaller model" if mode.dense_only else "take a lower upload_bits, or a smaller model")
            + ", or odp.simulate"
        )


def draw_noise(release: DeclaredRelease, noise: IntegerNoise) -> Int64Array:
    """Integer noise in grid units, int64 of the release's shape: column c has the std column_std[c] / step.

    It lives on the grid of the sums themselves (rule P18): coarser noise would show the sums modulo its own grid.
    Shuffled reports have none: zeros.
    """
    match release:
        case ShuffledCounts():
            return np.zeros(release.shape, dtype=np.int64)
        case SharedNoiseSum() | StreamSum() | GaussianSum(packed=False):
            return noise.sample(release.noise_std / release.step, release.coordinates).reshape(release.shape)
    width = release.shape[-1]
    rows = release.coordinates // width
    draws = np.empty((rows, width), dtype=np.int64)
    ratios = release.column_std / release.step
    for ratio in np.unique(ratios):
        columns = np.flatnonzero(ratios == ratio)
        sample = noise.sample(float(ratio), rows * len(columns)).reshape(rows, len(columns))
        # Runs of neighbours are copied as such: several times as fast as column by column.
        breaks = np.flatnonzero(np.diff(columns) != 1) + 1
        if len(breaks) > len(columns) // 4:
            draws[:, columns] = sample
            continue
        start = 0
        for stop in (*breaks.tolist(), len(columns)):
            draws[:, columns[start] : columns[start] + stop - start] = sample[:, start:stop]
            start = stop
    return draws.reshape(release.shape)


def sampling_of(definition: common_pb2.TaskDefinition, round: int) -> Sampling | None:
    """How the enclave draws the contributions of a round; None where every one counts.

    Raises:
        ConfigurationError: a number of the draw is missing or out of range, or there is no such round.
    """
    return draw_of(definition.cohort, round)


def charges_of(query: Query) -> tuple[TensorCharge, ...]:
    """The charge of each release of one round. Raises as ``Sums.charge``."""
    return tuple(release.charge for release in query.releases)


def charge_of(event: TensorCharge) -> common_pb2.Charge:
    """The event as a signed release states it."""
    if isinstance(event, CoveredRelease):
        charge = charge_of(event.stream)
        charge.stream.place = event.place
        return charge
    if isinstance(event, ShuffledReports):
        shuffled = common_pb2.Charge.Shuffled(
            report_epsilon=event.epsilon0, reports=event.reports, choices=event.choices
        )
        return common_pb2.Charge(name=event.name, adjacency=_WRITTEN[event.adjacency], shuffled=shuffled)
    stream = None
    if isinstance(event, StreamRelease):
        stream = common_pb2.Charge.Stream(
            rounds=event.rounds, most=event.most, separation=event.separation, matrix_sha256=event.matrix_sha256
        )
    return common_pb2.Charge(
        name=event.name,
        sensitivity=event.sensitivity,
        noise_std=event.noise_std,
        coordinates=event.coordinates,
        sharers=event.sharers if isinstance(event, DistributedRelease) else 0,
        step=event.step if isinstance(event, DistributedRelease) else 0.0,
        adjacency=_WRITTEN[event.adjacency],
        graph_delta=event.graph_delta if isinstance(event, DistributedRelease) else 0.0,
        stream=stream,
    )


def event_of(charge: common_pb2.Charge) -> TensorCharge:
    """The inverse of ``charge_of``.

    Raises:
        ConfigurationError: numbers that no event has.
        PrivacyError: no adjacency, or one that the mechanism's bound is not for.
    """
    adjacency = next((kind for kind, number in _WRITTEN.items() if number == charge.adjacency), None)
    if adjacency is None:
        raise PrivacyError(
            f"charge {charge.name!r} names no known adjacency: read it with the version of the program that made it"
        )
    in_shares = bool(charge.sharers or charge.step or charge.graph_delta)
    if charge.HasField("shuffled"):
        noised = charge.sensitivity or charge.noise_std or charge.coordinates or charge.HasField("stream")
        if in_shares or noised:
            raise ConfigurationError(f"Expected charge {charge.name!r} of shuffled reports to have no noise")
        return ShuffledReports(
            name=charge.name, epsilon0=charge.shuffled.report_epsilon, reports=charge.shuffled.reports,
            choices=charge.shuffled.choices, adjacency=adjacency,
        )  # fmt: skip
    if charge.HasField("stream"):
        if in_shares:
            raise ConfigurationError(f"Expected charge {charge.name!r} of a stream to have no noise in shares")
        stream = StreamRelease(
            name=charge.name, sensitivity=charge.sensitivity, noise_std=charge.noise_std,
            coordinates=charge.coordinates, adjacency=adjacency, rounds=charge.stream.rounds, most=charge.stream.most,
            separation=charge.stream.separation, matrix_sha256=charge.stream.matrix_sha256,
        )  # fmt: skip
        return CoveredRelease(stream, charge.stream.place) if charge.stream.place else stream
    if not in_shares:
        return GaussianRelease(
            charge.name, charge.sensitivity, charge.noise_std, charge.coordinates, adjacency=adjacency
        )
    return DistributedRelease(
        name=charge.name, sensitivity=charge.sensitivity, noise_std=charge.noise_std, coordinates=charge.coordinates,
        sharers=charge.sharers, step=charge.step, graph_delta=charge.graph_delta, adjacency=adjacency,
    )  # fmt: skip


def round_entry(query: Query, sampling: Sampling | None) -> tuple[LedgerEvent, ...]:
    """What the ledger lists for one round: one event per release, or one for all of them over one draw (P8).

    Raises:
        PrivacyError: as ``charges_of``; or noise in shares, or a stream, together with sampling.
    """
    return _entry(charges_of(query), sampling)


def _entry(releases: tuple[TensorCharge, ...], sampling: Sampling | None) -> tuple[LedgerEvent, ...]:
    if sampling is None:
        return releases
    if any(isinstance(release, ShuffledReports) for release in releases):
        raise PrivacyError(
            "shuffled reports cannot be charged together with sampling: their charge assumes all reports"
        )
    if any(isinstance(release, (StreamRelease, CoveredRelease)) for release in releases):
        raise PrivacyError("a stream cannot be charged together with sampling: its charge assumes none")
    gaussians = tuple(release for release in releases if isinstance(release, GaussianRelease))
    if len(gaussians) < len(releases):
        raise PrivacyError("noise in shares cannot be charged together with sampling: nobody could draw in secret")
    return (SampledRound(gaussians, sampling),)


def round_charges(query: Query, sampling: Sampling | None) -> tuple[Event, ...]:
    """What one round costs: ``round_entry`` without releases that a stream's earlier charge covers."""
    return charged(round_entry(query, sampling))


def planned_entries(algorithm: Algorithm) -> list[tuple[LedgerEvent, ...]]:
    """``round_entry`` of each planned round, in order; nothing for a task without rounds. Raises as ``round_entry``."""
    planned = algorithm.planned_releases()
    draws = draws_of(algorithm.definition.cohort, rounds=len(planned)) if planned else []
    entries: list[tuple[LedgerEvent, ...]] = []
    before: tuple[object, object] | None = None
    for releases, draw in zip(planned, draws, strict=True):
        # Of up to 10,000 rounds, most are as the one before.
        alike = before is not None and before[0] is releases and before[1] is draw
        entries.append(entries[-1] if alike else _entry(tuple(release.charge for release in releases), draw))
        before = releases, draw
    return entries


def planned_charges(algorithm: Algorithm) -> list[tuple[Event, ...]]:
    """What each planned round costs, in order; nothing for a task without rounds."""
    return [charged(entry) for entry in planned_entries(algorithm)]


def to_values(release: DeclaredRelease, integers: Int64Array) -> Float64Array:
    """The released float64 values: integers times the grid's step."""
    return integers.reshape(release.shape).astype(np.float64) * release.step

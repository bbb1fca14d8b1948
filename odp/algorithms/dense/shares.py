"""The SecAgg+ session of a round as its task defines it: host and device make the same configuration, byte for byte.

A device compares the configuration that it is offered with its own, so a host cannot widen a range, lower the minimum
or declare another threat than the developer signed.

A device's vector with its share of the noise: what it masks in a SecAgg+ session.

Each number of a share is an independent discrete Gaussian of variance v / m in steps of the grid, v the variance that
is charged and m the fewest honest devices in any sum that is unmasked. Guarantee: whichever devices drop out, every
sum that is unmasked holds the shares of at least m honest devices, so its noise is never below what is charged; more
devices, and corrupt ones, only add to it.

A share protects one sum. A device that has sent a noisy vector, masked, takes part in no other session of that round:
the same share in two sums would show their difference, and a fresh one in a second sum would be a second release
without a charge.

No overflow: a share is cut at 14 standard deviations, so a number is within ``grid.bound`` and a sum of
``grid.maximum`` of them below 2^31, with certainty. The cut changes a share with a probability below 1e-42.

Source: Kairouz, Liu, Steinke 2021, algorithm 1, without its rotation; privacy rules P17 and P21.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.query import DenseQuery
from odp.crypto.secure_aggregation.ring import Ring
from odp.crypto.secure_aggregation.terms import is_secagg
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array
from odp.privacy.mechanisms.discrete_gaussian import LARGEST_STD, DiscreteGaussian, NoiseSource
from odp.v1 import common_pb2, secure_aggregation_pb2


def ring_of(grid: Grid) -> Ring:
    """The ring of a session that sums noisy vectors of ``grid``: what its configuration has to say.

    Raises ConfigurationError where the grid has no sharers.
    """
    _require_shared(grid)
    return Ring(bits=32, bound=grid.bound, maximum=grid.maximum)


def share_of(grid: Grid, source: NoiseSource) -> Int64Array:
    """One device's share of the noise, int64 [size], in steps. Raises ConfigurationError without sharers."""
    _require_shared(grid)
    return _law(grid.share_std).draw(grid.size, source)


def sum_of_shares(grid: Grid, source: NoiseSource, *, sharers: int) -> Int64Array:
    """What the shares of ``sharers`` devices add up to, int64 [size], in far fewer draws: for simulation.

    Sums of shares are within a factor e^(+-tau) of discrete Gaussians (``odp.privacy.concentrated``), tau < 1e-60: this
    draws those, of as much variance as fits a table. Raises ConfigurationError without sharers.
    """
    _require_shared(grid)
    total = np.zeros(grid.size, dtype=np.int64)
    batch = max(1, int((LARGEST_STD / grid.share_std) ** 2))
    for start in range(0, sharers, batch):
        shares = min(batch, sharers - start)
        total += _law(grid.share_std * float(np.sqrt(shares))).draw(grid.size, source)
    return total


def signed(total: npt.NDArray[np.uint32]) -> Int64Array:
    """The integers behind an unmasked sum, int64 [n], between -2^31 and 2^31 - 1; of its residues modulo 2^32."""
    return np.ascontiguousarray(total, dtype=np.uint32).view(np.int32).astype(np.int64)


@functools.lru_cache(maxsize=8)
def _law(std: float) -> DiscreteGaussian:
    return DiscreteGaussian(std)


def _require_shared(grid: Grid) -> None:
    if not grid.sharers:
        raise ConfigurationError("Expected a task with aggregation='secagg+': in others, no device adds noise")


def secagg_config(
    definition: common_pb2.TaskDefinition,
    *,
    query: DenseQuery,
    task_sha256: bytes,
    round: int,
    model_sha256: bytes,
    attempt: int,
) -> bytes:
    """The serialized SecAggConfig of an attempt of a round.

    Numbers are those of ``query.grid``, the noise shares included in their bound, so the sum needs no further room.

    Raises:
        ConfigurationError: the task's rounds are no SecAgg+ sessions.
    """
    _require(definition)
    terms, ring = definition.cohort.secagg, ring_of(query.grid)
    return secure_aggregation_pb2.SecAggConfig(
        task_sha256=task_sha256,
        round=round,
        model_sha256=model_sha256,
        length=query.grid.size,
        bits=ring.bits,
        bound=ring.bound,
        maximum=ring.maximum,
        noise_bound=ring.noise,
        minimum=definition.cohort.minimum,
        lying_server=terms.lying_server,
        corrupt=terms.corrupt,
        dropout=terms.dropout,
        roster_size=terms.roster_size,
        attempt=attempt,
    ).SerializeToString(deterministic=True)


def draw_share(definition: common_pb2.TaskDefinition, query: DenseQuery, source: NoiseSource) -> Int64Array:
    """A device's share of the noise, int64 [size], in steps of the query's grid; see above how to use it.

    Raises:
        ConfigurationError: the task's rounds are no SecAgg+ sessions.
    """
    _require(definition)
    return share_of(query.grid, source)


def _require(definition: common_pb2.TaskDefinition) -> None:
    if not is_secagg(definition):
        raise ConfigurationError(f"Expected task {definition.name!r} to have aggregation='secagg+'")

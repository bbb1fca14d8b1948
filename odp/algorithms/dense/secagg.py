"""The SecAgg+ session of a round as its task defines it: host and device make the same configuration, byte for byte.

A device compares the configuration that it is offered with its own, so a host cannot widen a range, lower the minimum
or declare another threat than the developer signed.
"""

from __future__ import annotations

from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.shares import ring_of, share_of
from odp.crypto.secure_aggregation.terms import is_secagg
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array
from odp.privacy.mechanisms.noise_source import NoiseSource
from odp.v1 import common_pb2, secure_aggregation_pb2


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
    """A device's share of the noise, int64 [size], in steps of the query's grid; ``shares.py`` says how to use it.

    Raises:
        ConfigurationError: the task's rounds are no SecAgg+ sessions.
    """
    _require(definition)
    return share_of(query.grid, source)


def _require(definition: common_pb2.TaskDefinition) -> None:
    if not is_secagg(definition):
        raise ConfigurationError(f"Expected task {definition.name!r} to have aggregation='secagg+'")

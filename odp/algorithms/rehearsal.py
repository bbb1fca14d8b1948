"""Tasks that enclaves run through before they can import nothing more, with their contributions drawn in secret."""

from __future__ import annotations

from collections.abc import Iterable

from odp.aggregation.table import mode_of
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import SampledQuery
from odp.v1 import common_pb2


def sampled(definitions: Iterable[common_pb2.TaskDefinition]) -> tuple[common_pb2.TaskDefinition, ...]:
    """Of tasks without sampling, those that can have it, with it: one per kind of query, as accounting takes long.

    Their noise stays: it is more than the draw needs, but the exact amount takes seconds to find.
    """
    copies = []
    kinds: set[tuple[str | None, type]] = set()
    for definition in definitions:
        algorithm = algorithm_for(definition)
        query = algorithm.query(0)
        kind = (definition.WhichOneof("local_data"), type(query))
        samples = mode_of(definition.cohort).samples and algorithm.samples
        if samples and isinstance(query, SampledQuery) and kind not in kinds:
            kinds.add(kind)
            copy = common_pb2.TaskDefinition()
            copy.CopyFrom(definition)
            copy.cohort.enclave_poisson.CopyFrom(
                common_pb2.EnclavePoisson(probability=0.01, most_contributions=2, cap=2)
            )
            copies.append(copy)
    return tuple(copies)

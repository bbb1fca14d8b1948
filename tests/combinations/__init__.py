"""One small task of each kind that an enclave takes part in, with what a device sends to each of its rounds.

``python -m combinations.recording`` writes them into ``recorded.zip``: bytes that enclaves go on to take.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from types import ModuleType

from odp.algorithms.registry import TABLE, algorithm_for
from odp.algorithms.seam import SampledQuery
from odp.crypto.segments import SEGMENT_BYTES
from odp.protocol.aggregation import MODES, mode_of
from odp.v1 import common_pb2

# Numbers of a contribution that is sealed in segments, for its length.
_LARGE = SEGMENT_BYTES // 4 + 1


@functools.cache
def unsampled() -> tuple[common_pb2.TaskDefinition, ...]:
    """A small task of each kind in which every contribution counts."""
    # How a task names each mode, and the fewest contributions that a round of it can have.
    aggregations = {name: mode.minimum for name, mode in MODES.items()}
    return tuple(definition for module in _modules() for definition in module.aggregated(aggregations, large=_LARGE))


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves."""
    definitions = tuple(definition for module in _modules() for definition in module.published())
    return (*definitions, *sampled(definitions))


def sampled(definitions: Iterable[common_pb2.TaskDefinition]) -> tuple[common_pb2.TaskDefinition, ...]:
    """Of tasks without sampling, those that can have it, with it: one per kind of query, as accounting takes long.

    Their noise stays: it is more than the draw needs, but the exact amount takes seconds to find.
    """
    drawn = []
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
            drawn.append(copy)
    return tuple(drawn)


def _modules() -> list[ModuleType]:
    packages = dict.fromkeys(entry.package.rpartition(".")[2] for entry in TABLE.values() if not entry.local)
    return [importlib.import_module(f"combinations.{package}") for package in packages]

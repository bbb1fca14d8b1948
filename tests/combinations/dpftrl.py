"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from combinations.federated import aggregated_by, published_by
from odp.algorithms.dpftrl.config import DPFTRL
from odp.privacy.matrix.blt import BITS
from odp.protocol.aggregation import ENCLAVE, SECAGG
from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    ways = {name: aggregations[name] for name in (ENCLAVE, *aggregations) if name != SECAGG}
    trees = aggregated_by(DPFTRL(rounds=2, mechanism="tree"), ways)
    return (*trees, *map(_banded, trees), _buffered(trees[0]))


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definitions = published_by(DPFTRL.field)
    for definition in definitions:
        stream = definition.dpftrl.stream
        stream.most = stream.separation = 1
        stream.tree.SetInParent()
    return definitions


def _banded(tree: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """The task with another encoder of the same noise; the best one takes a second to find."""
    changed = common_pb2.TaskDefinition()
    changed.CopyFrom(tree)
    changed.dpftrl.stream.banded.bits = 1
    changed.dpftrl.stream.banded.coefficients.extend((2, 1))
    return changed


def _buffered(tree: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    changed = common_pb2.TaskDefinition()
    changed.CopyFrom(tree)
    half = 1 << (BITS - 1)
    changed.dpftrl.stream.buffered.scales.append(half)
    changed.dpftrl.stream.buffered.decays.append(half)
    changed.dpftrl.blocks[0].dense.grid_bits -= 8  # its encoded grid is 2^20 finer, and noise has a most of steps
    return changed

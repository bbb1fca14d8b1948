"""No enclave takes part in these tasks, so none rehearses them. One that is handed such a task has to refuse it."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.local_heavy_hitters import algorithm as _read_by_who_refuses  # noqa: F401
from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """None."""
    return ()


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """None."""
    return ()

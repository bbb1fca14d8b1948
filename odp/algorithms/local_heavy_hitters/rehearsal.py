"""No enclave takes part in these tasks, so none rehearses them."""

from __future__ import annotations

from collections.abc import Mapping

from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """None."""
    return ()


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """None."""
    return ()

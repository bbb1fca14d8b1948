"""The trusted aggregator: sums encrypted contributions in an enclave, one charged and noisy release per round.

The names below are loaded when first used: the enclave's process imports this package too, and has no use for gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odp.transport.running import Running
    from trusted_aggregator.host.config import Config
    from trusted_aggregator.host.program import start

__all__ = ["Config", "Running", "start"]

_HOME = {
    "Config": "trusted_aggregator.host.config",
    "Running": "odp.transport.running",
    "start": "trusted_aggregator.host.program",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'trusted_aggregator' has no attribute {name!r}")

"""The distributor: devices get the rows of a model that they need, and its host does not learn which.

The names below are loaded when first used: the enclave's process imports this package too, and has no use for gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributor.program import Config, start
    from odp.transport.running import Running

__all__ = ["Config", "Running", "start"]

_HOME = {"Config": "distributor.program", "Running": "odp.transport.running", "start": "distributor.program"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'distributor' has no attribute {name!r}")

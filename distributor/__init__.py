"""The distributor: devices get the rows of a model that they need, and its host does not learn which.

The names below are loaded when first used: the enclave's process imports this package too, and has no use for gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from distributor.program import Config, start
    from odp.transport.running import Running

__all__ = ["Config", "Running", "start"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Config": "distributor.program",
        "Running": "odp.transport.running",
        "start": "distributor.program",
    },
)

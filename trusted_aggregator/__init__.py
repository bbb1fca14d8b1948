"""The trusted aggregator: sums encrypted contributions in an enclave, one charged and noisy release per round.

The names below are loaded when first used: the enclave's process imports this package too, and has no use for gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from odp.transport.running import Running
    from trusted_aggregator.host.config import Config
    from trusted_aggregator.host.program import start

__all__ = ["Config", "Running", "start"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Config": "trusted_aggregator.host.config",
        "Running": "odp.transport.running",
        "start": "trusted_aggregator.host.program",
    },
)

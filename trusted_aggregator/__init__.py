"""The trusted aggregator: sums encrypted contributions in an enclave, one charged and noisy release per round."""

from odp.transport.running import Running
from trusted_aggregator.program import Config, start

__all__ = ["Config", "Running", "start"]

"""The trusted aggregator: sums encrypted contributions in an enclave, one charged and noisy release per round."""

from trusted_aggregator.program import Config, Running, start

__all__ = ["Config", "Running", "start"]

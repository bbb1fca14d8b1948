"""The aggregator's enclave under another name."""

from trusted_aggregator.enclave.process import run, warm_up

__all__ = ["run", "warm_up"]

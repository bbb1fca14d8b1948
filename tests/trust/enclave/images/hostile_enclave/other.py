"""The same enclave by another image."""

from hostile_enclave.entry import run, warm_up

__all__ = ["run", "warm_up"]

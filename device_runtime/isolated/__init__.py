"""Runs a developer's on-device code (``odp.IsolatedService``) in its own processes; the host's side."""

from device_runtime.isolated.code import ServiceCode
from device_runtime.isolated.host import Asked, IsolatedHost, Result, Standing
from device_runtime.isolated.limits import CallLimits, HandlerFailed, Reason
from device_runtime.isolated.stores import MemoryStore, ServiceStore

__all__ = [
    "Asked",
    "CallLimits",
    "HandlerFailed",
    "IsolatedHost",
    "MemoryStore",
    "Reason",
    "Result",
    "ServiceCode",
    "ServiceStore",
    "Standing",
]

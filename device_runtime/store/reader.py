"""Another connection to a store that is open already, for what reads or writes a person's data beside its owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from device_runtime.store.database import connected, errors
from device_runtime.store.keys import StoreKey
from device_runtime.store.store import Store


def beside(path: Path, key: StoreKey, *, over: Callable[[], bool] = lambda: False) -> Store:
    """Opens the store at ``path`` once more.

    Once ``over`` is true, its statements end, also one under way: they raise TimeoutError.

    Raises:
      StateError: it cannot be opened.
    """
    with errors(path):
        store = Store(path, connected(path, key), key=key)
    store.end_when(over)
    return store

"""A bounded memory of values, for what costs more to make than to keep."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """The ``most`` values that were stored or read last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """The value of ``key``; None where there is none any more."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        """Stores a value, and forgets the one that was not used for longest where there are too many."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of ``key``, made where there is none: one at a time, and whoever needs the same one waits for it.

        ``make`` may not need another value of this memory. Raises what ``make`` raises; nothing is stored then.
        """
        if (value := self.get(key)) is None:
            with self._making:
                if (value := self.get(key)) is None:
                    value = make()
                    self.put(key, value)
        return value

    def forget(self, key: _Key) -> None:
        """Forgets the value of ``key``. Idempotent."""
        with self._lock:
            self._values.pop(key, None)

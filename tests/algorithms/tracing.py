"""What a computation on numpy arrays did to memory, as far as its operations show it: for tests of obliviousness.

A traced array notes every operation on it: the name, and of every operand the shape, the strides, the type and the
offset into the memory that it is a view of; every index and every assignment, with the indices themselves; and every
value that leaves the arrays to become a Python number. Two runs with one trace had one sequence of operations on the
same places. That numpy's inner loops treat all elements of an operation alike is taken from their documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

_MAKERS = ("empty", "zeros", "ones", "full", "arange", "stack", "concatenate", "frombuffer", "zeros_like")


class Traced(np.ndarray):
    """An array whose operations are noted in ``Traced.notes``."""

    notes: list[object] = []  # noqa: RUF012

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        self.notes.append((function.__name__, method, *map(_place, (*inputs, *out)), sorted(options)))
        if out:
            options["out"] = tuple(map(_plain, out))
        return _traced(getattr(function, method)(*map(_plain, inputs), **options))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        result = function(*_plain(inputs), **{key: _plain(value) for key, value in options.items()})
        self.notes.append((function.__name__, _place(inputs), _place(result)))
        return _traced(result)

    def __getitem__(self, key: Any) -> Any:
        self.notes.append(("get", _place(self), _index(key)))
        return _traced(super().__getitem__(_plain(key)))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.notes.append(("set", _place(self), _index(key), _place(value)))
        super().__setitem__(_plain(key), _plain(value))

    def astype(self, *args: Any, **options: Any) -> Any:
        self.notes.append(("astype", _place(self), str(args)))
        return super().astype(*args, **options)

    def _leaves(self, kind: Callable[[Any], Any]) -> Any:
        value = kind(_plain(self))
        self.notes.append(("leaves", value))
        return value

    def __bool__(self) -> bool:
        return bool(self._leaves(bool))

    def __int__(self) -> int:
        return int(self._leaves(int))

    def __index__(self) -> int:
        return int(self._leaves(int))

    def __float__(self) -> float:
        return float(self._leaves(float))


def traced(array: np.ndarray) -> Traced:
    """The same array, noting what is done to it."""
    return array.view(Traced)


@contextmanager
def tracing(*modules: ModuleType) -> Iterator[list[object]]:
    """The notes of what happens inside; arrays that ``modules`` make are traced too."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Traced, "notes", []))
        for module in modules:
            stack.enter_context(mock.patch.object(module, "np", _Numpy()))
        yield Traced.notes


class _Numpy:
    """numpy, whose new arrays are traced."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name not in _MAKERS:
            return found
        return lambda *args, **options: _traced(found(*args, **options))


def _traced(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_traced, value))
    if isinstance(value, np.generic):
        value = np.asarray(value)
    return value.view(Traced) if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, Traced) else value


def _place(value: Any) -> object:
    if isinstance(value, (tuple, list)):
        return tuple(map(_place, value))
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    root = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    offset = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return value.shape, value.strides, value.dtype.str, offset


def _index(key: Any) -> object:
    if isinstance(key, tuple):
        return tuple(map(_index, key))
    return (key.shape, key.tobytes()) if isinstance(key, np.ndarray) else str(key)

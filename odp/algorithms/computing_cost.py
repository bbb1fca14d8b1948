"""What one device's contribution takes at most: a sum of products of a task's public caps, whatever the device holds.

Each product is monotone in its caps, so a larger cap never makes a task look cheaper. Units are constants of the
protocol: seconds and bytes on a device of the reference speed, measured by ``python -m benchmarks computing-time``.

>>> cost = ComputingCost({"epochs": 2, "most_examples": 100}, (Product(1e-3, "epochs", "most_examples"), Product(0.5)))
>>> cost.seconds
0.7
>>> cost.largest("epochs", seconds=0.6)
1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

#: One device's fixed work: its transaction, its checks, and sealing a short contribution.
BASE_SECONDS = 2e-3
#: Reading one stored row and turning it into numbers: of the table of ratings, or of events; and of labelled examples.
RATING_SECONDS, EVENT_SECONDS, EXAMPLE_SECONDS = 1e-6, 4e-6, 4e-6
#: Cleaning one number of an example.
NUMBER_SECONDS = 2e-8


class Product:
    """``unit`` times the caps of these names; without names, a constant."""

    __slots__ = ("names", "unit")

    def __init__(self, unit: float, *names: str) -> None:
        self.unit = unit
        self.names = names

    def of(self, caps: Mapping[str, int]) -> float:
        """Its value: seconds, or bytes."""
        return self.unit * math.prod(float(caps[name]) for name in self.names)


@dataclass(frozen=True)
class ComputingCost:
    """The worst case of one device's contribution.

    Attributes:
      caps: the task's public caps, by the names that its developer writes.
      products: whose sum is the time in seconds.
      memory: whose sum is the memory in bytes, beside that of the program itself.
    """

    caps: Mapping[str, int]
    products: tuple[Product, ...]
    memory: tuple[Product, ...] = ()

    @property
    def seconds(self) -> float:
        """On a device of the reference speed, without a safety factor."""
        return sum(product.of(self.caps) for product in self.products)

    @property
    def bytes(self) -> float:
        """Of memory."""
        return sum(product.of(self.caps) for product in self.memory)

    def largest(self, name: str, *, seconds: float) -> int:
        """The largest value of one cap, up to its own, with which ``seconds`` suffice; 0 where none does."""
        low, high = 0, self.caps[name]
        while low < high:
            middle = (low + high + 1) // 2
            if replace(self, caps={**self.caps, name: middle}).seconds <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

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

#: Of memory, beside that of the program: no task may need more on a device.
MOST_BYTES = 2.0**31
#: Of any contribution: its transaction, its checks, and sealing it where it is short.
BASE_SECONDS = 2e-3
#: Reading a stored row as numbers: a rating; an event, and each further column or filter of it; an example.
RATING_SECONDS, EVENT_SECONDS, COLUMN_SECONDS, FILTER_SECONDS, EXAMPLE_SECONDS = 1e-6, 1.5e-6, 1e-6, 4e-7, 1e-6
#: Reading and cleaning one number of an example, and finding one token of a text.
NUMBER_SECONDS, TOKEN_SECONDS = 3e-8, 5e-7
#: Sorting or counting one row; and drawing one example of an epoch's order, the shuffle of all rows included.
SORTED_SECONDS, DRAW_SECONDS = 3e-7, 6e-7
#: Writing and sealing one number of a vector; and rounding it, too, or with rotation.
SEALED_SECONDS, ROUNDED_SECONDS, ROTATED_SECONDS = 1e-8, 1e-7, 2e-7
#: Memory of a row in the interpreter, of one number of it, and of one number of a vector: arrays and their copies.
ROW_BYTES, NUMBER_BYTES, VECTOR_BYTES = 512, 32, 48


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

    def plus(
        self, *products: Product, memory: tuple[Product, ...] = (), caps: Mapping[str, int] | None = None
    ) -> ComputingCost:
        """This cost and further products, of its caps and of further ones."""
        return ComputingCost({**self.caps, **(caps or {})}, self.products + products, self.memory + memory)

    @property
    def seconds(self) -> float:
        """On a device of the reference speed, without a safety factor."""
        return sum(product.of(self.caps) for product in self.products)

    @property
    def bytes(self) -> float:
        """Of memory."""
        return sum(product.of(self.caps) for product in self.memory)

    def fits(self, *, seconds: float, bytes: float) -> bool:
        """Whether both suffice."""
        return self.seconds <= seconds and self.bytes <= bytes

    def largest(self, name: str, *, seconds: float, bytes: float = math.inf) -> int:
        """The largest value of one cap, up to its own, with which these suffice; 0 where none does."""
        low, high = 0, self.caps[name]
        while low < high:
            middle = (low + high + 1) // 2
            if replace(self, caps={**self.caps, name: middle}).fits(seconds=seconds, bytes=bytes):
                low = middle
            else:
                high = middle - 1
        return low

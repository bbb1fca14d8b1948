"""How many examples a figure is about, and why others were left out.

>>> test = LeftOut(2000, {"whose 'x' is not a number": 1176})
>>> print(test.sentence("test examples"))
of 824 of 2,000 test examples; left out: 1,176 whose 'x' is not a number

What testing a model on examples gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from odp.numerics.arrays import Float64Array, Int64Array

UNKNOWN = "unknown how many examples were usable"
"""Note on figures of devices: how many rows a person has, and of which kind, is private."""

#: Of a question that has all of its answers of the same examples.
ANSWERS = "answers"
#: The parts of a run's examples.
TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class LeftOut:
    """Of the examples of one table, those that a model could not use.

    It counts people's rows without noise: only the owner of the table may see it.

    Attributes:
      total: examples that the figure was asked for.
      reasons: how many were left out, by reason. An example counts once, under the first reason that applies.
    """

    total: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Examples that were left out."""
        return sum(self.reasons.values())

    @property
    def used(self) -> int:
        """Examples that the figure is about."""
        return self.total - self.count

    def without(self, count: int, reason: str) -> LeftOut:
        """The same with ``count`` further examples left out."""
        return LeftOut(self.total, {**self.reasons, reason: count}) if count else self

    def __str__(self) -> str:
        listed = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())
        return f"left out: {listed or 'none'}"

    def sentence(self, what: str) -> str:
        """How many of ``what`` a figure is about, to stand behind it."""
        if not self.count:
            return f"on {self.total:,} {what}"
        return f"of {self.used:,} of {self.total:,} {what}; {self}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"asked": self.total, "used": self.used, "left_out": self.count, "reasons": dict(self.reasons)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The opposite of ``to_json``."""
        return cls(int(plain["asked"]), {str(reason): int(count) for reason, count in plain["reasons"].items()})


def left_out_in_words(left_out: Mapping[str, LeftOut]) -> str:
    """What a run's figures leave out, to stand behind them; empty where they are about all examples."""
    test, train = left_out.get(TEST), left_out.get(TRAIN)
    parts = []
    if test is not None and test.count:
        parts.append(test.sentence("test examples"))
    if train is not None and train.count:
        parts.append(f"trained on {train.used:,} of {train.total:,} examples; {train}")
    return "; ".join(parts)


def columns_of_run(left_out: Mapping[str, LeftOut]) -> dict[str, Any]:
    """The same as columns of a table, beside the figures; none where a run has no examples."""
    columns: dict[str, Any] = {}
    for part, rows in left_out.items():
        columns |= {f"{part}_used": rows.used, f"{part}_left_out": rows.count}
    return columns | {"left_out": left_out_in_words(left_out)} if columns else {}


@dataclass(frozen=True)
class Tested:
    """Of n examples. Numbers may be anything, NaN too: a network's are its program's word.

    Attributes:
      losses: float64 [n].
      probabilities: of each class, float64 [n, classes], at least two; None where targets are numbers.
      places: of each example's item among those that the person did not choose, int64 [n], 0 the best; None where
        the model was not asked to rank. Then nothing else is computed, and ``losses`` is empty.
    """

    losses: Float64Array
    probabilities: Float64Array | None = None
    places: Int64Array | None = None

"""What a network computes, as functions of its weights: what devices' programs are made of and compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Functions:
    """What a network computes of its weights, one tensor per parameter of the program, and a whole batch.

    Attributes:
      predict: (weights, x) -> prediction [batch, ..].
      evaluate: (weights, x, targets) -> loss, and each metric of the program, by name: a number per example [batch].
    """

    predict: Callable[[Sequence[Any], Sequence[Any]], Any]
    evaluate: Callable[[Sequence[Any], Sequence[Any], Any], dict[str, Any]]

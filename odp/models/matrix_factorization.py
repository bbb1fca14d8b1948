"""Matrix factorization with biases: the shape of the model, not its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp import _validate

if TYPE_CHECKING:
    from odp.v1 import common_pb2


@_validate.strict_keywords
@dataclass(frozen=True)
class MatrixFactorization:
    """Rating of item j by user i = centre + bias of i + bias of j + <row of i, row of j>.

    User biases and rows are local parameters: each device solves for its own, and they never leave it.

    Attributes:
      items: number of items; ids are 0 .. items - 1.
      rank: width of the rows, up to 64; 0 is a model of biases only.

    Raises:
      ConfigurationError: a number is out of range.
    """

    items: int
    rank: int = 0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        _validate.integer(items=self.items, low=1, high=2**31 - 1)
        _validate.integer(rank=self.rank, low=0, high=64)

    def to_proto(self) -> common_pb2.MatrixFactorizationModel:
        """The message of a task definition."""
        from odp.v1 import common_pb2

        return common_pb2.MatrixFactorizationModel(items=self.items, rank=self.rank)

"""Columns of a table as a file or a frame has them, before anything is made of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from odp._system.extras import require

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(Enum):
    """What the values of a column are."""

    ID = "id"
    RATING = "rating"
    TIME = "time"
    NUMBER = "number"
    TEXT = "text"
    TITLE = "title"
    ANY = "any"


class TableColumns(Protocol):
    """Which columns of a table are read, and as what."""

    def within(self, names: Sequence[str], *, where: str) -> Self:
        """The same with every column found among ``names``. Raises DataError where one is missing or doubled."""

    @property
    def roles(self) -> dict[str, str]:
        """The columns by role, without those that the table does not have."""

    def kind(self, role: str) -> Kind:
        """What the column of a role holds."""


C = TypeVar("C", bound=TableColumns)


@dataclass(frozen=True)
class Broken:
    """A row that is no row of the table at all; ``line`` counts from 1."""

    line: int
    why: str


@dataclass(frozen=True)
class RawTable(Generic[C]):
    """Columns as they were found.

    Attributes:
      where: the table's name in messages.
      columns: with the names that were found.
      parts: Arrow columns by role.
      counted: "line" (of a file, from 1) or "row" (from 0): what positions in messages are.
      positions: int64 [rows]: where each row was found; a function, since it is needed for bad rows alone.
      broken: rows that were left out of ``parts``.
      notes: what the owner of the table has to know of how it was read.
    """

    where: str
    columns: C
    parts: dict[str, pa.ChunkedArray]
    counted: str
    positions: Callable[[], npt.NDArray[np.int64]]
    broken: tuple[Broken, ...] = ()
    notes: tuple[str, ...] = ()

    def place(self, row: int) -> str:
        """What messages call a row of ``parts``."""
        return f"{self.counted} {self.positions()[row]}"


def arrow() -> Any:
    """The package ``pyarrow``. Raises ConfigurationError, with the way to install it, where it is missing."""
    require("pyarrow", to="read tables")
    import pyarrow

    return pyarrow

"""Columns of a table as a file or a frame has them, before anything is made of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odp.datasets.columns import Columns
from odp.extras import require

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Broken:
    """A row that is no row of the table at all; ``line`` counts from 1."""

    line: int
    why: str


@dataclass(frozen=True)
class RawTable:
    """Columns as they were found.

    Attributes:
      where: the table's name in messages.
      columns: with the names that were found.
      parts: Arrow columns by role: "user", "item", and where there are such columns, "value" and "time".
      counted: "line" (of a file, from 1) or "row" (from 0): what positions in messages are.
      positions: int64 [rows]: where each row was found; a function, since it is needed for bad rows alone.
      broken: rows that were left out of ``parts``.
      notes: what the owner of the table has to know of how it was read.
    """

    where: str
    columns: Columns
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


def named_roles(columns: Columns) -> dict[str, str]:
    """The columns of a table by role, without those that it does not have."""
    roles = {"user": columns.user, "item": columns.item, "value": columns.value, "time": columns.time}
    return {role: name for role, name in roles.items() if name is not None}

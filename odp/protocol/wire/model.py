"""A model in transfer from the server to devices: all its tables, or the part that one device received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.wire.encoding import Encoding


@dataclass(frozen=True, repr=False)
class TableValues:
    """The values of one table: ``rows`` is float32 [n, width]; keyed tables are read by row, dense ones whole.

    ``encoding`` is how it is written; ``rows`` are then values that it does not change
    (``odp.protocol.wire.encoding.rounded``).
    """

    name: str
    rows: Float32Array
    keyed: bool
    encoding: Encoding = "float32"

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.rows.shape))
        return f"TableValues({self.name!r}, {size}, {'keyed' if self.keyed else 'dense'}, {self.encoding})"


@dataclass(frozen=True)
class ModelVersion:
    """Model version ``version``, trained on by the round of the same number. At most one table is keyed."""

    version: int
    tables: tuple[TableValues, ...]

    @property
    def keyed(self) -> TableValues:
        """The keyed table. Raises StopIteration if the model has none."""
        return next(table for table in self.tables if table.keyed)

    @property
    def dense(self) -> dict[str, Float32Array]:
        """The dense tables by name."""
        return {table.name: table.rows for table in self.tables if not table.keyed}

    def with_rows(self, rows: Float32Array) -> ModelVersion:
        """The same model with other rows in the keyed table."""
        return replace(self, tables=tuple(replace(table, rows=rows) if table.keyed else table for table in self.tables))


@dataclass(frozen=True, repr=False)
class Slices:
    """The rows that one device received: ``rows[i]`` is row ``keys[i]`` of the keyed table; keys are distinct and
    ascending.

    Shapes: keys int64 [k], rows float32 [k, width], dense by name.
    """

    version: int
    keys: Int64Array
    rows: Float32Array
    dense: Mapping[str, Float32Array]

    def __repr__(self) -> str:
        """The version only: which rows a device has follows from its data."""
        return f"Slices(version={self.version})"

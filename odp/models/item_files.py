"""Files of item tables: NumPy .npz, Parquet and ONNX.

=========  ==================================================================================================
ending     holds
=========  ==================================================================================================
.npz       keys, factors float32 [m, r], biases float32 [m], facts (JSON); popularity, shares float32 [m] if known
.parquet   columns key, factors (lists of float32), bias; popularity, share if known; facts in the schema's metadata
.onnx      a graph: users float32 [n, w] -> scores float32 [n, m] (``ItemTable.weights``); keys, shares if known (JSON)
           and facts in the model's metadata
=========  ==================================================================================================

The items of a trained model as a table for other tools.

A model scores item ``i`` for a user with the vector ``row`` [r], and, where ``user_bias`` is true, a bias of its own:

    score = offset + user bias + biases[i] + factors[i] . row

Of a model of implicit feedback, row is the sum of shares[j] * factors[j] over the items j that the user has shown,
divided by the length (root of the sum of squares) of these shares; the order of items is the same without.

Of a model of ratings, devices solve for (bias, row) and add a smooth part to what they predict, which a table does not
have (docs/dpam.md, "Taste that is not linear"): without it, with ``DPAM(kernel_variance=0)``, a table gives their very
predictions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from odp._system.extras import require
from odp._system.files.durability import write_whole
from odp.errors import ConfigurationError, DataError
from odp.models.warm_start import checked_keys, require_storable
from odp.numerics.archives import UNREADABLE, require_stored
from odp.numerics.arrays import Float32Array


class ItemColumns(NamedTuple):
    """What the rows of a model's items hold.

    Attributes:
      factors: float32 [m, r]; r may be 0.
      biases: float32 [m]; 0 where the model has none.
      popularity: about how many users each item has, float32 [m]; None where the model does not say.
      offset: what is added to every score.
      user_bias: whether users have a bias beside their vector.
      shares: how much of an item's factors goes into the row of a user who has shown it, float32 [m], before the
        division by their length (see the module); None where devices solve for the row.
    """

    factors: Float32Array
    biases: Float32Array
    popularity: Float32Array | None
    offset: float
    user_bias: bool
    shares: Float32Array | None = None


class IndexColumns(NamedTuple):
    """Numbers of items that a device ranks by: ``odp.serving`` keeps them quantised.

    Attributes:
      factors: float32 [m, r]; r may be 0.
      biases: float32 [m]; 0 where the model has none.
      trust: float32 [m], from 0 to 1: how much an item's row counts where a person's own row is solved.
    """

    factors: Float32Array
    biases: Float32Array
    trust: Float32Array


@dataclass(frozen=True, repr=False)
class ItemTable:
    """Items of a model, by key, and ``facts`` about where they are from and what is private about them.

    Attributes:
      keys: of the items [m], distinct and not empty.
      columns: the numbers, m rows each.
      facts: name -> text; see ``odp.items.export_items``.

    Raises:
      ConfigurationError: a key is empty or stands twice.
      DataError: columns have other sizes than keys, or a number is not finite.
    """

    keys: Sequence[str]
    columns: ItemColumns = field(repr=False)
    facts: Mapping[str, str]

    def __post_init__(self) -> None:
        """Checks."""
        object.__setattr__(self, "keys", checked_keys(self.keys, name="item_keys"))
        for name in ("factors", "biases", "popularity", "shares"):
            if (column := getattr(self.columns, name)) is None:
                continue
            if column.ndim != (2 if name == "factors" else 1) or len(column) != len(self.keys):
                raise DataError(
                    f"Expected {name} of {len(self.keys)} items, one row per key of item_keys "
                    f"(got {list(column.shape)})"
                )
            if not np.isfinite(column).all():
                raise DataError(f"Expected {name} of the model's items to be finite numbers: train it again")

    def __repr__(self) -> str:
        """Sizes only."""
        return f"ItemTable({len(self.keys)} items, {self.columns.factors.shape[1]} factors)"

    @property
    def weights(self) -> Float32Array:
        """Float32 [w, m]: ``users @ weights + offsets`` are scores. Users [n, w]: (bias, vector), or the vector alone.

        w is r + 1 with ``user_bias``, else r.
        """
        ours = self.columns
        ones = np.ones((int(ours.user_bias), len(self.keys)), dtype=np.float32)
        return np.concatenate((ones, ours.factors.T.astype(np.float32)))

    @property
    def offsets(self) -> Float32Array:
        """Float32 [m]: what an item's score is without a user."""
        return (self.columns.biases.astype(np.float64) + self.columns.offset).astype(np.float32)


_FORMAT = "odp-items-1"
_FACTS = "odp"
# Of columns that not every model has: their names, and those in tables of one row per item.
_OPTIONAL = {"popularity": "popularity", "shares": "share"}
# ONNX files are one message of protobuf.
_LARGEST_ONNX = 2**31 - 2**24
_OPSET, _IR_VERSION = 17, 8


def check_ending(path: Path) -> None:
    """Returns if a table can be written to a file of that name. Raises ConfigurationError."""
    _, needs = _form(path)
    if needs:
        require(needs, to=f"write {path.suffix} files")


def save(table: ItemTable, path: Path) -> None:
    """Writes .npz, .parquet or .onnx, by the ending; whole or not at all.

    Raises:
      ConfigurationError: another ending, a missing extra, keys that such files do not keep, or a place that cannot be
        written.
    """
    check_ending(path)
    write, _ = _form(path)
    require_storable(table.keys, name="item_keys")
    write_whole(path, (write(table),))


def load_items(path: str | Path) -> ItemTable:
    """The items of an .npz or .parquet file that ``odp.items.export_items`` wrote.

    Raises:
      ConfigurationError: another ending, or a missing extra.
      DataError: the file cannot be read, or holds something else.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ConfigurationError(f"cannot read items of {path}: give a file that ends in .npz or .parquet")
    if path.suffix == ".parquet":
        require("pyarrow", to="read .parquet files")
    try:
        return _READERS[path.suffix](path)
    except OSError as error:
        # pyarrow's errors of form are OSErrors, too, without a number.
        raise DataError(f"cannot read the items of {path}: {error.strerror or 'damaged, or another form'}") from error
    except ConfigurationError as error:
        raise DataError(f"{path} is a damaged table of items: {error}") from error
    except UNREADABLE as error:
        raise DataError(f"{path} is no table of items; write one by `odp simulate --export`") from error


def _form(path: Path) -> tuple[Callable[[ItemTable], bytes], str]:
    if path.suffix not in _WRITERS:
        raise ConfigurationError(
            f"cannot export to {path}: give a file that ends in .npz, .parquet, .onnx or .index (got {path.suffix!r})"
        )
    return _WRITERS[path.suffix]


def _described(table: ItemTable) -> str:
    """Facts, and the numbers of the table that are no columns, as JSON."""
    header = {"format": _FORMAT, "offset": table.columns.offset, "user_bias": table.columns.user_bias}
    return json.dumps(header | {"facts": dict(table.facts)}, ensure_ascii=False)


def _table_of(
    described: str,
    keys: list[str],
    factors: Float32Array,
    biases: Float32Array,
    *,
    popularity: Float32Array | None,
    shares: Float32Array | None,
) -> ItemTable:
    header: dict[str, Any] = json.loads(described)
    if header["format"] != _FORMAT:
        raise KeyError("format")
    columns = ItemColumns(
        factors, biases, popularity, offset=header["offset"], user_bias=header["user_bias"], shares=shares
    )
    return ItemTable(keys=keys, columns=columns, facts=header["facts"])


def _npz(table: ItemTable) -> bytes:
    columns, file = table.columns, io.BytesIO()
    arrays: dict[str, Any] = {
        "keys": np.array(table.keys, dtype=np.str_), "factors": columns.factors, "biases": columns.biases,
    }  # fmt: skip
    arrays |= {name: column for name in _OPTIONAL if (column := getattr(columns, name)) is not None}
    np.savez(file, facts=np.array(_described(table)), **arrays)
    return file.getvalue()


def _from_npz(path: Path) -> ItemTable:
    require_stored(path)
    with np.load(path, allow_pickle=False) as archive:
        optional = {name: archive.get(name) for name in _OPTIONAL}
        return _table_of(
            str(archive["facts"]), archive["keys"].tolist(), archive["factors"], archive["biases"], **optional
        )


def _parquet(table: ItemTable) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    columns, file = table.columns, io.BytesIO()
    m, rank = columns.factors.shape
    offsets = pa.array(np.arange(m + 1, dtype=np.int64) * rank)
    factors = pa.LargeListArray.from_arrays(offsets, pa.array(columns.factors.reshape(-1)))
    arrays = {"key": pa.array(list(table.keys)), "factors": factors, "bias": pa.array(columns.biases)}
    for name, title in _OPTIONAL.items():
        if (column := getattr(columns, name)) is not None:
            arrays[title] = pa.array(column)
    facts = {f"odp.{name}": text for name, text in table.facts.items()}
    metadata = {_FACTS: _described(table), "odp.rank": str(rank)} | facts
    pyarrow.parquet.write_table(pa.table(arrays, metadata=metadata), file)
    return file.getvalue()


def _from_parquet(path: Path) -> ItemTable:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    metadata = table.schema.metadata or {}
    flat = table["factors"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    rank = int(metadata[b"odp.rank"])
    factors = flat.astype(np.float32, copy=False).reshape(table.num_rows, rank)
    optional = {
        name: table[title].to_numpy() if title in table.column_names else None for name, title in _OPTIONAL.items()
    }
    keys, biases = table["key"].to_pylist(), table["bias"].to_numpy()
    return _table_of(metadata[_FACTS.encode()].decode(), keys, factors, biases, **optional)


def _onnx(table: ItemTable) -> bytes:
    from onnx import TensorProto, checker, helper, numpy_helper

    weights, m = table.weights, len(table.keys)
    size = weights.nbytes + sum(len(key) + 8 for key in table.keys)
    if size > _LARGEST_ONNX:
        raise ConfigurationError(f"{m} items are too many for one .onnx file; export to .npz or .parquet")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["users", "weights"], ["products"]),
            helper.make_node("Add", ["products", "offsets"], ["scores"]),
        ],
        "items",
        [helper.make_tensor_value_info("users", TensorProto.FLOAT, ["n", len(weights)])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", m])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(table.offsets, "offsets")],
    )
    model = helper.make_model(
        graph, producer_name="odp", opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    props: dict[str, str] = {"keys": json.dumps(list(table.keys), ensure_ascii=False)} | dict(table.facts)
    if table.columns.shares is not None:
        props["shares"] = json.dumps(table.columns.shares.tolist())
    helper.set_model_props(model, props)
    checker.check_model(model)
    return bytes(model.SerializeToString())


#: Ending -> (how a table is written, the module that it takes).
_WRITERS: dict[str, tuple[Callable[[ItemTable], bytes], str]] = {
    ".npz": (_npz, ""),
    ".parquet": (_parquet, "pyarrow"),
    ".onnx": (_onnx, "onnx"),
}
_READERS: dict[str, Callable[[Path], ItemTable]] = {".npz": _from_npz, ".parquet": _from_parquet}

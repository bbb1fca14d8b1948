"""Jester 1: real-valued ratings of 100 jokes, -10..+10.

Forms: ``jester1.npz`` (``rating_x100`` int16 [users, jokes], 9900 = not rated); the published workbook
``jester-data-1.xls``; and the same table as ``jester-data-1.csv``. In the last two the first column counts the
user's ratings and 99 means "not rated". There are no times, so ``order`` is None.

Source: K. Goldberg, T. Roeder, D. Gupta, C. Perkins, "Eigentaste", Information Retrieval 4(2), 2001.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp.datasets import _parsing
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.archives import arrays_of

_NAMES = ("jester1.npz", "jester-data-1.csv", "jester-data-1.xls")
_UNRATED = 99.0
_LOW, _HIGH = -10.0, 10.0


def load_jester(path: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """Reads Jester from a folder that holds one of the forms, or from such a file.

    Jokes are numbered from 0 in their original order; a joke that nobody rated is left out, unless ``whole_catalogue``.

    Raises:
      DataError: no form is recognised, a count disagrees with its row, or a rating is out of [-10, 10].
    """
    source = Path(path)
    file = _parsing.find(source, *_NAMES) if source.is_dir() else source
    if file is None:
        raise DataError(f"{source}: no Jester file here; expected one of {', '.join(_NAMES)}")
    if file.suffix == ".npz":
        table = _read_npz(file)
    elif file.suffix == ".xls":
        from odp.datasets._xls import read_numbers

        table = _checked_counts(file, read_numbers(file))
    else:
        columns = _parsing.read_bytes(file).partition(b"\n")[0].count(b",") + 1
        table = _checked_counts(file, _parsing.table(file, separator=b",", form="count,rating,...", columns=columns))
    user, joke = np.nonzero(table != _UNRATED)
    values = table[user, joke]
    bad = np.flatnonzero(~(np.abs(values) <= _HIGH))
    if bad.size:
        raise DataError(
            f"{file}:{user[bad[0]] + 1}: rating outside [-10, 10], as are {bad.size} of {len(values)}; "
            "the file is damaged or of another format"
        )
    item_ids, item = (np.arange(table.shape[1]), joke) if whole_catalogue else _parsing.dense(joke)
    return Ratings.from_triples(
        "jester",
        user,
        item,
        values,
        low=_LOW,
        high=_HIGH,
        n_users=len(table),
        n_items=len(item_ids),
        inferred=() if whole_catalogue else ("items",),
        item_ids=item_ids + 1,
        user_ids=np.arange(1, len(table) + 1),
    )


def _read_npz(path: Path) -> npt.NDArray[np.float64]:
    with arrays_of(path, "expected an npz file with the array rating_x100") as file:
        table = file["rating_x100"]
    if table.ndim != 2:
        raise DataError(f"{path}: expected rating_x100 to be [users, jokes] (got {list(table.shape)})")
    hundredths: npt.NDArray[np.float64] = table.astype(np.float64)
    return hundredths / 100.0


def _checked_counts(path: Path, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if rows.shape[1] < 2:
        raise DataError(f"{path}:1: expected a count and at least one rating, separated by ','")
    table = rows[:, 1:]
    wrong = np.flatnonzero((table != _UNRATED).sum(axis=1) != rows[:, 0])
    if wrong.size:
        raise DataError(
            f"{path}:{wrong[0] + 1}: the first column does not count the ratings of its row, as in {wrong.size} of "
            f"{len(rows)}; expected the count first and 99 for 'not rated'"
        )
    return table

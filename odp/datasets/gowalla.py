"""Gowalla check-ins, 10-core, implicit, with the split that the LightGCN papers publish.

Forms: ``interactions.npz`` (user, item, split: 0 train, 1 validation, 2 test), or the text files ``train.txt``,
``test.txt`` and, where there is one, ``valid.txt``; each line is a user number and that user's items. Every value is 1.

Source: X. He and others, "LightGCN", SIGIR 2020; check-ins from SNAP, E. Cho and others, KDD 2011.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp.datasets import _parsing
from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError
from odp.numerics.archives import arrays_of

_PARTS = ("train", "valid", "test")


def load_gowalla(folder: str | os.PathLike[str], *, name: str = "gowalla") -> Ratings:
    """All interactions, of every part of the published split; ``name`` is what reports call the data set.

    Raises:
      DataError: a file is missing or malformed.
    """
    return _load(Path(folder), name)[0]


def load_gowalla_split(folder: str | os.PathLike[str], *, name: str = "gowalla") -> Split:
    """As :func:`load_gowalla`, the published split; its validation part is empty where there is no ``valid.txt``.

    Raises:
      DataError: a file is missing or malformed.
    """
    ratings, part = _load(Path(folder), name)
    return Split(*(ratings.take(part == number) for number in range(3)))


def _load(folder: Path, name: str) -> tuple[Ratings, npt.NDArray[np.int64]]:
    """All interactions, and the part (0, 1, 2) of each entry in CSR order."""
    arrays = folder if folder.is_file() else folder / "interactions.npz"
    user, item, part = _read_npz(arrays) if arrays.is_file() else _read_text(folder)
    user_ids, user = _parsing.dense(user)
    item_ids, item = _parsing.dense(item)
    order = np.argsort(user * np.int64(len(item_ids)) + item, kind="stable")
    ratings = Ratings.from_triples(
        name,
        user,
        item,
        np.ones(len(user), dtype=np.float32),
        low=0.0,
        high=1.0,
        n_users=len(user_ids),
        n_items=len(item_ids),
        implicit=True,
        inferred=("items",),
        user_ids=user_ids,
        item_ids=item_ids,
    )
    if ratings.duplicates:
        raise DataError(f"{folder}: {ratings.duplicates} (user, item) pairs occur more than once, expected none")
    return ratings, part[order]


def _read_npz(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    with arrays_of(path, "expected an npz file with the arrays user, item and split") as file:
        user, item, part = (
            _parsing.whole_numbers(file[key], what=key, where=path) for key in ("user", "item", "split")
        )
    if not len(user) == len(item) == len(part) or not np.isin(part, (0, 1, 2)).all():
        raise DataError(f"{path}: expected user, item and split of one length, and split 0, 1 or 2")
    return user, item, part


def _read_text(folder: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    users, items, parts = [], [], []
    for number, name in enumerate(_PARTS):
        if (path := _parsing.find(folder, f"{name}.txt")) is None:
            if name == "valid":
                continue
            raise DataError(f"{folder}: {name}.txt is missing; expected interactions.npz, or train.txt and test.txt")
        numbers, counts = _parsing.ragged(path)
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        is_item = np.ones(len(numbers), dtype=np.bool_)
        is_item[first] = False
        users.append(np.repeat(numbers[first], counts - 1))
        items.append(numbers[is_item])
        parts.append(np.full(len(items[-1]), number, dtype=np.int64))
    return np.concatenate(users), np.concatenate(items), np.concatenate(parts)

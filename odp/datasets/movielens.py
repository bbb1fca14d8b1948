"""MovieLens in its published forms, and the array form of MovieLens-1M.

======================  ===========================================================  ==========
form                    files                                                        stars
======================  ===========================================================  ==========
``ml-1m``               ``ratings.dat`` (``user::item::rating::timestamp``),         1..5
                        ``movies.dat`` (Latin-1)
``ml-1m`` as arrays     ``ratings.npz`` with user, item, rating_halfstars, order;    1..5
                        and ``timestamp`` for ``odp.datasets.monthly_ratings``
``ml-100k``             ``u.data`` (tabs), ``u.item`` (``|``, Latin-1)               1..5
``ml-latest-small``     ``ratings.csv``, ``movies.csv`` (UTF-8)                      0.5..5
======================  ===========================================================  ==========

Every text file may be gzip-compressed (``.gz``). Users and items are numbered from 0 in ascending order of their
original ids; items are those that somebody rated, or with ``whole_catalogue`` those of the movie file, with their
titles and genre flags where that file is present.

Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.datasets import _parsing
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.archives import arrays_of

_NO_GENRE = "(no genres listed)"
_GENRES_100K = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)

Ids = npt.NDArray[np.int64]
Movies = tuple[dict[int, tuple[str, tuple[str, ...]]], tuple[str, ...]]

_CSV_HEADER = b"userId,movieId,rating,timestamp"


def load_movielens(folder: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """Reads whichever MovieLens form the folder holds.

    With ``whole_catalogue`` the items are those of the movie file, rated or not: they say nothing about ratings.

    Raises:
      DataError: no form is recognised, or a file is malformed (the message names file and line).
    """
    path = Path(folder)
    return Ratings.from_triples(**_reader(path)(path, whole_catalogue=whole_catalogue))


def movielens_rows(folder: str | os.PathLike[str], *, whole_catalogue: bool = False) -> dict[str, Any]:
    """Arguments of ``Ratings.from_triples`` for the same, with ``times`` int64 in seconds since 1970, 0 if unknown.

    Raises:
      DataError: as ``load_movielens``; or the file has an order of rows instead of times.
    """
    path = Path(folder)
    rows = _reader(path)(path, whole_catalogue=whole_catalogue)
    if _reader(path) is _ml_1m and _parsing.find(path, "ratings.dat") is None:
        archive = _required(path, "ratings.npz")
        rows["times"] = _timestamps(archive, len(rows["values"]))
    return rows


def _reader(path: Path) -> Callable[..., dict[str, Any]]:
    for name, reader in (
        ("ratings.dat", _ml_1m),
        ("ratings.npz", _ml_1m),
        ("u.data", _ml_100k),
        ("ratings.csv", _ml_latest),
    ):
        if _parsing.find(path, name) is not None:
            return reader
    raise DataError(f"{path}: no MovieLens files; expected ratings.dat, ratings.npz, u.data or ratings.csv (or .gz)")


def load_ml_1m(folder: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """MovieLens-1M from ``ratings.dat``, or from ``ratings.npz`` where there is no ``ratings.dat``.

    Raises:
      DataError: a file is missing or malformed.
    """
    return Ratings.from_triples(**_ml_1m(Path(folder), whole_catalogue=whole_catalogue))


def _ml_1m(path: Path, *, whole_catalogue: bool) -> dict[str, Any]:
    movies_file = _parsing.find(path, "movies.dat")
    movies = _movies_dat(movies_file) if movies_file else None
    text = _parsing.find(path, "ratings.dat")
    if text is not None:
        form = "user::item::rating::timestamp"
        return _from_text("ml-1m", text, movies, separator=b"::", form=form, low=1.0, whole_catalogue=whole_catalogue)
    arrays = _halfstar_arrays(_required(path, "ratings.npz"))
    return _assemble("ml-1m", *arrays, low=1.0, high=5.0, movies=movies, whole_catalogue=whole_catalogue)


def load_ml_100k(folder: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """MovieLens-100K from ``u.data`` and, where present, ``u.item``.

    Raises:
      DataError: a file is missing or malformed.
    """
    return Ratings.from_triples(**_ml_100k(Path(folder), whole_catalogue=whole_catalogue))


def _ml_100k(path: Path, *, whole_catalogue: bool) -> dict[str, Any]:
    movies_file = _parsing.find(path, "u.item")
    movies = _u_item(movies_file) if movies_file else None
    return _from_text(
        "ml-100k",
        _required(path, "u.data"),
        movies,
        separator=b"\t",
        form="user<tab>item<tab>rating<tab>timestamp",
        low=1.0,
        whole_catalogue=whole_catalogue,
    )


def load_ml_latest(folder: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """MovieLens "latest" sets (half stars from 0.5) from ``ratings.csv`` and, where present, ``movies.csv``.

    Raises:
      DataError: a file is missing or malformed.
    """
    return Ratings.from_triples(**_ml_latest(Path(folder), whole_catalogue=whole_catalogue))


def _ml_latest(path: Path, *, whole_catalogue: bool) -> dict[str, Any]:
    movies_file = _parsing.find(path, "movies.csv")
    movies = _movies_csv(movies_file) if movies_file else None
    return _from_text(
        path.resolve().name,
        _required(path, "ratings.csv"),
        movies,
        separator=b",",
        form=_CSV_HEADER.decode(),
        header=_CSV_HEADER,
        low=0.5,
        whole_catalogue=whole_catalogue,
    )


def is_movielens_csv(path: Path) -> bool:
    """Whether the first line of a CSV file, plain or gzip, is that of a MovieLens "latest" set."""
    return _parsing.first_line(path).strip() == _CSV_HEADER


def _required(folder: Path, name: str) -> Path:
    found = _parsing.find(folder, name)
    if found is None:
        raise DataError(f"{folder}: {name} (or {name}.gz) is missing")
    return found


def _from_text(
    name: str,
    path: Path,
    movies: Movies | None,
    *,
    separator: bytes,
    form: str,
    low: float,
    whole_catalogue: bool,
    header: bytes | None = None,
) -> dict[str, Any]:
    rows = _parsing.table(path, separator=separator, form=form, columns=4, header=header)
    first_line = 1 if header is None else 2
    _parsing.bounded(path, rows[:, 2], low=low, high=5.0, first_line=first_line)
    return _assemble(
        name,
        _parsing.whole(path, rows[:, 0], what="the user", first_line=first_line),
        _parsing.whole(path, rows[:, 1], what="the item", first_line=first_line),
        rows[:, 2],
        rows[:, 3],
        low=low,
        high=5.0,
        movies=movies,
        whole_catalogue=whole_catalogue,
    )


def _halfstar_arrays(path: Path) -> tuple[Ids, Ids, npt.NDArray[np.float64], Ids]:
    with arrays_of(path, "expected an npz file with user, item, rating_halfstars and order") as file:
        user, item, stars, order = (file[key] for key in ("user", "item", "rating_halfstars", "order"))
    return user.astype(np.int64), item.astype(np.int64), stars / 2.0, order.astype(np.int64)


def _timestamps(path: Path, count: int) -> Ids:
    with arrays_of(path, "not a readable npz file") as file:
        if "timestamp" not in file.files:
            raise DataError(f"{path}: the rows have an order and no times; take ratings.dat")
        times = np.asarray(file["timestamp"])
    if times.shape != (count,) or times.dtype.kind not in "iu":
        raise DataError(f"{path}: expected timestamp to be {count} whole numbers, one per rating")
    return times.astype(np.int64)


def _assemble(
    name: str,
    users: Ids,
    items: Ids,
    values: npt.NDArray[np.float64],
    times: npt.NDArray[Any],
    *,
    low: float,
    high: float,
    movies: Movies | None,
    whole_catalogue: bool,
) -> dict[str, Any]:
    """Arguments of ``Ratings.from_triples``."""
    user_ids, user = _parsing.dense(users)
    item_ids, item = _parsing.dense(items)
    described: dict[str, Any] = {}
    if whole_catalogue and movies is None:
        raise DataError(f"{name}: there is no movie file, so no list of items that says nothing about who rated what")
    if movies is not None:
        table, genres = movies
        missing = [int(number) for number in item_ids if int(number) not in table]
        if missing:
            raise DataError(f"{name}: {len(missing)} rated movies are not in the movie file (first: {missing[0]})")
        if whole_catalogue:
            item_ids = np.array(sorted(table), dtype=np.int64)
            item = np.searchsorted(item_ids, items)
        chosen = [table[int(number)] for number in item_ids]
        described = {
            "titles": tuple(title for title, _ in chosen),
            "features": np.array([[genre in own for genre in genres] for _, own in chosen], dtype=np.float32),
            "feature_names": genres,
        }
    return {
        "name": name,
        "users": user,
        "items": item,
        "values": values,
        "low": low,
        "high": high,
        "n_users": len(user_ids),
        "n_items": len(item_ids),
        "inferred": () if whole_catalogue else ("items",),
        "times": times,
        "user_ids": user_ids,
        "item_ids": item_ids,
        **described,
    }


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    try:
        text = _parsing.read_bytes(path).decode(encoding)
    except UnicodeDecodeError:
        raise DataError(f"{path}: not {encoding} text") from None
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip("\r"))


def _movies_dat(path: Path) -> Movies:
    table: dict[int, tuple[str, tuple[str, ...]]] = {}
    for number, line in _lines(path, "latin-1"):
        fields = line.rstrip("\r").split("::")
        if len(fields) != 3 or not fields[0].isdecimal():
            raise DataError(f"{path}:{number}: expected MovieID::Title::Genres")
        table[int(fields[0])] = (fields[1], tuple(fields[2].split("|")))
    return table, _all_genres(table)


def _u_item(path: Path) -> Movies:
    table: dict[int, tuple[str, tuple[str, ...]]] = {}
    for number, line in _lines(path, "latin-1"):
        fields = line.rstrip("\r").split("|")
        flags = fields[5:]
        if len(fields) != 24 or not fields[0].isdecimal() or not set(flags) <= {"0", "1"}:
            raise DataError(f"{path}:{number}: expected 5 fields and 19 genre flags of 0 or 1, separated by '|'")
        genres = tuple(genre for genre, flag in zip(_GENRES_100K, flags, strict=True) if flag == "1")
        table[int(fields[0])] = (fields[1], genres)
    return table, _GENRES_100K


def _movies_csv(path: Path) -> Movies:
    table: dict[int, tuple[str, tuple[str, ...]]] = {}
    rows = csv.reader(line.rstrip("\r") for _, line in _lines(path, "utf-8"))
    if next(rows, None) != ["movieId", "title", "genres"]:
        raise DataError(f"{path}:1: expected the header line 'movieId,title,genres'")
    for fields in rows:
        if len(fields) != 3 or not fields[0].isdecimal():
            raise DataError(f"{path}:{rows.line_num}: expected movieId,title,genres")
        table[int(fields[0])] = (fields[1], () if fields[2] == _NO_GENRE else tuple(fields[2].split("|")))
    return table, _all_genres(table)


def _all_genres(table: dict[int, tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(sorted({genre for _, genres in table.values() for genre in genres}))

"""MovieLens in its published forms, and the array form of MovieLens-1M.

======================  ===========================================================  ==========
form                    files                                                        stars
======================  ===========================================================  ==========
``ml-1m``               ``ratings.dat`` (``user::item::rating::timestamp``),         1..5
                        ``movies.dat`` (UTF-8, else Latin-1)
``ml-1m`` as arrays     ``ratings.npz`` with user, item, rating_halfstars, order;    1..5
                        and ``timestamp`` for ``odp.datasets.monthly_ratings``
``ml-100k``             ``u.data`` (tabs), ``u.item`` (``|``, UTF-8, else Latin-1)   1..5
``ml-latest-small``     ``ratings.csv``, ``movies.csv`` (UTF-8)                      0.5..5
======================  ===========================================================  ==========

The text forms are read as all tables are (``odp.datasets.tables``), so they need ``odp-platform[data]``; each may be
gzip-compressed (``.gz``). Users and items are numbered from 0 in ascending order of their
original ids; items are those that somebody rated, or with ``whole_catalogue`` those of the movie file, with their
titles and genre flags where that file is present.

Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from odp.datasets import _parsing
from odp.datasets.columns import Columns, OnError
from odp.datasets.ids import decoded, in_order
from odp.datasets.ratings import Ratings
from odp.datasets.raw_table import Kind
from odp.datasets.repeats import Repeats
from odp.datasets.table_files import read_file
from odp.datasets.tables import read_table
from odp.datasets.text_source import LINE_END, TextSource
from odp.datasets.text_tables import TextForm, column_names
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


class Movies(NamedTuple):
    """(title, genres) of each movie by its id, all genres, and how a movie file was read."""

    table: dict[str, tuple[str, tuple[str, ...]]]
    genres: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _MovieColumns:
    """``odp.datasets.raw_table.TableColumns`` of a movie file, by their own names."""

    def within(self, names: Sequence[str], *, where: str) -> Self:
        return self

    @property
    def roles(self) -> dict[str, str]:
        return {name: name for name in _MOVIES.names}

    def kind(self, role: str) -> Kind:
        return Kind.ID if role == _MOVIES.names[0] else Kind.TITLE


_COLUMNS = ("userId", "movieId", "rating", "timestamp")
_RATINGS_FILES = ("ratings.dat", "ratings.npz", "u.data", "ratings.csv")
_ML_1M = TextForm(_COLUMNS, b"::", header=False, shown="user::item::rating::timestamp")
_ML_100K = TextForm(_COLUMNS, b"\t", header=False, shown="user<tab>item<tab>rating<tab>timestamp")
_ML_LATEST = TextForm(_COLUMNS, b",", header=True, shown=",".join(_COLUMNS))
_MOVIES = TextForm(("movieId", "title", "genres"), b",", header=True, shown="movieId,title,genres")
_HIGH = 5.0


def load_movielens(folder: str | os.PathLike[str], *, whole_catalogue: bool = False, **how: Any) -> Ratings:
    """Reads whichever MovieLens form the folder holds, or the file of ratings that is named.

    With ``whole_catalogue`` the items are those of the movie file, rated or not: they say nothing about ratings.
    ``how`` are ``on_error`` and ``repeats`` of :class:`~odp.datasets.columns.Columns`.

    Raises:
      DataError: no form is recognised, or a file is malformed (the message names file and line).
    """
    return _made(_rows(_ratings_file(Path(folder)), whole_catalogue=whole_catalogue, **how))


def _made(rows: dict[str, Any]) -> Ratings:
    if "ranks" in rows and "times" in rows and (rows["times"] == 0).any():
        rows.pop("times")  # of some rows the time is unknown: their order within a user is all there is
    return Ratings.from_triples(**rows)


def movielens_rows(folder: str | os.PathLike[str], *, whole_catalogue: bool = False, **how: Any) -> dict[str, Any]:
    """Arguments of ``Ratings.from_triples`` for the same, with ``times`` int64 in seconds since 1970, 0 if unknown.

    Raises:
      DataError: as ``load_movielens``; or the file has an order of rows instead of times.
    """
    file = _ratings_file(Path(folder))
    rows = _rows(file, whole_catalogue=whole_catalogue, **how)
    if "times" not in rows:
        raise DataError(f"{file}: the rows have an order and no times; take ratings.dat")
    return rows


def _ratings_file(path: Path) -> Path:
    """The file itself, or that of a folder."""
    if path.is_file():
        return path
    for name in _RATINGS_FILES:
        if (file := _parsing.find(path, name)) is not None:
            return file
    raise DataError(f"{path}: no MovieLens files; expected ratings.dat, ratings.npz, u.data or ratings.csv (or .gz)")


def _rows(file: Path, *, whole_catalogue: bool, **how: Any) -> dict[str, Any]:
    """Arguments of ``Ratings.from_triples`` of one file of ratings and, where present, the movie file beside it."""
    folder = file.parent
    match file.name.removesuffix(".gz"):
        case "u.data":
            rows = _from_text("ml-100k", file, _ML_100K, low=1.0, **how)
            movies_file, read = _parsing.find(folder, "u.item"), _u_item
        case "ratings.csv":
            rows = _from_text(folder.resolve().name, file, _ML_LATEST, low=0.5, **how)
            movies_file, read = _parsing.find(folder, "movies.csv"), _movies_csv
        case name:
            if name.endswith(".npz"):
                rows = _from_arrays("ml-1m", file, low=1.0, **how)
            else:
                rows = _from_text("ml-1m", file, _ML_1M, low=1.0, **how)
            movies_file, read = _parsing.find(folder, "movies.dat"), _movies_dat
    return _described(rows, read(movies_file) if movies_file else None, whole_catalogue=whole_catalogue)


def is_movielens_csv(path: Path) -> bool:
    """Whether the first line of a CSV file, plain or gzip, is that of a MovieLens "latest" set."""
    try:
        return column_names(TextSource.at(path), ",") == list(_COLUMNS)
    except (DataError, OSError, EOFError, zlib.error):
        return False


def _from_text(name: str, path: Path, form: TextForm, *, low: float, **how: Any) -> dict[str, Any]:
    """Arguments of ``Ratings.from_triples``, by the reader of all tables."""
    user, item, value, time = _COLUMNS
    columns = Columns(user=user, item=item, value=value, time=time, low=low, high=_HIGH, **how)
    return read_table(path, columns, name=name, form=form).triples | {"time_unit": "s"}


def _from_arrays(
    name: str, path: Path, *, low: float, repeats: Repeats = "newest", on_error: OnError = "raise"
) -> dict[str, Any]:
    """The same of arrays, which have no bad rows to skip."""
    del on_error
    with arrays_of(path, "expected an npz file with user, item, rating_halfstars and order") as file:
        stars, *arrays = (file[key] for key in ("rating_halfstars", "user", "item", "order"))
        arrays += [file["timestamp"]] if "timestamp" in file.files else []
    columns = {
        what: _parsing.whole_numbers(array, what=what, where=path)
        for what, array in zip(("user", "item", "order", "timestamp"), arrays, strict=False)
    }
    if stars.ndim != 1 or stars.dtype.kind not in "iuf":
        raise DataError(f"{path}: expected rating_halfstars to be numbers, one per rating (got {stars.dtype})")
    for what, array in columns.items():
        if array.shape != stars.shape:
            raise DataError(f"{path}: expected {what} to be {len(stars)} whole numbers, one per rating")
    user_ids, users = _parsing.dense(columns["user"])
    item_ids, items = _parsing.dense(columns["item"])
    when = {"times": columns["timestamp"], "time_unit": "s"} if "timestamp" in columns else {}
    return {
        "name": name,
        "users": users,
        "items": items,
        "values": stars / 2.0,
        "low": low,
        "high": _HIGH,
        "n_users": len(user_ids),
        "n_items": len(item_ids),
        "inferred": ("items",),
        "user_ids": user_ids,
        "item_ids": item_ids,
        "ranks": columns["order"],
        "repeats": repeats,
        **when,
    }


def _described(rows: dict[str, Any], movies: Movies | None, *, whole_catalogue: bool) -> dict[str, Any]:
    """With titles and genres; with ``whole_catalogue`` the items are those of the movie file."""
    name, item_ids = rows["name"], [str(item) for item in rows["item_ids"].tolist()]
    if movies is None:
        if whole_catalogue:
            raise DataError(
                f"{name}: there is no movie file, so no list of items that says nothing about who rated what"
            )
        return rows
    table, genres, notes = movies
    missing = [item for item in item_ids if item not in table]
    if missing:
        raise DataError(f"{name}: {len(missing)} rated movies are not in the movie file (first: {missing[0]})")
    if whole_catalogue:
        every = in_order(table)
        place = {item: number for number, item in enumerate(every)}
        items = np.array([place[item] for item in item_ids], dtype=np.int64)[rows["items"]]
        item_ids = every
        rows |= {"items": items, "n_items": len(every), "item_ids": np.array(every), "inferred": ()}
    chosen = [table[item] for item in item_ids]
    return rows | {
        "titles": tuple(title for title, _ in chosen),
        "features": np.array(
            [[genre in genres_of_movie for genre in genres] for _, genres_of_movie in chosen], dtype=np.float32
        ),
        "feature_names": genres,
        "notes": (*rows.get("notes", ()), *notes),
    }


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers: UTF-8, or Latin-1, since the files are of before it was usual."""
    content = _parsing.read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return [(number, line) for number, line in enumerate(LINE_END.split(text), start=1) if line]


def _add(table: dict[str, tuple[str, tuple[str, ...]]], movie: str, title: str, genres: list[str], where: str) -> None:
    if movie in table:
        raise DataError(f"{where}: movie {movie} stands in an earlier line; keep one of them")
    table[movie] = (title, tuple(genres))


def _movies_dat(path: Path) -> Movies:
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, line in _lines(path):
        fields = line.split("::")
        if len(fields) != 3 or not fields[0]:
            raise DataError(f"{path}:{number}: expected MovieID::Title::Genres")
        _add(table, fields[0], fields[1], fields[2].split("|"), f"{path}:{number}")
    return Movies(table, _all_genres(table))


def _u_item(path: Path) -> Movies:
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, line in _lines(path):
        fields = line.split("|")
        flags = fields[5:]
        if len(fields) != 24 or not fields[0] or not set(flags) <= {"0", "1"}:
            raise DataError(f"{path}:{number}: expected 5 fields and 19 genre flags of 0 or 1, separated by '|'")
        genres = [genre for genre, flag in zip(_GENRES_100K, flags, strict=True) if flag == "1"]
        _add(table, fields[0], fields[1], genres, f"{path}:{number}")
    return Movies(table, _GENRES_100K)


def _movies_csv(path: Path) -> Movies:
    """By the reader of all tables."""
    raw = read_file(path, _MovieColumns(), _MOVIES)
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    columns = [decoded(raw.parts[name]).to_pylist() for name in _MOVIES.names]
    lines = raw.positions().tolist()
    wrong = [row.line for row in raw.broken] + [
        line for line, movie in zip(lines, columns[0], strict=True) if not movie
    ]
    if wrong:
        raise DataError(f"{path}:{min(wrong)}: expected {_MOVIES.shown}")
    for line, movie, title, genres in zip(lines, *columns, strict=True):
        _add(table, movie, title, [] if genres == _NO_GENRE else genres.split("|"), f"{path}:{line}")
    return Movies(table, _all_genres(table), raw.notes)


def _all_genres(table: dict[str, tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(sorted({genre for _, genres in table.values() for genre in genres}))

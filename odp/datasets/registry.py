"""Data sets by name or path.

=========================================  ===================================================================
``load("synthetic")``                      invented ratings, no download
``load("synthetic:n_users=2000,seed=3")``  the same with arguments of ``synthetic_movielens``
``load("ml-1m")``                          a known data set that ``fetch`` has put into the cache
``load("path/to/folder")``                 a folder in any form that a loader of this package reads
``load("file.npz")``                       a file of ``Ratings.save`` or one of the array forms
``load("file.csv", user="who")``           a table: CSV, TSV, Parquet or JSON lines (``odp-platform[data]``)
``load(frame)``                            a pandas, Polars or Arrow table (``odp-platform[data]``)
=========================================  ===================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from odp import _validate
from odp.datasets import _parsing
from odp.datasets.columns import USUAL_TITLE, Columns
from odp.datasets.fetch import DATASETS, DatasetSource, SourceFile, dataset_folder
from odp.datasets.gowalla import load_gowalla, load_gowalla_split
from odp.datasets.jester import load_jester
from odp.datasets.movielens import is_movielens_csv, load_movielens
from odp.datasets.ratings import Ratings, Split
from odp.datasets.ratings_files import FORMAT
from odp.datasets.splitting import random_split
from odp.datasets.synthetic import known_options, parse_arguments, synthetic_movielens
from odp.datasets.table_files import is_frame, is_table_file
from odp.datasets.tables import TableReading, read_table
from odp.errors import ConfigurationError, DataError
from odp.numerics.archives import arrays_of

__all__ = ["DATASETS", "DatasetSource", "SourceFile", "load", "load_split"]

_SYNTHETIC = "synthetic"
_HOW = {"on_error", "repeats", "as_written"}  # of rows, whatever their columns are called
_FORMS = "ratings.dat, ratings.csv, u.data, jester-data-1.csv, train.txt, an .npz file or one .csv, .parquet or .jsonl"


def load(
    name_or_path: str | os.PathLike[str] | object,
    *,
    cache: str | os.PathLike[str] | None = None,
    whole_catalogue: bool = False,
    name: str | None = None,
    **options: Any,
) -> Ratings:
    """Loads the ratings of ``name_or_path``; the module lists the forms.

    Known names win over folders of the same name in the current folder: write ``./ml-1m`` for the folder.

    Args:
      name_or_path: a name, a path, or a table in memory.
      cache: where ``fetch`` keeps data sets; the platform's cache folder by default.
      whole_catalogue: the items are those of a list that does not follow from the ratings: the movie file, the jokes
        asked about, or what ``Ratings`` declared when it was saved. What is released of private data needs that.
      name: what reports call the data set; by default its own name.
      **options: of a table, ``user``, ``item``, ``value``, ``time``, ``implicit``, ``low``, ``high``, ``on_error``,
        ``repeats`` and ``as_written`` as of :class:`~odp.datasets.columns.Columns`; of "synthetic", arguments of
        ``synthetic_movielens``; other data sets take none.

    Raises:
      DataError: the name is unknown, the path does not exist or holds no known form, the data are malformed, or there
        is no list of items.
      ConfigurationError: an option is unknown or out of range, or the package that reads tables is missing.
    """
    ratings = _load(name_or_path, cache=cache, whole_catalogue=whole_catalogue, name=name, options=options)
    return ratings if name is None or ratings.name == name else replace(ratings, name=name)


def load_split(
    name_or_path: str | os.PathLike[str] | object,
    *,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 1234,
    cache: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Split:
    """The split that the data set is published with (Gowalla), otherwise ``random_split(load(...))``.

    Raises:
      DataError, ConfigurationError: as :func:`load` and :func:`random_split`.
    """
    if isinstance(name_or_path, (str, os.PathLike)) and not options:
        published = published_split(name_or_path, cache=cache)
        if published is not None:
            return published
    return random_split(load(name_or_path, cache=cache, **options), fractions=fractions, seed=seed)


def published_split(
    name_or_path: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None
) -> Split | None:
    """The split that a data set is published with (Gowalla), or None.

    Raises:
      DataError: as :func:`load`.
    """
    text = os.fspath(name_or_path)
    if text.partition(":")[0] == _SYNTHETIC:
        return None
    form, path = _locate(text, cache)
    return load_gowalla_split(path, name=_own_name(text, path)) if form == "gowalla" else None


def movielens_folder(name_or_path: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a form of MovieLens.

    Raises:
      DataError: as :func:`load`; or the data set is another one.
    """
    text = os.fspath(name_or_path)
    if not _is_synthetic(text):
        form, path = _locate(text, cache)
        if form == "movielens":
            return path
    raise DataError(
        f"Expected {text!r} to be MovieLens, whose time stamps are seconds; give one file per month of others"
    )


def load_reading(source: object, *, titles: bool = False, **options: Any) -> tuple[TableReading | None, Ratings]:
    """As :func:`load`, with how a table was read, or None where ``source`` is a data set of a known form.

    With ``titles``, a column of a usual name is read for titles of items, unless ``title`` names one.
    """
    reading = _table(source, options, cache=None, whole_catalogue=False, name=None, titles=titles)
    return (None, load(source, **options)) if reading is None else (reading, Ratings.from_triples(**reading.triples))


def _load(
    source: object,
    *,
    cache: str | os.PathLike[str] | None,
    whole_catalogue: bool,
    name: str | None,
    options: dict[str, Any],
) -> Ratings:
    reading = _table(source, options, cache=cache, whole_catalogue=whole_catalogue, name=name)
    if reading is not None:
        return Ratings.from_triples(**reading.triples)
    assert isinstance(source, (str, os.PathLike))
    text = os.fspath(source)
    # Values of known forms have a published scale.
    options = {name: value for name, value in options.items() if name != "as_written"}
    if _is_synthetic(source):
        arguments = parse_arguments(text.partition(":")[2], synthetic_movielens, where=text)
        return synthetic_movielens(**(arguments | known_options(options, synthetic_movielens)))
    form, path = _locate(text, cache)
    if needless := sorted(set(options) - (_HOW if form == "movielens" else set())):
        raise ConfigurationError(
            f"{text!r} is a data set of a known form, whose columns are known: leave out {', '.join(needless)}"
        )
    match form:
        case "odp":
            saved = Ratings.load(path)
            _require_no_catalogue(whole_catalogue and "items" in saved.inferred, path)
            guess = "its scale was guessed, or its values were taken for 'seen', when it was saved"
            return replace(saved, notes=(f"guessed: {guess}", *saved.notes)) if "scale" in saved.inferred else saved
        case "movielens":
            return load_movielens(path, whole_catalogue=whole_catalogue, **options)
        case "jester":
            return load_jester(path, whole_catalogue=whole_catalogue)
        case _:
            _require_no_catalogue(whole_catalogue, path)
            return load_gowalla(path, name=_own_name(text, path))


def _is_synthetic(source: object) -> bool:
    return isinstance(source, str) and source.partition(":")[0] == _SYNTHETIC


def _table(
    source: object,
    options: dict[str, Any],
    *,
    cache: str | os.PathLike[str] | None,
    whole_catalogue: bool,
    name: str | None,
    titles: bool = False,
) -> TableReading | None:
    """What is read of a table; None where ``source`` is none."""
    if not isinstance(source, (str, os.PathLike)):
        if not is_frame(source):
            raise DataError(
                f"Expected a name, a path, or a pandas, Polars or Arrow table (got a {type(source).__name__})"
            )
        _require_no_catalogue(whole_catalogue, "a data frame")
        return read_table(source, columns_of(options), name=name)
    if _is_synthetic(source):
        return None
    text = os.fspath(source)
    if unknown := sorted(set(options) - {field.name for field in fields(Columns)}):
        raise ConfigurationError(f"Expected no options for data set {text!r} (got {', '.join(unknown)})")
    file = Path(text).expanduser()
    if set(options) - _HOW and is_table_file(file) and _exists(file) and file.is_file():
        form, path = "table", file  # who names columns means a table, even where the file looks like a known one
    else:
        form, path = _locate(text, cache)
    if form != "table":
        return None
    _require_no_catalogue(whole_catalogue, path)
    columns = columns_of(options)
    if titles and columns.title is None:
        columns = replace(columns, title=USUAL_TITLE)
    return read_table(path, columns, name=name)


def columns_of(options: Mapping[str, Any]) -> Columns:
    """The settings of a table. Raises ConfigurationError for an option that a table does not have."""
    _validate.known_keys(options, [field.name for field in fields(Columns)], where="the options of a table")
    return Columns(**options)


def _require_no_catalogue(whole_catalogue: bool, where: object) -> None:
    if whole_catalogue:
        raise DataError(
            f"{where}: its items are those of the data; declare them with "
            "dataclasses.replace(ratings, n_items=.., inferred=()) and save it"
        )


def _own_name(text: str, path: Path) -> str:
    """The name of a known data set, or that of the user's own folder or file."""
    if text in DATASETS:
        return text
    return path.resolve().name.removesuffix(".gz").removesuffix(".npz")


def _locate(text: str, cache: str | os.PathLike[str] | None) -> tuple[str, Path]:
    """(form, folder or file) of a known name or a path."""
    if text in DATASETS:
        source = DATASETS[text]
        if source.kind != "ratings":
            raise DataError(f"{text!r} holds {source.kind}, not ratings; read it with odp.datasets.load_{text}(folder)")
        path = dataset_folder(text, cache=cache)
        if not path.is_dir():
            raise DataError(
                f"{text!r} is not in the cache ({path}): run `odp data fetch {text}`, "
                "or give the path of a folder that holds it"
            )
    else:
        path = Path(text).expanduser()
    if not text or not _exists(path):
        names = [_SYNTHETIC, *DATASETS]
        raise DataError(
            f"{text!r} is neither a known data set nor an existing path{_validate.nearest(text, names)}; "
            f"known: {', '.join(names)}, or a folder with {_FORMS}"
        )
    if (detected := _detect(path)) is None:
        raise DataError(f"{path}: no data set recognised here; expected {_FORMS}")
    return detected


def _exists(path: Path) -> bool:
    """Whether there is a file or a folder. Raises DataError where nobody can know, and for pipes and devices."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: no file, and data are read several times; write them into a file")
        return path.exists()
    except OSError as error:
        raise DataError(f"{str(path)[:100]!r} cannot be read ({error.strerror}); check the path") from None


def _detect(path: Path) -> tuple[str, Path] | None:
    if path.is_file():
        return _detect_file(path)
    for names, form in (
        (("ratings.dat", "u.data"), "movielens"),
        (("jester-data-1.csv", "jester-data-1.xls"), "jester"),
        (("train.txt",), "gowalla"),
    ):
        if _parsing.find(path, *names) is not None:
            return form, path
    if (ratings := _parsing.find(path, "ratings.csv")) is not None:
        return ("movielens", path) if is_movielens_csv(ratings) else ("table", ratings)
    for file in sorted(path.glob("*.npz")):
        if (detected := _detect_file(file)) is not None:
            return detected
    tables = sorted(file for file in path.iterdir() if file.is_file() and is_table_file(file))
    if len(tables) > 1:
        first = f"{tables[0].name} and {tables[1].name}"
        raise DataError(f"{path}: holds {len(tables)} tables, such as {first}; give the path of one")
    if tables:
        return "table", tables[0]
    inner = [child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))]
    return _detect(inner[0]) if len(inner) == 1 else None


def _detect_file(path: Path) -> tuple[str, Path] | None:
    name = path.name.removesuffix(".gz")
    if path.suffix == ".npz":
        return _detect_npz(path)
    if name in ("ratings.dat", "u.data") or (name == "ratings.csv" and is_movielens_csv(path)):
        return "movielens", path
    if path.suffix == ".xls" or (name.startswith("jester") and name.endswith(".csv")):
        return "jester", path
    if name in ("train.txt", "valid.txt", "test.txt"):
        return "gowalla", path.parent
    return ("table", path) if is_table_file(path) else None


def _detect_npz(path: Path) -> tuple[str, Path] | None:
    with arrays_of(path, "not a readable npz file") as file:
        arrays = set(file.files)
        if "format" in arrays:
            return ("odp", path) if str(file["format"]) == FORMAT else None
    if "rating_halfstars" in arrays:
        return "movielens", path
    if "rating_x100" in arrays:
        return "jester", path
    return ("gowalla", path) if {"user", "item", "split"} <= arrays else None

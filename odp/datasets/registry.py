"""Data sets by name or path.

=========================================  ===================================================================
``load("synthetic")``                      invented ratings, no download
``load("synthetic:n_users=2000,seed=3")``  the same with arguments of ``synthetic_movielens``
``load("ml-1m")``                          a known data set that ``fetch`` has put into the cache
``load("path/to/folder")``                 a folder in any form that a loader of this package reads
``load("file.npz")``                       a file of ``Ratings.save`` or one of the array forms
=========================================  ===================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from odp import _validate
from odp.datasets import _parsing
from odp.datasets._arguments import known_options, parse_arguments
from odp.datasets._catalog import DATASETS, DatasetSource, SourceFile
from odp.datasets.fetch import dataset_folder
from odp.datasets.gowalla import load_gowalla, load_gowalla_split
from odp.datasets.jester import load_jester
from odp.datasets.movielens import load_movielens
from odp.datasets.ratings import FORMAT, Ratings, Split
from odp.datasets.splitting import random_split
from odp.datasets.synthetic import synthetic_movielens
from odp.errors import ConfigurationError, DataError
from odp.numerics.archives import UNREADABLE

__all__ = ["DATASETS", "DatasetSource", "SourceFile", "load", "load_split"]

_SYNTHETIC = "synthetic"
_FORMS = "ratings.dat, ratings.csv, u.data, jester-data-1.csv, train.txt or an .npz file"


def load(
    name_or_path: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    whole_catalogue: bool = False,
    **options: Any,
) -> Ratings:
    """Loads the ratings of ``name_or_path``; the module lists the forms.

    Known names win over folders of the same name in the current folder: write ``./ml-1m`` for the folder.

    Args:
      name_or_path: a name or a path.
      cache: where ``fetch`` keeps data sets; the platform's cache folder by default.
      whole_catalogue: the items are those of a list that does not follow from the ratings: the movie file, the jokes
        asked about, or what ``Ratings`` declared when it was saved. What is released of private data needs that.
      **options: arguments of ``synthetic_movielens``; other data sets take none.

    Raises:
      DataError: the name is unknown, the path does not exist or holds no known form, the data are malformed, or there
        is no list of items.
      ConfigurationError: an option is unknown or out of range.
    """
    text = os.fspath(name_or_path)
    name, _, arguments = text.partition(":")
    if name == _SYNTHETIC and not isinstance(name_or_path, Path):
        given = parse_arguments(arguments, synthetic_movielens, where=text)
        return synthetic_movielens(**(given | known_options(options, synthetic_movielens)))
    if options:
        raise ConfigurationError(f"Expected no options for data set {text!r} (got {', '.join(sorted(options))})")
    form, path = _locate(text, cache)
    match form:
        case "odp":
            return Ratings.load(path)
        case "movielens":
            return load_movielens(path, whole_catalogue=whole_catalogue)
        case "jester":
            return load_jester(path, whole_catalogue=whole_catalogue)
        case _ if whole_catalogue:
            raise DataError(
                f"{path}: its items are those of the data; declare them with Ratings(n_items=..) and save it"
            )
        case _:
            return load_gowalla(path)


def load_split(
    name_or_path: str | os.PathLike[str],
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
    text = os.fspath(name_or_path)
    if text.partition(":")[0] != _SYNTHETIC and not options:
        form, path = _locate(text, cache)
        if form == "gowalla":
            return load_gowalla_split(path)
    return random_split(load(name_or_path, cache=cache, **options), fractions=fractions, seed=seed)


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
    if not path.exists():
        names = [_SYNTHETIC, *DATASETS]
        raise DataError(
            f"{text!r} is neither a known data set nor an existing path{_validate.nearest(text, names)}; "
            f"known: {', '.join(names)}, or a folder with {_FORMS}"
        )
    found = _detect(path)
    if found is None:
        raise DataError(f"{path}: no data set recognised here; expected {_FORMS}")
    return found


def _detect(path: Path) -> tuple[str, Path] | None:
    if path.is_file():
        return _detect_file(path)
    for names, form in (
        (("ratings.dat", "u.data", "ratings.csv"), "movielens"),
        (("jester-data-1.csv", "jester-data-1.xls"), "jester"),
        (("train.txt",), "gowalla"),
    ):
        if _parsing.find(path, *names) is not None:
            return form, path
    for file in sorted(path.glob("*.npz")):
        found = _detect_file(file)
        if found is not None:
            return found
    inner = [child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))]
    return _detect(inner[0]) if len(inner) == 1 else None


def _detect_file(path: Path) -> tuple[str, Path] | None:
    name = path.name.removesuffix(".gz")
    if path.suffix == ".npz":
        return _detect_npz(path)
    if name in ("ratings.dat", "u.data", "ratings.csv"):
        return "movielens", path.parent
    if path.suffix == ".xls" or (name.startswith("jester") and name.endswith(".csv")):
        return "jester", path
    if name in ("train.txt", "valid.txt", "test.txt"):
        return "gowalla", path.parent
    return None


def _detect_npz(path: Path) -> tuple[str, Path] | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = set(file.files)
            if "format" in arrays:
                return ("odp", path) if str(file["format"]) == FORMAT else None
    except (OSError, *UNREADABLE):
        raise DataError(f"{path}: not a readable npz file") from None
    if "rating_halfstars" in arrays:
        return "movielens", path.parent
    if "rating_x100" in arrays:
        return "jester", path
    return ("gowalla", path) if {"user", "item", "split"} <= arrays else None

"""Ratings on disk: one compressed file, or a folder that is mapped into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from odp._system.files.durability import replaced_file
from odp.datasets.ids import packed, unpacked
from odp.datasets.repeats import repeats_note
from odp.errors import DataError
from odp.numerics.archives import arrays_of

FORMAT = "odp-ratings-1"

_T = TypeVar("_T")

_ARRAYS = ("offsets", "items", "values")
_OPTIONAL_ARRAYS = ("order", "times", "features", "user_ids", "item_ids")
_META = (
    "name", "n_items", "low", "high", "implicit", "duplicates", "time_unit", "titles", "feature_names", "inferred",
)  # fmt: skip
_OPTIONAL = (*_OPTIONAL_ARRAYS, "time_unit", "titles", "feature_names")


def write_npz(ratings: Any, target: Path) -> None:
    """As ``Ratings.save``."""
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "name": np.array(ratings.name),
        **{field: getattr(ratings, field) for field in _ARRAYS},
        "bounds": np.array([ratings.low, ratings.high], dtype=np.float64),
        "counts": np.array([ratings.n_items, int(ratings.implicit), ratings.duplicates], dtype=np.int64),
        "inferred": np.array(ratings.inferred, dtype=np.str_),
    }
    for field in _OPTIONAL:
        if (value := getattr(ratings, field)) is not None:
            arrays[field] = packed(np.array(value)) if field.endswith("_ids") else np.array(value)
    with replaced_file(target) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_npz(path: Path) -> dict[str, Any]:
    """Fields of ``Ratings`` from what :func:`write_npz` wrote. Raises DataError where it is something else."""
    with arrays_of(path, "not a readable npz file; write it again with Ratings.save") as file:
        arrays = {key: file[key] for key in file.files}
    if "format" not in arrays or str(arrays["format"]) != FORMAT:
        raise DataError(f"{path}: not a file of format {FORMAT!r}; odp.datasets.load() reads other forms")
    try:
        n_items, implicit, duplicates = (int(count) for count in arrays["counts"])
        low, high = (float(bound) for bound in arrays["bounds"])
        optional: dict[str, Any] = {field: arrays[field] for field in _OPTIONAL if field in arrays}
        for field in ("user_ids", "item_ids"):
            if field in optional:
                optional[field] = unpacked(optional[field])
        for field in ("titles", "feature_names"):
            if field in optional:
                optional[field] = tuple(str(text) for text in optional[field])
        if "time_unit" in optional:
            optional["time_unit"] = str(optional["time_unit"])
        return {
            "name": str(arrays["name"]),
            **{field: arrays[field] for field in _ARRAYS},
            "n_items": n_items,
            "low": low,
            "high": high,
            "implicit": bool(implicit),
            "duplicates": duplicates,
            "notes": repeats_note(duplicates),
            # Files of before this field hold what their owner declared.
            "inferred": tuple(str(fact) for fact in arrays.get("inferred", ())),
            **optional,
        }
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: an array of {FORMAT!r} is missing or malformed; write it again") from None


def made(kind: type[_T], fields: dict[str, Any], where: Path) -> _T:
    """The ratings of what a file holds. Raises DataError where a field is of another type, or breaks a rule of them."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: an array of {FORMAT!r} is missing or damaged; write it again") from None


def write_folder(ratings: Any, target: Path) -> None:
    """As ``Ratings.save_folder``."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise DataError(f"Expected folder={str(target)!r} to be new or empty: choose another, or remove it")
        for field in (*_ARRAYS, *_OPTIONAL_ARRAYS):
            if (value := getattr(ratings, field)) is not None:
                np.save(target / f"{field}.npy", packed(value), allow_pickle=False)
        meta = {"format": FORMAT} | {field: getattr(ratings, field) for field in _META}
        (target / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror}); choose another folder") from None


def read_folder(source: Path) -> dict[str, Any]:
    """Fields of ``Ratings`` from what :func:`write_folder` wrote. Raises DataError where it is something else."""
    try:
        meta = json.loads((source / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{source}: no meta.json; write the folder with Ratings.save_folder") from None
    except (OSError, ValueError):
        raise DataError(f"{source}: meta.json is not readable; write the folder again") from None
    if isinstance(meta, dict):
        # Folders of before these fields hold what their owner declared, and no times.
        meta = {"inferred": [], "time_unit": None} | meta
    if not isinstance(meta, dict) or meta.pop("format", None) != FORMAT or set(meta) != set(_META):
        raise DataError(f"{source}: not a folder of format {FORMAT!r}; odp.datasets.load() reads other forms")
    for field in ("titles", "feature_names", "inferred"):
        meta[field] = None if meta[field] is None else tuple(meta[field])
    optional = (field for field in _OPTIONAL_ARRAYS if (source / f"{field}.npy").exists())
    try:
        # A map of an empty array is an error of the operating system's; such a file is read.
        arrays = {field: unpacked(_mapped(source / f"{field}.npy")) for field in (*_ARRAYS, *optional)}
        return {**meta, **arrays, "notes": repeats_note(meta["duplicates"])}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, TypeError):
        raise DataError(f"{source}: an array of {FORMAT!r} is missing or damaged; write the folder again") from None


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        array = np.load(path, allow_pickle=False)
    return np.asarray(array)

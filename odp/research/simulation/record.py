"""A finished run as one JSON value, ``run.json``: settings, rounds, charges, diagnostics, versions; no ratings.

``odp simulate --output`` and ``odp demo`` write it, ``odp report`` reads it.

Totals of the releases of a run: post-processing, so they cost no privacy.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from odp._system.files.state_folder import write_atomically
from odp.algorithms.declared import NoisySum
from odp.algorithms.experiment import Diagnostics, Metrics
from odp.algorithms.seam import NoisyTensors
from odp.datasets.examples import ExamplesSplit
from odp.datasets.ratings import Split
from odp.errors import DataError
from odp.evaluation.comparison import spending
from odp.evaluation.ranking import Ranking
from odp.models.left_out import LeftOut
from odp.privacy.events import Event
from odp.protocol.catalogues.catalogue import Catalogue
from odp.tasks.task import Task


@dataclass(frozen=True)
class NoisyTotals:
    """Totals of one released tensor.

    Attributes:
      round, name: of the release.
      total: sum of the tensor's first column over all items, in data units (how much was counted or weighed).
      std: of the noise in that sum.
      mean_square_row: mean of the users' squared row norms, weighted as in the sums; near ``row_clip`` squared most
        rows were clipped. Only of Gram matrices; None elsewhere.
    """

    round: int
    name: str
    total: float
    std: float
    mean_square_row: float | None


def noisy_totals(tensors: NoisyTensors, releases: tuple[NoisySum, ...]) -> tuple[NoisyTotals, ...]:
    """Sums of a round's releases: post-processing, so they cost no privacy."""
    totals = []
    for release in releases:
        values = tensors.tensors[release.name].reshape(release.shape[0], -1)
        first = float(values[:, 0].sum())
        square = None
        if release.name == "gram":
            width = (math.isqrt(8 * values.shape[1] + 1) - 1) // 2
            rows, columns = np.triu_indices(width)
            diagonal = values[:, rows == columns].sum(axis=0)
            square = float(diagonal[1:].sum() / diagonal[0]) if diagonal[0] > 0 else None
        totals.append(
            NoisyTotals(
                round=tensors.round,
                name=release.name,
                total=first,
                std=float(release.column_std[0]) * math.sqrt(release.shape[0]),
                mean_square_row=square,
            )
        )
    return tuple(totals)


FORMAT = "odp-run-1"
_NAME = "run.json"
#: Metrics on the test part in every record: null where its algorithm has no such metric.
TEST_METRICS = ("test_rmse", "test_ranking", "test_examples")
_REQUIRED = (
    "format",
    "kind",
    "task",
    "data",
    "rounds",
    "spending",
    "delta",
    "test_rmse",
    "test_ranking",
    "versions",
)


def run_record(
    *,
    kind: str,
    task: Task,
    split: Split | ExamplesSplit,
    rounds: Sequence[Mapping[str, Any]],
    charges: Sequence[Sequence[Event]],
    metrics: Metrics,
    seed: int,
    noise: bool = True,
    baselines: Mapping[str, Any] | None = None,
    diagnostics: Diagnostics | None = None,
    totals: Sequence[NoisyTotals] = (),
    notes: Sequence[str] = (),
    left_out: Mapping[str, LeftOut] = MappingProxyType({}),
) -> dict[str, Any]:
    """The record of a run; JSON-able, with None for what is infinite or unknown.

    Where they are known, ``standard_errors`` of the differences to the baselines, by name and over paired users, stand
    beside these (``odp.evaluation.paired``).

    Args:
      kind: "simulation" or "platform".
      task, split, seed: what was run.
      rounds: at least ``round`` and ``epsilon`` each, and the metrics by name.
      charges: one sequence per round.
      metrics: of the final model, by name; those on the test part are recorded.
      noise: whether there was any; without it nothing was spent, and nothing is protected.
      baselines: of the same split, by name: an RMSE each, or a ranking.
      diagnostics: of the final model.
      totals: of the releases.
      notes: lines for people.
      left_out: by the part of the data, what no metric is about.
    """
    spent = spending(charges, delta=task.privacy.delta) if noise else ()
    return {
        "format": FORMAT,
        "kind": kind,
        "task": {
            section: _fields(getattr(task, section)) for section in ("model", "data", "privacy", "training", "cohort")
        }
        | {"name": task.name},
        "resolved": _resolved(task),
        "data": _sizes(split),
        "left_out": {part: rows.to_json() for part, rows in left_out.items()},
        "seed": seed,
        "rounds": [dict(entry) for entry in rounds],
        "charges": [event.to_json() | {"round": number} for number, events in enumerate(charges) for event in events],
        "spending": [asdict(spend) for spend in spent],
        "epsilon": spent[-1].epsilon_so_far if spent else None,
        "delta": task.privacy.delta,
        **tested(metrics),
        "baselines": None if baselines is None else dict(baselines),
        "diagnostics": None if diagnostics is None else diagnostics.to_json(),
        "noisy_totals": [asdict(total) for total in totals],
        "notes": list(notes),
        "versions": versions(),
    }


def left_out_of(record: Mapping[str, Any]) -> dict[str, LeftOut]:
    """By the part of the data, what no metric of a record is about; empty for ratings, and where it does not tell."""
    return {part: LeftOut.of(plain) for part, plain in (record.get("left_out") or {}).items()}


def _sizes(split: Split | ExamplesSplit) -> dict[str, Any]:
    if isinstance(split, ExamplesSplit):
        sizes = {"name": split.name, "train": len(split.train.rows), "test": len(split.test.rows)}
        return {**sizes, "users": split.train.n_users, "items": None, "validation": 0}
    return {
        "name": split.train.name,
        "users": split.train.n_users,
        "items": split.train.n_items,
        "train": split.train.n_ratings,
        "validation": split.validation.n_ratings,
        "test": split.test.n_ratings,
    }


def tested(metrics: Metrics) -> dict[str, Any]:
    """Those on the test part, as a record has them."""
    return {
        name: value.to_json() if isinstance(value := metrics.get(name), Ranking) else value for name in TEST_METRICS
    }


def versions() -> dict[str, str]:
    """Versions of what computed a run."""
    import scipy

    return {
        "odp": importlib.metadata.version("odp-platform"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Writes ``run.json`` into ``folder`` (made where missing) at once or not at all; infinities become null.

    Raises:
      DataError: the folder cannot be written.
    """
    path = folder / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(plain(record), indent=1, allow_nan=False) + "\n").encode(), mode=0o666)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}; give another --output") from None
    return path


def read_record(run: Path) -> dict[str, Any]:
    """The record in folder ``run`` (or of that file).

    Raises:
      DataError: there is none, or it is no record of this format.
    """
    path = run / _NAME if run.is_dir() else run
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; give a folder that `odp simulate --output` or `odp demo` wrote"
        ) from None
    except ValueError:
        raise DataError(f"{path}: not JSON; run `odp simulate --output` again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a run of format {FORMAT!r}")
    missing = [key for key in _REQUIRED if key not in content]
    if missing:
        raise DataError(f"{path}: the run lacks {missing[0]!r}; run `odp simulate --output` again")
    return content


def plain(value: Any) -> Any:
    """``value`` with every number that is not finite replaced by None, as JSON wants it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def _fields(part: Any) -> dict[str, Any]:
    """The fields of a part of a task; arrays and catalogues by their size, since the record is for people."""
    values = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, bytes):
            value = value.hex()
        elif isinstance(value, np.ndarray):
            value = f"{value.dtype} {list(value.shape)}"
        elif isinstance(value, enum.Enum):
            value = value.value
        elif isinstance(value, Catalogue):
            value = f"version {value.version} of the catalogue of {value.population!r}: {value.items} items"
        elif isinstance(value, Mapping):
            value = {key: _fields(entry) for key, entry in value.items()}
        values[field.name] = value
    return values


def _resolved(task: Task) -> dict[str, Any]:
    """Every number of the training that the rules chose."""
    definition = task.definition()
    kind = definition.WhichOneof("training") or ""
    message = getattr(definition, kind)
    return {field.name: _plain_field(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain_field(value: Any) -> Any:
    if isinstance(value, Message):
        return MessageToDict(value, preserving_proto_field_name=True)
    return value if isinstance(value, (str, bytes, int, float)) else [_plain_field(entry) for entry in value]

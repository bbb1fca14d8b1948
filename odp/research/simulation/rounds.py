"""One round of a simulation: its figures, as a run shows them and as a checkpoint keeps them.

The state of a simulation on disk after each round: a run that resumes from it gives the same result.

One file, ``simulation.checkpoint``, holds a line of JSON (rounds, and totals of their releases) and the server's state.
A digest identifies its task, data, seed and noise. The file is replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp._system.files.state_folder import state_errors, write_atomically
from odp.datasets.examples import ExamplesSplit
from odp.datasets.ratings import Ratings, Split
from odp.errors import StateError
from odp.models.left_out import LeftOut, columns_of_run
from odp.v1 import common_pb2

#: Every round of a saved run has these keys, in this order: null where its algorithm has no such metric.
_COLUMNS = (
    "round", "contributions", "epsilon", "validation_rmse", "test_rmse", "seconds", "validation_recall",
    "validation_ndcg",
)  # fmt: skip


@dataclass(frozen=True)
class RoundResult:
    """One simulated round.

    Attributes:
      epsilon: Spent by the task so far.
      metrics: Of the model that the round produced, as its algorithm names them: ``odp.DPAM`` has ``validation_rmse``
        and ``test_rmse``, over at most 500 users; ``odp.ImplicitDPAM`` has ``validation_recall`` and
        ``validation_ndcg``, at 20 and over at most 4,096 users. NaN where there is nothing to test on.
      left_out: As of ``RunResult``.
    """

    round: int
    contributions: int
    epsilon: float
    metrics: Mapping[str, float]
    seconds: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, NaN and infinities among them; of examples also how many were left out, and why."""
        row = {"round": self.round, "contributions": self.contributions, "epsilon": self.epsilon}
        row |= {"seconds": self.seconds, **self.metrics, **columns_of_run(self.left_out)}
        return dict.fromkeys(_COLUMNS, math.nan) | row


def saved_round(result: RoundResult) -> dict[str, Any]:
    """JSON has no infinity and no NaN."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in result.to_json().items()
    }


def restored_round(record: dict[str, Any], metrics: tuple[str, ...], left_out: Mapping[str, LeftOut]) -> RoundResult:
    return RoundResult(
        round=record["round"],
        contributions=record["contributions"],
        epsilon=float(record["epsilon"]),
        metrics={name: float(record[name]) for name in metrics},
        seconds=record["seconds"],
        left_out=left_out,
    )


_NAME = "simulation.checkpoint"
_FORMAT = "odp-simulation-3"
_CHUNK = 2**22


@dataclass(frozen=True)
class Place:
    """Rounds done and totals of their releases, as JSON-able records; the server's state after the last round.

    ``stream`` are the past sums of a stream, empty without one.
    """

    rounds: list[dict[str, Any]]
    totals: list[dict[str, Any]]
    state: bytes
    stream: bytes = b""


class Checkpoint:
    """The checkpoint of one run in a folder of its own.

    Args:
      folder: made where it is missing.
      identity: digest of everything that decides the run; see :func:`run_identity`.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._path = Path(folder) / _NAME
        self._identity = identity

    def read(self) -> Place | None:
        """Where the run stands, or None where nothing is saved yet.

        Raises:
          StateError: the file is damaged, or belongs to another run.
        """
        with state_errors(self._path.parent):
            try:
                content = self._path.read_bytes()
            except FileNotFoundError:
                return None
        head, _, state = content.partition(b"\n")
        try:
            header = json.loads(head)
            form, identity, digest = (header[key] for key in ("format", "identity", "state"))
            rounds, totals, length = header["rounds"], header["totals"], int(header["stream_bytes"])
        except (ValueError, KeyError, TypeError):
            form = identity = digest = rounds = totals = None
            length = 0
        lists = isinstance(rounds, list) and isinstance(totals, list)
        if form != _FORMAT or digest != hashlib.sha256(state).hexdigest() or not lists:
            raise StateError(f"{self._path}: not a readable checkpoint; remove it to start again")
        if identity != self._identity:
            raise StateError(
                f"{self._path}: belongs to a run of another task, data set, seed or noise; "
                "give another --checkpoint folder, or remove it"
            )
        end = len(state) - length
        return Place(rounds=rounds, totals=totals, state=state[:end], stream=state[end:])

    def write(self, place: Place) -> None:
        """Replaces the file.

        Raises:
          StateError: it cannot be written.
        """
        state = place.state + place.stream
        head = {
            "format": _FORMAT,
            "identity": self._identity,
            "rounds": place.rounds,
            "totals": place.totals,
            "state": hashlib.sha256(state).hexdigest(),
            "stream_bytes": len(place.stream),
        }
        with state_errors(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(head).encode() + b"\n" + state)


def run_identity(definition: common_pb2.TaskDefinition, split: Split | ExamplesSplit, *, seed: int, noise: str) -> str:
    """SHA-256 of what decides a run, hexadecimal: task, the three parts of the data, seed and kind of noise."""
    digest = hashlib.sha256()
    digest.update(json.dumps([seed, noise]).encode())
    digest.update(definition.SerializeToString(deterministic=True))
    if isinstance(split, ExamplesSplit):
        for examples in (split.train, split.test):
            digest.update(json.dumps([examples.features.shape, examples.n_users, examples.scale]).encode())
            _add_arrays(digest, examples.features, examples.targets, examples.rows, examples.offsets)
    else:
        for part in (split.train, split.validation, split.test):
            _add(digest, part)
    return digest.hexdigest()


def _add(digest: Any, ratings: Ratings) -> None:
    digest.update(np.array([ratings.n_users, ratings.n_items, ratings.n_ratings], dtype="<i8").tobytes())
    _add_arrays(digest, ratings.offsets, ratings.items, ratings.values)


def _add_arrays(digest: Any, *arrays: npt.NDArray[Any]) -> None:
    for array in arrays:
        for start in range(0, len(array), _CHUNK):
            digest.update(array[start : start + _CHUNK].tobytes())

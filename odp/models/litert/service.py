"""Networks behind the walls of ``odp.isolated``: one call trains, tests or asks one program, with a device's examples.

The program is the developer's, so its process has no network, no file, no other process, and limits of memory and time;
whatever fails in it is, outside, a call that failed, and the device sends the empty contribution. The process is given
the batches and no seed. What comes back is the program's word: ``difference_of``, ``measured_of`` and
``predictions_of`` read it, and a contribution is clipped as any other.

Arrays travel as local data of the call, in pieces, so that no message is long; what is found comes back in one.

Needs ai-edge-litert in the template that processes are copied from (``PRELOADED``).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from odp.errors import DataError
from odp.isolated import Columns, Executed, Execution, IsolatedService, Stores
from odp.models.litert.program import Array, Program
from odp.models.litert.trainer import LocalSteps, Measured
from odp.numerics.arrays import Float32Array, Int64Array

if TYPE_CHECKING:
    from odp.models.litert.runner import Runner

#: What the template imports: afterwards there are no files to import from.
PRELOADED = (
    "base64", "binascii", "json", "numpy", "flatbuffers", "ai_edge_litert.interpreter", "odp.models.litert.runner",
    "odp.models.litert.warm", "odp.models.litert.service",
)  # fmt: skip
#: Libraries of it that other services' processes do not have.
LIBRARIES = ("ai_edge_litert", "flatbuffers")

_TRAIN, _MEASURE, _PREDICT = "train", "measure", "predict"
_PREDICTIONS = "predictions"
_MEASURED = ("losses", _PREDICTIONS, "places")
_PIECE = 12 * 2**20
_START, _PROGRAM, _TARGETS = "start", "program", "targets"
# Rows and lengths of batches: of the local parameters, if there are any, and of the others.
_LOCAL, _SHARED = ("local_rows", "local_lengths"), ("rows", "lengths")


class LocalTrainer(IsolatedService):
    """Trains, tests or predicts; see ``work_of``, ``measuring`` and ``predicting`` for what it is given."""

    _runner: tuple[Program, Runner] | None = None

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        """The result holds ``difference`` float32 [shared_size], arrays of ``Measured`` or predictions, in base64."""
        work: Mapping[str, Any] = execution.work
        program = Program.from_json(work["program"], _joined(stores, _PROGRAM))
        runner = self._runner_of(program)
        specs = {_feature(place): spec for place, spec in enumerate(program.features)}
        *features, targets = (
            np.frombuffer(_joined(stores, name), dtype=spec.dtype).reshape(-1, *spec.shape)
            for name, spec in (*specs.items(), (_TARGETS, program.target))
        )
        start = np.frombuffer(_joined(stores, _START), dtype=np.float32)
        if work["kind"] == _MEASURE:
            measured = runner.measured(start, features, targets, items=work["items"])
            return Executed({name: _text(getattr(measured, name)) for name in _MEASURED})
        local = LocalSteps(_batches(stores, _LOCAL), work["local_rate"]) if "local_rate" in work else None
        if work["kind"] == _PREDICT:
            (rows,) = _batches(stores, _SHARED)
            queries = [values[rows] for values in features]
            if work["items"]:
                return Executed({_PREDICTIONS: _text(runner.scores(start, queries[:-1], items=work["items"]))})
            if local is not None:
                start = runner.reconstructed(start, features, targets, local)
            return Executed({_PREDICTIONS: _text(runner.predictions(start, queries))})
        moved = runner.difference(
            start, features, targets, _batches(stores, _SHARED), rate=work["rate"], proximal=work["proximal"],
            local=local,
        )  # fmt: skip
        return Executed({"difference": _text(moved)})

    def _runner_of(self, program: Program) -> Runner:
        """The runner of a program: that of the call before where it ran the same one, which was checked then."""
        from odp.models.litert.runner import Runner

        if self._runner is None or self._runner[0] != program:
            self._runner = program, Runner(program)
        return self._runner[1]


def work_of(
    program: Program, *, rate: float, proximal: float = 0.0, local: LocalSteps | None = None
) -> Columns:  # fmt: skip
    """What a call is given besides arrays; arguments are those of ``Runner.difference``."""
    work: Columns = {"kind": _TRAIN, "program": program.to_json(), "rate": rate, "proximal": proximal}
    return work if local is None else {**work, "local_rate": local.rate}


def measuring(program: Program, *, items: int) -> Columns:
    """``work_of`` a test; ``items`` are those of ``Runner.measured``."""
    return {"kind": _MEASURE, "program": program.to_json(), "items": items}


def predicting(program: Program, *, local: LocalSteps | None, items: int = 0) -> Columns:
    """``work_of`` predictions: of the examples in the one batch of ``arrays_of`` beside those of ``local``.

    With ``items``, the score of each of them in the place of an example's last input.
    """
    work: Columns = {"kind": _PREDICT, "program": program.to_json(), "items": items}
    return work if local is None else {**work, "local_rate": local.rate}


def arrays_of(
    program: Program,
    start: Float32Array,
    features: Sequence[Array],
    targets: Array,
    batches: Sequence[Int64Array],
    *,
    local: LocalSteps | None = None,
) -> dict[str, bytes]:
    """The local data that a call reads; arguments are those of ``Runner.difference``. Examples in no batch stay out.

    Arrays are little-endian.
    """
    first = [] if local is None else list(local.batches)
    used, places = np.unique(np.concatenate([*first, *batches, np.zeros(0, dtype=np.int64)]), return_inverse=True)
    local_places, others = np.split(places.astype(np.int64), [sum(map(len, first))])
    arrays: dict[str, Array] = {
        _START: start,
        **{_feature(place): values[used] for place, values in enumerate(features)},
        _TARGETS: targets[used],
        **dict(zip(_LOCAL, (local_places, _lengths(first)), strict=True)),
        **dict(zip(_SHARED, (others, _lengths(batches)), strict=True)),
    }
    whole = {_PROGRAM: program.flatbuffer, **{name: _bytes(values) for name, values in arrays.items()}}
    return {
        f"{name}/{number}": data[begin : begin + _PIECE]
        for name, data in whole.items()
        for number, begin in enumerate(range(0, len(data), _PIECE))
    }


def difference_of(result: Columns, program: Program) -> Float32Array:
    """The difference in what a call gave back, float32 [shared_size], finite. Raises DataError where there is none."""
    data = _bytes_of(result, "difference")
    if len(data) != 4 * program.shared_size:
        raise DataError(f"Expected a difference of {program.shared_size} numbers")
    moved = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(moved).all():
        raise DataError("Expected a difference of finite numbers")
    return moved


def measured_of(result: Columns, program: Program, *, examples: int, items: int) -> Measured:
    """What a call found of ``examples``. Raises DataError where shapes or places are not those asked for.

    Losses and predictions may be any numbers, as those of a model in the developer's hands may be.
    """
    plain, ranked = (0, examples) if items else (examples, 0)
    sizes = {"losses": 4 * plain, "predictions": 4 * plain * program.prediction.size, "places": 8 * ranked}
    data = {name: _bytes_of(result, name) for name in _MEASURED}
    if {name: len(value) for name, value in data.items()} != sizes:
        raise DataError(f"Expected measurements of {examples} examples")
    places = np.frombuffer(data["places"], dtype="<i8").astype(np.int64)
    if ((places < 0) | (places >= items)).any():
        raise DataError(f"Expected places from 0 to {items - 1}")
    return Measured(
        np.frombuffer(data["losses"], dtype="<f4").astype(np.float32),
        np.frombuffer(data["predictions"], dtype="<f4").astype(np.float32).reshape(plain, *program.prediction.shape),
        places,
    )


def predictions_of(result: Columns, program: Program, *, examples: int, items: int = 0) -> Float32Array:
    """The predictions in what a call gave back, float32 [examples, ..] or [examples, items], finite.

    Raises DataError where they are not.
    """
    data, shape = _bytes_of(result, _PREDICTIONS), (items,) if items else program.prediction.shape
    if len(data) != 4 * examples * (items or program.prediction.size):
        raise DataError(f"Expected predictions of {examples} examples")
    predictions = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(examples, *shape)
    if not np.isfinite(predictions).all():
        raise DataError("Expected predictions that are finite numbers")
    return predictions


def _text(values: Array) -> str:
    return base64.b64encode(_bytes(values)).decode("ascii")


def _bytes_of(result: Columns, name: str) -> bytes:
    """Empty where there are none."""
    try:
        return base64.b64decode(str(result[name]), validate=True)
    except (KeyError, binascii.Error, ValueError):
        return b""


def _lengths(batches: Sequence[Int64Array]) -> Int64Array:
    return np.array([len(rows) for rows in batches], dtype=np.int64)


def _batches(stores: Stores, names: tuple[str, str]) -> list[Int64Array]:
    rows, lengths = (np.frombuffer(_joined(stores, name), dtype=np.int64) for name in names)
    return np.split(rows, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _feature(place: int) -> str:
    return f"x{place}"


def _joined(stores: Stores, name: str) -> bytes:
    pieces: list[bytes] = []
    while (piece := stores.local(f"{name}/{len(pieces)}")) is not None:
        pieces.append(piece)
    return b"".join(pieces)


def _bytes(values: Array) -> bytes:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()

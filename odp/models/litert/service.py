"""Local training behind the walls of ``odp.isolated``: one call trains one program on one device's examples.

The program is the developer's, so its process has no network, no file, no other process, and limits of memory and time;
whatever fails in it is, outside, a call that failed, and the device sends the empty contribution. The process is given
the batches and no seed. What comes back is the program's word: ``difference_of`` reads it, and the contribution is
clipped as any other.

Needs ai-edge-litert in the template that processes are copied from (``PRELOADED``).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from odp.errors import DataError
from odp.isolated import Columns, Executed, Execution, IsolatedService, Stores
from odp.models.litert.program import Array, Program
from odp.numerics.arrays import Float32Array, Int64Array

#: What the template imports: afterwards there are no files to import from.
PRELOADED = (
    "base64", "binascii", "json", "numpy", "flatbuffers", "ai_edge_litert.interpreter", "odp.models.litert.runner",
    "odp.models.litert.warm", "odp.models.litert.service",
)  # fmt: skip


class LocalTrainer(IsolatedService):
    """Trains; see ``work_of`` for what it is given."""

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        """The result holds ``difference``, float32 [size] in base64."""
        from odp.models.litert.runner import Runner

        work: Mapping[str, Any] = execution.work
        program = Program.from_json(work["program"], base64.b64decode(work["flatbuffer"]))
        *features, targets = (
            np.frombuffer(base64.b64decode(data), dtype=spec.dtype).reshape(-1, *spec.shape)
            for spec, data in zip((*program.features, program.target), work["examples"], strict=True)
        )
        batches = [np.array(rows, dtype=np.int64) for rows in work["batches"]]
        start = np.frombuffer(base64.b64decode(work["start"]), dtype=np.float32)
        moved = Runner(program).difference(
            start, features, targets, batches, rate=work["rate"], proximal=work["proximal"]
        )
        return Executed({"difference": _text(moved)})


def work_of(
    program: Program,
    start: Float32Array,
    features: Sequence[Array],
    targets: Array,
    batches: Sequence[Int64Array],
    *,
    rate: float,
    proximal: float = 0.0,
) -> Columns:
    """What a call is given; arguments are those of ``Runner.difference``."""
    return {
        "program": program.to_json(),
        "flatbuffer": base64.b64encode(program.flatbuffer).decode("ascii"),
        "examples": [_text(values) for values in (*features, targets)],
        "batches": [rows.tolist() for rows in batches],
        "start": _text(start),
        "rate": rate,
        "proximal": proximal,
    }


def difference_of(result: Columns, program: Program) -> Float32Array:
    """The difference in what a call gave back, float32 [size], finite. Raises DataError where there is none."""
    try:
        data = base64.b64decode(str(result["difference"]), validate=True)
    except (KeyError, binascii.Error):
        data = b""
    if len(data) != 4 * program.size:
        raise DataError(f"Expected a difference of {program.size} numbers")
    moved = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(moved).all():
        raise DataError("Expected a difference of finite numbers")
    return moved


def _text(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")

"""Runs a network's program by LiteRT. Needs ai-edge-litert.

A stranger's program runs only behind walls (``odp.isolated``): see ``odp.models.litert.inspection``.

Numbers: LiteRT chooses its arithmetic by the processor, so that two kinds of device differ in the last bits. On one
device, with one thread, equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from odp.errors import DataError
from odp.models.litert.inspection import check
from odp.models.litert.program import (
    LOCAL_RATE,
    LOSS,
    MASK,
    PREDICTION,
    PROXIMAL,
    RATE,
    TARGET,
    VECTOR,
    Array,
    Program,
    padded,
)
from odp.models.litert.trainer import LocalSteps, Measured
from odp.numerics.arrays import Float32Array, Int64Array


class ProgramFailed(Exception):
    """LiteRT could not load or run the program."""


class Runner:
    """One loaded program; one thread at a time.

    Raises:
      ConfigurationError: ``inspection.check`` does not accept it; nothing was loaded.
      ProgramFailed: LiteRT does not load it.
    """

    def __init__(self, program: Program) -> None:
        check(program)
        from ai_edge_litert.interpreter import Interpreter

        self._program = program
        try:
            self._interpreter = Interpreter(model_content=program.flatbuffer, num_threads=1)
            self._run = {
                name: self._interpreter.get_signature_runner(name)
                for name in ("load", "save", "train", "infer", "evaluate")
            }
        except (ValueError, RuntimeError) as error:
            raise ProgramFailed(str(error)) from None

    def difference(
        self,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Iterable[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
        out: Float32Array | None = None,
    ) -> Float32Array:
        """What training moves the shared parameters by, float32 [shared_size].

        Zeros without batches, and where a number is not finite.

        Args:
          start: parameters that training begins with, the local ones too, float32 [size].
          features: one array [n, ..] per input.
          targets: [n, ..].
          batches: rows of each step, at least one and at most as many as the program's batch
            (``odp.models.local_training``, whose seed stays outside of the walls).
          rate: step size.
          proximal: factor of the proximal term.
          local: steps of the local parameters, which then stay while the shared ones are trained.
          out: where the result is written, float32 [shared_size]; a new array without.

        Raises:
          DataError: arrays have other shapes than the program says, batches are larger, there is no proximal term, or
            local steps do not go with a program that has local parameters, and with it alone.
          ProgramFailed: LiteRT failed.
        """
        self._check(features, targets)
        if proximal and not self._program.proximal:
            raise DataError(f"Expected proximal={proximal} to be 0: the program has no proximal term")
        self._check_local(local)
        shared = self._program.shared_size
        moved = np.empty(shared, dtype=np.float32) if out is None else out
        if not len(targets):
            moved[:] = 0.0
            return moved
        self._call("load", {VECTOR: start})
        proximal_term = {PROXIMAL: proximal} if self._program.proximal else {}
        self._train_local(features, targets, local)
        frozen = {} if local is None else {LOCAL_RATE: 0.0}
        self._steps(features, targets, batches, {RATE: rate, **frozen, **proximal_term})
        with np.errstate(invalid="ignore", over="ignore"):
            after = self._call("save", {})[VECTOR]
            np.subtract(after[:shared], start[:shared], out=moved)
            whole = np.isfinite(moved).all() and np.isfinite(after[shared:]).all()
        if not whole:
            moved[:] = 0.0
        return moved

    def reconstructed(
        self, start: Float32Array, features: Sequence[Array], targets: Array, local: LocalSteps
    ) -> Float32Array:
        """``start`` with local parameters after these steps, float32 [size]; ``start`` where they are not finite.

        Raises:
          DataError: as ``difference``.
          ProgramFailed: LiteRT failed.
        """
        self._check(features, targets)
        self._check_local(local)
        self._call("load", {VECTOR: start})
        self._train_local(features, targets, local)
        saved = self._call("save", {})[VECTOR]
        return saved if np.isfinite(saved).all() else start

    def predictions(self, vector: Float32Array, features: Sequence[Array]) -> Float32Array:
        """What the model says of each example, float32 [n, ..]. Raises DataError and ProgramFailed."""
        self._check(features, None)
        self._call("load", {VECTOR: vector})
        parts = [self._call("infer", self._batch(features, None, rows))[PREDICTION][: len(rows)] for rows in
                 self._all(len(features[0]))]  # fmt: skip
        return np.concatenate(parts) if parts else np.zeros((0, *self._program.prediction.shape), dtype=np.float32)

    def measures(self, vector: Float32Array, features: Sequence[Array], targets: Array) -> dict[str, Float32Array]:
        """The loss and each metric of every example, float32 [n]. Raises DataError and ProgramFailed."""
        self._check(features, targets)
        self._call("load", {VECTOR: vector})
        names = (LOSS, *self._program.metrics)
        parts_by_name: dict[str, list[Float32Array]] = {name: [np.zeros(0, dtype=np.float32)] for name in names}
        for rows in self._all(len(targets)):
            answer = self._call("evaluate", self._batch(features, targets, rows))
            for name in names:
                parts_by_name[name].append(answer[name][: len(rows)])
        return {name: np.concatenate(parts) for name, parts in parts_by_name.items()}

    def measured(self, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0) -> Measured:
        """As ``ProgramTrainer.measured``. Raises DataError and ProgramFailed."""
        if items:
            none = np.zeros((0, *self._program.prediction.shape), dtype=np.float32)
            return Measured(np.zeros(0, dtype=np.float32), none, self.places(vector, features, items=items))
        losses = self.measures(vector, features, targets)[LOSS]
        return Measured(losses, self.predictions(vector, features), np.zeros(0, dtype=np.int64))

    def places(self, vector: Float32Array, features: Sequence[Array], *, items: int) -> Int64Array:
        """The place of each example's item by its score, int64 [n], 0 the best. Raises DataError and ProgramFailed.

        The other items of the examples are left out of the ranking. Of equal scores, the lower number comes first.
        A score that is not a number is the lowest.

        Args:
          features: one array [n, ..] per input; the last one is the number of an item, below ``items``.
        """
        self._check(features, None)
        if self._program.prediction.size != 1:
            raise DataError("Expected a program that gives one score")
        self._call("load", {VECTOR: vector})
        *context, item = features
        chosen_items, numbers = item.reshape(-1).astype(np.int64), np.arange(items, dtype=np.int64)
        if len(chosen_items) and not 0 <= chosen_items.min() <= chosen_items.max() < items:
            raise DataError(f"Expected items from 0 to {items - 1}")
        others = np.ones(items, dtype=bool)
        others[chosen_items] = False
        places = np.zeros(len(chosen_items), dtype=np.int64)
        # People's own features are mostly the same in all their examples: then items are scored once.
        of_context: dict[bytes, list[int]] = {}
        for row in range(len(chosen_items)):
            of_context.setdefault(b"".join(values[row].tobytes() for values in context), []).append(row)
        for rows in of_context.values():
            scores = self._scores([values[rows[0]] for values in context], item, numbers)
            for row in rows:
                score = scores[chosen_items[row]]
                before = (scores > score) | ((scores == score) & (numbers < chosen_items[row]))
                places[row] = np.count_nonzero(before & others)
        return places

    def _scores(self, context: Sequence[Array], item: Array, numbers: Int64Array) -> Float32Array:
        """The score of each of ``numbers``, float32, where the inputs before the item are ``context``."""
        batch = self._program.batch
        fixed = {f"x{place}": np.repeat(values[None], batch, axis=0) for place, values in enumerate(context)}
        scores = np.empty(len(numbers), dtype=np.float32)
        for rows in self._all(len(numbers)):
            part = padded(numbers[rows].reshape(-1, *item.shape[1:]).astype(item.dtype), batch)
            answer = self._call("infer", {**fixed, f"x{len(context)}": part})[PREDICTION]
            scores[rows] = answer.reshape(-1)[: len(rows)]
        return np.where(np.isnan(scores), np.float32(-np.inf), scores)

    def _check_local(self, local: LocalSteps | None) -> None:
        if (local is not None) is not self._program.has_local:
            raise DataError("Expected local steps of a program with local parameters, and only there")

    def _train_local(self, features: Sequence[Array], targets: Array, local: LocalSteps | None) -> None:
        if local is not None:
            # The pull of a proximal term is one on shared parameters, which do not move here.
            proximal_term = {PROXIMAL: 0.0} if self._program.proximal else {}
            self._steps(features, targets, local.batches, {RATE: 0.0, LOCAL_RATE: local.rate, **proximal_term})

    def _steps(
        self, features: Sequence[Array], targets: Array, batches: Iterable[Int64Array], numbers: Mapping[str, float]
    ) -> None:
        scalars = {name: np.float32(number) for name, number in numbers.items()}
        mask = np.zeros(self._program.batch, dtype=np.float32)
        for rows in batches:
            if not 1 <= len(rows) <= self._program.batch:
                raise DataError(f"Expected batches of 1 to {self._program.batch} examples (got {len(rows)})")
            mask[: len(rows)], mask[len(rows) :] = 1.0, 0.0
            self._call("train", {**self._batch(features, targets, rows), **scalars, MASK: mask})

    def _all(self, examples: int) -> Sequence[Int64Array]:
        places = np.arange(examples, dtype=np.int64)
        return [places[begin : begin + self._program.batch] for begin in range(0, examples, self._program.batch)]

    def _batch(self, features: Sequence[Array], targets: Array | None, rows: Int64Array) -> dict[str, Array]:
        batch = self._program.batch
        arrays = {f"x{place}": padded(values[rows], batch) for place, values in enumerate(features)}
        return arrays if targets is None else {**arrays, TARGET: padded(targets[rows], batch)}

    def _check(self, features: Sequence[Array], targets: Array | None) -> None:
        wanted = list(self._program.features)
        arrays = list(features)
        if targets is not None:
            wanted, arrays = [*wanted, self._program.target], [*arrays, targets]
        if len(arrays) != len(wanted) or len({len(values) for values in arrays}) != 1:
            raise DataError(f"Expected {len(wanted)} arrays of as many examples each")
        for spec, values in zip(wanted, arrays, strict=True):
            if values.shape[1:] != spec.shape or values.dtype != spec.dtype:
                raise DataError(f"Expected {spec.name!r} to be {spec.dtype} of shape [n, *{list(spec.shape)}]")

    def _call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            outputs: dict[str, Any] = self._run[signature](**inputs)
        except (ValueError, RuntimeError) as error:
            raise ProgramFailed(str(error)) from None
        wanted = self._program.outputs(signature)
        # What came back is the program's word.
        if {name: (values.shape, str(values.dtype)) for name, values in outputs.items()} != wanted:
            raise ProgramFailed(f"the program's signature {signature!r} gave something else than it declared")
        return outputs

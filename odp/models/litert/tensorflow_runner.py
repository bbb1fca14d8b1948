"""Trains a network of one's own by TensorFlow, in a simulation. Needs TensorFlow, on the developer's side alone.

LiteRT's gradients of large convolutions take several times as long as TensorFlow's. So a simulation of a network with
much work per example trains by the functions that the program was compiled from.

Numbers: those of ``odp.models.litert.runner.Runner`` up to the rounding of float32. Of equal numbers in the window of a
maximum pool, TensorFlow's gradient goes to the first, and a device's to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from odp.errors import DataError
from odp.models.litert.functions import Functions
from odp.models.litert.program import LOSS, MASK, PROXIMAL, RATE, TARGET, Array, Program, padded
from odp.models.litert.trainer import LocalSteps
from odp.numerics.arrays import Float32Array, Int64Array


class TensorFlowRunner:
    """``odp.models.litert.trainer.Engine`` of one network without local parameters; one thread at a time.

    The graph of a step is made once, and called as it is: to look it up by its arguments takes about a millisecond.
    """

    def __init__(self, functions: Functions, program: Program) -> None:
        self._functions, self._program = functions, program
        self._weights = [tf.Variable(tf.zeros(parameter.shape)) for parameter in program.parameters]
        self._starts = (
            [tf.Variable(tf.zeros(parameter.shape)) for parameter in program.parameters] if program.proximal else []
        )
        self._names = tuple(program.inputs("train"))
        specs = [tf.TensorSpec(shape, dtype) for shape, dtype in program.inputs("train").values()]
        self._step = tf.function(self._train, input_signature=specs).get_concrete_function()

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
        """As ``Engine.difference``.

        Raises:
          DataError: a batch is empty, or larger than the program's, or there are local steps.
        """
        if local is not None:
            raise DataError("Expected no local steps: LiteRT trains local parameters")
        moved = np.empty_like(start) if out is None else out
        parts, program = self._program.split(start), self._program
        for held in (self._weights, self._starts):
            for variable, part in zip(held, parts.values(), strict=False):
                variable.assign(part)
        numbers = {RATE: tf.constant(rate, tf.float32), PROXIMAL: tf.constant(proximal, tf.float32)}
        stepped = False
        for rows in batches:
            if not 1 <= len(rows) <= program.batch:
                raise DataError(f"Expected batches of 1 to {program.batch} examples (got {len(rows)})")
            mask = np.zeros(program.batch, dtype=np.float32)
            mask[: len(rows)] = 1.0
            x = {f"x{place}": padded(values[rows], program.batch) for place, values in enumerate(features)}
            inputs = {**x, TARGET: padded(targets[rows], program.batch), MASK: mask, **numbers}
            self._step(*(tf.convert_to_tensor(inputs[name]) for name in self._names))
            stepped = True
        if not stepped:
            moved[:] = 0.0
            return moved
        with np.errstate(invalid="ignore", over="ignore"):
            for parameter, variable in zip(program.parameters, self._weights, strict=True):
                place = slice(parameter.offset, parameter.offset + parameter.size)
                np.subtract(variable.numpy().reshape(-1), start[place], out=moved[place])
        if not np.isfinite(moved).all():
            moved[:] = 0.0
        return moved

    def _train(self, *tensors: Any) -> None:
        inputs = dict(zip(self._names, tensors, strict=True))
        x = [inputs[f"x{place}"] for place in range(len(self._program.features))]
        mask, weights = inputs[MASK], [variable.read_value() for variable in self._weights]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = self._functions.evaluate(weights, x, inputs[TARGET])[LOSS]
            loss = tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)
        slopes = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for place, (variable, weight, slope) in enumerate(zip(self._weights, weights, slopes, strict=True)):
            step = tf.convert_to_tensor(slope)
            if self._starts:
                step += inputs[PROXIMAL] * (weight - self._starts[place])
            # In place, where ``assign_sub`` would make a scaled copy of the slope first.
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=inputs[RATE], delta=step)

"""Compares what a program computes with what its network does, before anybody trains it. Needs TensorFlow.

A converter can drop a part of a network without a word, or make a program that LiteRT does not run. So one prediction,
one evaluation and one step run in both, on random weights and examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from odp.errors import ConfigurationError, DataError
from odp.models.litert.program import LOSS, Array, Program, TensorSpec
from odp.models.litert.runner import ProgramFailed, Runner
from odp.models.litert.trainer import LocalSteps
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.models.litert.functions import Functions

_RATE = 2.0**-3
#: How far numbers may be apart, as a share of the largest of their array: another order of sums, not another function.
_APART = 1e-3
_GRADIENT = "the gradient"

#: (features, targets) -> results by name.
_Compute = Callable[[Sequence[Array], Array], dict[str, Float32Array]]


def require_equal(functions: Functions, program: Program) -> None:
    """Returns if ``program`` computes what ``functions`` do, but for rounding.

    Raises:
      ConfigurationError: it does not, or LiteRT does not run it; the message says which of its results differ.
    """
    source = np.random.Generator(np.random.PCG64(0))
    vector = np.concatenate([_weights(source, parameter.shape) for parameter in program.parameters])
    features = [_numbers(source, spec, program.batch, below=2) for spec in program.features]
    targets = _numbers(source, program.target, program.batch, below=max(program.classes, 1))
    compute = _by_tensorflow(functions, program, vector)
    try:
        expected = compute(features, targets)
    except tf.errors.InvalidArgumentError:  # an embedding may have no row 1
        features = [np.zeros_like(array) for array in features]
        expected = compute(features, targets)
    _require_apart(expected, compute([_repeated(array) for array in features], _repeated(targets)))
    try:
        computed = _by_litert(program, vector, features, targets)
    except (ProgramFailed, DataError) as error:
        raise ConfigurationError(f"Expected a model that LiteRT runs; it fails: {error}") from None
    for what, numbers in expected.items():
        difference = _difference(numbers, computed[what])
        if difference is not None:
            raise ConfigurationError(
                f"Expected the program to compute what the model does: {what} differs by {difference} on random "
                "examples. The converter dropped or changed a part of the model; write its activations and reshapes as "
                "layers of their own, or take other layers"
            )


def _require_apart(in_batch: dict[str, Float32Array], repeated: dict[str, Float32Array]) -> None:
    """Raises ConfigurationError where a result of the first example is another one beside examples like it.

    Devices fill their batches up, so that such a model would compute from what nobody has.
    """
    for what, numbers in in_batch.items():
        difference = None if what == _GRADIENT else _difference(numbers[:1], repeated[what][:1])
        if difference is not None:
            raise ConfigurationError(
                f"Expected results of an example to follow from it alone: {what} differs by {difference} with other "
                "examples in the batch. Take no mean over the batch, and a loss of targets and predictions of one shape"
            )


def _repeated(batch: Array) -> Array:
    return np.repeat(batch[:1], len(batch), axis=0)


def _difference(expected: Float32Array, computed: Float32Array) -> str | None:
    """How far apart two arrays are; None where they are equal but for rounding."""
    finite = np.isfinite(expected)
    apart = np.abs(computed - expected)[finite].max(initial=0.0)
    largest = np.abs(expected[finite]).max(initial=0.0)
    if np.array_equal(finite, np.isfinite(computed)) and apart <= _APART * max(largest, _APART):
        return None
    return f"{apart:.3g} of {largest:.3g}"


def _by_tensorflow(functions: Functions, program: Program, vector: Float32Array) -> _Compute:
    def computed(weights: Sequence[Any], x: Sequence[Any], y: Any) -> tuple[Any, dict[str, Any], Any]:
        measured = functions.evaluate(weights, x, y)
        slopes = tf.gradients(tf.reduce_mean(measured[LOSS]), weights)
        whole = [
            tf.reshape(tf.zeros_like(weight) if slope is None else tf.convert_to_tensor(slope), [-1])
            for weight, slope in zip(weights, slopes, strict=True)
        ]
        return functions.predict(weights, x), measured, tf.concat(whole, axis=0)

    weights = [tf.constant(part) for part in program.split(vector).values()]
    # In a graph: functions that come from TensorFlow Federated run nowhere else.
    graph = tf.function(computed)

    def compute(features: Sequence[Array], targets: Array) -> dict[str, Float32Array]:
        prediction, measured, gradient = graph(
            weights, [tf.constant(array) for array in features], tf.constant(targets)
        )
        named = {f"the {name}": np.asarray(numbers, dtype=np.float32) for name, numbers in measured.items()}
        return {"a prediction": np.asarray(prediction, np.float32), **named, _GRADIENT: np.asarray(gradient)}

    return compute


def _by_litert(
    program: Program, vector: Float32Array, features: Sequence[Array], targets: Array
) -> dict[str, Float32Array]:
    runner, batch = Runner(program), np.arange(len(targets))
    shared = program.shared_size
    local = LocalSteps([], _RATE) if program.has_local else None
    step = np.empty_like(vector)
    step[:shared] = runner.difference(vector, features, targets, [batch], rate=_RATE, local=local)
    if program.has_local:
        moved = runner.reconstructed(vector, features, targets, LocalSteps([batch], _RATE))
        step[shared:] = (moved - vector)[shared:]
    measured = {f"the {name}": numbers for name, numbers in runner.measures(vector, features, targets).items()}
    return {"a prediction": runner.predictions(vector, features), **measured, _GRADIENT: step / -_RATE}


def _weights(source: np.random.Generator, shape: tuple[int, ...]) -> Float32Array:
    """Random weights that keep numbers about as large as they are, float32 [size]."""
    wide = max(1, int(np.prod(shape[:-1])))
    weights: Any = source.standard_normal(int(np.prod(shape))) / np.sqrt(wide)
    return np.asarray(weights, dtype=np.float32)


def _numbers(source: np.random.Generator, spec: TensorSpec, examples: int, *, below: int) -> Array:
    shape = (examples, *spec.shape)
    if spec.dtype == "int32":
        return source.integers(0, below, shape, dtype=np.int32)
    return source.random(shape, dtype=np.float32)

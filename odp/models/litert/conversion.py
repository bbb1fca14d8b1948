"""Functions of weights and examples as a program for devices. Needs TensorFlow; only the developer's side imports this.

The program trains by itself: its signature ``train`` computes the loss, the gradient and a step of gradient descent,
all in operations that LiteRT has built in. Weights are resource variables, which ``load`` and ``save`` exchange with
one vector.

Compares what a program computes with what its network does, before anybody trains it. Needs TensorFlow.

A converter can drop a part of a network without a word, or make a program that LiteRT does not run. So one prediction,
one evaluation and one step run in both, on random weights and examples.

Gradients of TensorFlow operations in forms that LiteRT has built in. Needs TensorFlow.

TensorFlow computes some gradients by operations of their own (``ReluGrad``), which a device would need all of
TensorFlow for. These forms give the same numbers by arithmetic, but for ties of a maximum: TensorFlow's gradient of
``MaxPool`` goes to the first of equal numbers, here all of them share it.

An operation that a form does not cover (a pool whose windows overlap, say) keeps TensorFlow's own gradient, and the
compiler then refuses the model by the name of that operation.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from odp.errors import ConfigurationError, DataError
from odp.models.litert.functions import Functions
from odp.models.litert.program import LOADED, LOSS, PREDICTION, SIGNATURES, VECTOR, Array, Program, TensorSpec
from odp.models.litert.runner import ProgramFailed, Runner, check, without_initial_values
from odp.models.litert.trainer import LocalSteps
from odp.numerics.arrays import Float32Array

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
        if (difference := _difference(numbers, computed[what])) is not None:
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


_PREFIX = "Odp"


def _relu(op: Any, slope: Any) -> Any:
    return tf.where(op.outputs[0] > 0, slope, 0.0)


def _relu6(op: Any, slope: Any) -> Any:
    output = op.outputs[0]
    return tf.where(tf.logical_and(output > 0, output < 6), slope, 0.0)


def _leaky_relu(op: Any, slope: Any) -> Any:
    return tf.where(op.inputs[0] > 0, slope, slope * op.get_attr("alpha"))


def _elu(op: Any, slope: Any) -> Any:
    output = op.outputs[0]
    return tf.where(output > 0, slope, slope * (output + 1))


def _softsign(op: Any, slope: Any) -> Any:
    return slope / tf.square(1 + tf.abs(op.inputs[0]))


def _strided_slice(op: Any, slope: Any) -> Any:
    """Zeros around the slope, where every stride is 1."""
    sliced, (begin, end, strides) = op.inputs[0], (tf.get_static_value(tensor) for tensor in op.inputs[1:])
    masks = {name: op.get_attr(name) for name in ("begin_mask", "end_mask", "shrink_axis_mask")}
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask") or begin is None or end is None:
        return _tensorflow_gradient(op, slope)
    if strides is None or not sliced.shape.is_fully_defined():
        return _tensorflow_gradient(op, slope)
    around, sizes = [], []
    for axis, size in enumerate(sliced.shape):
        first, last = 0, size
        if axis < len(begin):
            shrinks = masks["shrink_axis_mask"] >> axis & 1
            if strides[axis] != 1 and not shrinks:
                return _tensorflow_gradient(op, slope)
            if shrinks or not masks["begin_mask"] >> axis & 1:
                first = range(size + 1)[max(begin[axis] + size if begin[axis] < 0 else min(begin[axis], size), 0)]
            if shrinks:
                last = first + 1
            elif not masks["end_mask"] >> axis & 1:
                last = max(end[axis] + size if end[axis] < 0 else min(end[axis], size), first)
        around.append([first, size - last])
        sizes.append(last - first)
    return [tf.pad(tf.reshape(slope, sizes), around), None, None, None]


def _spread(image: Any, rows: int, columns: int) -> Any:
    """Each cell of an image [batch, h, w, c] as a block of ``rows`` x ``columns`` cells."""
    batch, height, width, channels = image.shape
    wide = tf.reshape(tf.concat([image] * columns, axis=3), [batch, height, width * columns * channels])
    return tf.reshape(tf.concat([wide] * rows, axis=2), [batch, height * rows, width * columns, channels])


def _windows(op: Any) -> tuple[int, int] | None:
    """Rows and columns of a pool's windows, where these lie side by side."""
    _, rows, columns, _ = op.get_attr("ksize")
    apart = tuple(op.get_attr("strides"))[1:3] == (rows, columns)
    _, height, width, _ = op.inputs[0].shape
    whole = op.get_attr("padding") == b"VALID" or (height % rows == 0 and width % columns == 0)
    return (rows, columns) if apart and whole and op.get_attr("data_format") == b"NHWC" else None


def _uncropped(slope: Any, image: Any) -> Any:
    missing = [[0, whole - part] for whole, part in zip(image.shape, slope.shape, strict=True)]
    return tf.pad(slope, missing) if any(after for _, after in missing) else slope


def _average_pool(op: Any, slope: Any) -> Any:
    if (windows := _windows(op)) is None:
        return _tensorflow_gradient(op, slope)
    return _uncropped(_spread(slope / (windows[0] * windows[1]), *windows), op.inputs[0])


def _max_pool(op: Any, slope: Any) -> Any:
    if (windows := _windows(op)) is None:
        return _tensorflow_gradient(op, slope)
    image, pooled = op.inputs[0], op.outputs[0]
    batch, height, width, channels = pooled.shape
    cropped = tf.slice(image, [0, 0, 0, 0], [batch, height * windows[0], width * windows[1], channels])
    hit = tf.where(tf.equal(cropped, _spread(pooled, *windows)), 1.0, 0.0)
    shares = tf.nn.avg_pool2d(hit, windows, windows, "VALID") * float(windows[0] * windows[1])
    return _uncropped(_spread(slope / shares, *windows) * hit, image)


def _convolution(op: Any, slope: Any) -> Any:
    """The gradient of a filter is a convolution of the images with the slopes, both with batch and channels swapped."""
    image, kernel = op.inputs
    _, *strides, _ = op.get_attr("strides")
    plain = all(dilation == 1 for dilation in op.get_attr("dilations")) and op.get_attr("data_format") == b"NHWC"
    padding = op.get_attr("padding").decode()
    if not plain or padding not in ("VALID", "SAME") or not image.shape.is_fully_defined():
        return _tensorflow_gradient(op, slope)
    if image.shape[3] != kernel.shape[2]:  # groups
        return _tensorflow_gradient(op, slope)
    rows, columns = kernel.shape[:2]
    around = [[0, 0], [0, 0], [0, 0], [0, 0]]
    if padding == "SAME":
        for axis, (size, output_size, stride, extent) in enumerate(
            zip(image.shape[1:3], slope.shape[1:3], strides, (rows, columns), strict=True), start=1
        ):
            missing = max((output_size - 1) * stride + extent - size, 0)
            around[axis] = [missing // 2, missing - missing // 2]
    images = tf.transpose(tf.pad(image, around) if any(map(any, around)) else image, [3, 1, 2, 0])
    slopes = tf.transpose(slope, [1, 2, 0, 3])
    filter_slope = tf.nn.conv2d(images, slopes, strides=1, padding="VALID", dilations=strides)
    filter_slope = tf.slice(filter_slope, [0, 0, 0, 0], [filter_slope.shape[0], rows, columns, filter_slope.shape[3]])
    back = tf.raw_ops.Conv2DBackpropInput(
        input_sizes=list(image.shape), filter=kernel, out_backprop=slope, strides=op.get_attr("strides"),
        padding=padding,
    )  # fmt: skip
    return [back, tf.transpose(filter_slope, [1, 2, 0, 3])]


def _tensorflow_gradient(op: Any, slope: Any) -> Any:
    return ops.gradient_registry.lookup(op.type)(op, slope)


_FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "Relu": _relu,
    "Relu6": _relu6,
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "Softsign": _softsign,
    "StridedSlice": _strided_slice,
    "AvgPool": _average_pool,
    "MaxPool": _max_pool,
    "Conv2D": _convolution,
}
for _name, _form in _FORMS.items():
    tf.RegisterGradient(f"{_PREFIX}{_name}")(_form)


@contextmanager
def builtin_gradients() -> Iterator[None]:
    """Operations that are made within have gradients of builtin operations, for ``tf.gradients``."""
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({name: f"{_PREFIX}{name}" for name in _FORMS}):
        yield


def with_builtin_gradients(graph: Any) -> Any:
    """A copy of a ``GraphDef`` whose operations have gradients of builtin operations wherever it is imported."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    for node in copy.node:
        if node.op in _FORMS:
            node.attr["_gradient_op_type"].s = f"{_PREFIX}{node.op}".encode()
    return copy


_REFUSED_OPERATION = re.compile(r"'tf\.(\w+)' op is neither")


def converted(functions: Functions, program: Program) -> Program:
    """The program with the flatbuffer that computes these functions.

    Raises:
      ConfigurationError: they need operations that LiteRT has not built in, which the message names; or what was
        converted computes something else.
    """
    network = _Network(functions, program)
    signatures = {}
    for name in SIGNATURES:
        specs = [
            tf.TensorSpec(shape, dtype, name=input_name) for input_name, (shape, dtype) in program.inputs(name).items()
        ]
        signatures[name] = tf.function(getattr(network, name), input_signature=specs).get_concrete_function()
    with tempfile.TemporaryDirectory(prefix="odp-compile-") as folder:
        # Nobody differentiates what was saved, and gradients by name could not be saved.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(network, folder, signatures=signatures, options=options)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(SIGNATURES))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.experimental_enable_resource_variables = True
        try:
            return _equal(functions, dataclasses.replace(program, flatbuffer=_flatbuffer(converter)))
        except ConfigurationError:
            # The converter fuses an activation into a product of matrices, and loses it. Unfolded products keep it, and
            # make a program longer.
            converter.unfold_batchmatmul = True
            return _equal(functions, dataclasses.replace(program, flatbuffer=_flatbuffer(converter)))


def _flatbuffer(converter: Any) -> bytes:
    try:
        return without_initial_values(bytes(converter.convert()))
    except Exception as error:  # the converter raises its own kinds, and several of Python's
        refused = sorted(set(_REFUSED_OPERATION.findall(str(error))))
        what = ", ".join(refused) if refused else str(error).strip().splitlines()[-1]
        raise ConfigurationError(f"Expected a model of operations that LiteRT has built in; it needs {what}") from None


def _equal(functions: Functions, compiled: Program) -> Program:
    check(compiled)
    require_equal(functions, compiled)
    return compiled


class _Network(tf.Module):
    """The weights as variables, and the functions that become signatures."""

    def __init__(self, functions: Functions, program: Program) -> None:
        super().__init__()
        self._functions, self._parameters = functions, program.parameters
        self._features = len(program.features)
        self._has_local = program.has_local
        self.weights = [tf.Variable(tf.zeros(parameter.shape)) for parameter in self._parameters]
        self.starts = (
            [tf.Variable(tf.zeros(parameter.shape)) for parameter in self._parameters] if program.proximal else []
        )

    def load(self, vector: Any) -> dict[str, Any]:
        for place, parameter in enumerate(self._parameters):
            part = tf.reshape(tf.slice(vector, [parameter.offset], [parameter.size]), parameter.shape)
            for held in (self.weights, self.starts):
                if held:
                    held[place].assign(part)
        return {LOADED: tf.constant(1.0)}

    def save(self) -> dict[str, Any]:
        return {VECTOR: tf.concat([tf.reshape(variable.read_value(), [-1]) for variable in self.weights], axis=0)}

    def infer(self, *x: Any) -> dict[str, Any]:
        return {PREDICTION: self._functions.predict([variable.read_value() for variable in self.weights], x)}

    def evaluate(self, *inputs: Any) -> dict[str, Any]:
        *x, targets = inputs
        return self._functions.evaluate([variable.read_value() for variable in self.weights], x, targets)

    def train(self, *inputs: Any) -> dict[str, Any]:
        x, (targets, mask, rate, *others) = inputs[: self._features], inputs[self._features :]
        local_rate = others.pop(0) if self._has_local else rate
        weights = [variable.read_value() for variable in self.weights]
        with builtin_gradients():
            losses = self._functions.evaluate(weights, x, targets)[LOSS]
            loss = tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)
        slopes = tf.gradients(loss, weights)
        for place, (parameter, weight, slope) in enumerate(zip(self._parameters, weights, slopes, strict=True)):
            step = tf.zeros_like(weight) if slope is None else tf.convert_to_tensor(slope)
            if self.starts and not parameter.local:
                step += others[0] * (weight - self.starts[place].read_value())
            self.weights[place].assign(weight - (local_rate if parameter.local else rate) * step)
        return {LOSS: loss}

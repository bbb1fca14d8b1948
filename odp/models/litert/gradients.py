"""Gradients of TensorFlow operations in forms that LiteRT has built in. Needs TensorFlow.

TensorFlow computes some gradients by operations of their own (``ReluGrad``), which a device would need all of
TensorFlow for. These forms give the same numbers by arithmetic, but for ties of a maximum: TensorFlow's gradient of
``MaxPool`` goes to the first of equal numbers, here all of them share it.

An operation that a form does not cover (a pool whose windows overlap, say) keeps TensorFlow's own gradient, and the
compiler then refuses the model by the name of that operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

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
    windows = _windows(op)
    if windows is None:
        return _tensorflow_gradient(op, slope)
    return _uncropped(_spread(slope / (windows[0] * windows[1]), *windows), op.inputs[0])


def _max_pool(op: Any, slope: Any) -> Any:
    windows = _windows(op)
    if windows is None:
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

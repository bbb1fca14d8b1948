"""Models of TensorFlow Federated as models of this platform. Needs that (`make tff-env`).

A model's functions are traced once, for batches of one size, and its operations are imported where the program needs
them, with the gradients that devices have built in. A ``tf.function`` would keep gradients of its own inside.

Predictions are those of ``training=True``, as TensorFlow Federated computes them when it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from odp import _validate
from odp.errors import ConfigurationError
from odp.models.litert.compiled_model import CompiledModel
from odp.models.litert.conversion import converted, with_builtin_gradients
from odp.models.litert.functions import Functions
from odp.models.litert.program import LOSS, MOST_BATCH, PREDICTION, TARGET, Parameter, Program, TensorSpec, inputs_of
from odp.numerics.arrays import Float32Array

# Loss over examples against the mean of their losses, in units of the latter.
_MEAN_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class ModelFromTff(CompiledModel):
    """What ``from_tff`` gives: a compiled model that remembers what it was made of, for ``to_tff``.

    Attributes:
      source: the FunctionalModel, or the function that makes a ReconstructionModel.
      loss_fn: of a ReconstructionModel, a function that makes its loss; else None.
      declared: its ``input_spec``.
    """

    source: Any = field(repr=False)
    loss_fn: Callable[[], Any] | None = field(repr=False)
    declared: Any = field(repr=False)

    @property
    def input_spec(self) -> tuple[Any, Any]:
        """(features, label) of a batch."""
        return _pair(self.declared)

    def batch_of(self, features: Float32Array, targets: Float32Array) -> Any:
        """Examples [n, width] and their targets [n] in the structure, shapes and types that the model declares."""
        x, y = self.input_spec
        inputs = zip(inputs_of(self.program, features), tf.nest.flatten(x), strict=True)
        inputs_as_declared = tf.nest.pack_sequence_as(
            x, [array.astype(spec.dtype.as_numpy_dtype) for array, spec in inputs]
        )
        labels = targets.reshape(-1, *y.shape[1:]).astype(y.dtype.as_numpy_dtype)
        declared = self.declared
        if isinstance(declared, dict):
            return type(declared)(zip(declared, (inputs_as_declared, labels), strict=True))
        return inputs_as_declared, labels


def from_tff(
    model: Any, loss_fn: Callable[[], Any] | None = None, *, batch: int = 10, proximal: bool = False
) -> ModelFromTff:
    """Compiles a model of TensorFlow Federated for devices.

    Labels of an integer type are classes: as many as the model has outputs, two with one output. Weights and features
    in a dictionary are in the order of ``tf.nest.flatten``: by name.

    Args:
      model: a ``tff.learning.models.FunctionalModel``, or a function without arguments that makes a
        ``tff.learning.models.ReconstructionModel``. The local variables of the latter stay on devices.
      loss_fn: of a ReconstructionModel: a function without arguments that makes a Keras loss.
      batch: most examples per step; devices compute this many in every step.
      proximal: whether devices may train with a proximal term.

    Raises:
      ConfigurationError: the model is none of these, has weights that are not trained beside variables, gives no single
        tensor, has a loss that is no mean over examples, or needs operations that LiteRT has not built in.
    """
    _validate.integer(low=1, high=MOST_BATCH, batch=batch)
    if isinstance(model, tff.learning.models.FunctionalModel):
        if loss_fn is not None:
            raise ConfigurationError("Expected loss_fn=None with a FunctionalModel, which has its own loss")
        traced = _functional(model)
    elif callable(model) and isinstance(made := model(), tff.learning.models.ReconstructionModel):
        if loss_fn is None:
            raise ConfigurationError("Expected loss_fn with a ReconstructionModel: a function that makes a Keras loss")
        traced = _reconstruction(made, loss_fn())
    else:
        raise ConfigurationError(
            "Expected a tff.learning.models.FunctionalModel, or a function that makes a ReconstructionModel"
        )
    program, functions = _described(traced, batch, proximal)
    start = np.concatenate([np.asarray(weight, dtype=np.float32).reshape(-1) for weight in traced.weights])
    return ModelFromTff(converted(functions, program), start, model, loss_fn, traced.declared)


@dataclass(frozen=True)
class _Traced:
    """What a model computes: ``predict`` of weights in the order of the vector and of features, ``loss`` of a batch."""

    weights: Sequence[Any]
    shared: int
    variables: Sequence[Any]
    declared: Any
    predict: Callable[[Sequence[Any], Any], Any]
    loss: Callable[[Any, Any], Any]


def _functional(model: Any) -> _Traced:
    trainable, fixed = model.initial_weights

    def predict(weights: Sequence[Any], x: Any) -> Any:
        packed = tf.nest.pack_sequence_as(trainable, list(weights))
        return model.predict_on_batch((packed, tf.nest.map_structure(tf.constant, fixed)), x, True)

    weights = tf.nest.flatten(trainable)
    return _Traced(weights, len(weights), (), model.input_spec, predict, model.loss)


def _reconstruction(model: Any, loss: Any) -> _Traced:
    if list(model.global_non_trainable_variables) or list(model.local_non_trainable_variables):
        raise ConfigurationError("Expected a ReconstructionModel without variables that are not trained")
    shared = list(model.global_trainable_variables)
    variables = [*shared, *model.local_trainable_variables]
    _, y = _pair(model.input_spec)

    def predict(weights: Sequence[Any], features: Any) -> Any:
        # It reads its own variables, which the trace replaces by weights.
        labels = tf.zeros([tf.nest.flatten(features)[0].shape[0], *y.shape[1:]], y.dtype)
        declared = model.input_spec
        batch = type(declared)(zip(declared, (features, labels), strict=True)) if isinstance(declared, dict) else (
            features, labels)  # fmt: skip
        return model.forward_pass(batch, training=True).predictions

    def own_loss(predictions: Any, labels: Any) -> Any:
        return loss(y_true=labels, y_pred=predictions)

    return _Traced(
        [variable.numpy() for variable in variables], len(shared), variables, model.input_spec, predict, own_loss
    )


def _described(traced: _Traced, batch: int, proximal: bool) -> tuple[Program, Functions]:
    x, y = _pair(traced.declared)
    features = [_fixed(spec, batch) for spec in tf.nest.flatten(x)]
    label = _fixed(y, batch)
    weights = [tf.TensorSpec(np.shape(weight), tf.float32) for weight in traced.weights]

    def predict(*tensors: Any) -> Any:
        held, rest = tensors[: len(weights)], tensors[len(weights) :]
        inputs = [tf.cast(tensor, spec.dtype) for tensor, spec in zip(rest, features, strict=True)]
        prediction = traced.predict(held, tf.nest.pack_sequence_as(x, inputs))
        if not tf.is_tensor(prediction):
            raise ConfigurationError("Expected a model whose predictions are one tensor")
        return tf.cast(prediction, tf.float32)

    predicting = _Trace(predict, [*weights, *(_carried(feature) for feature in features)], traced.variables)
    output = predicting.output

    def losses(predictions: Any, labels: Any) -> Any:
        labels = tf.cast(labels, label.dtype)
        rows = [traced.loss(predictions[row : row + 1], labels[row : row + 1]) for row in range(batch)]
        return tf.stack([tf.reshape(row_loss, []) for row_loss in rows])

    measuring = _Trace(losses, [output, _carried(label)], ())
    _check_mean(traced, output, label)
    classes = 0
    if label.dtype.is_integer:
        classes = max(2, output.shape[-1] if len(output.shape) > 1 else 1)
    parameters, offset = [], 0
    for place, spec in enumerate(weights):
        parameters.append(Parameter(f"weight{place}", tuple(spec.shape), offset, place >= traced.shared))
        offset += parameters[-1].size
    program = Program(
        flatbuffer=b"",
        features=tuple(_example(f"x{place}", feature) for place, feature in enumerate(features)),
        target=_example(TARGET, label),
        prediction=_example(PREDICTION, output),
        parameters=tuple(parameters),
        metrics=(),
        batch=batch,
        classes=classes,
        proximal=proximal,
    )

    def evaluate(held: Sequence[Any], inputs: Sequence[Any], labels: Any) -> dict[str, Any]:
        return {LOSS: measuring(predicting(*held, *inputs), labels)}

    return program, Functions(lambda held, inputs: predicting(*held, *inputs), evaluate)


class _Trace:
    """A function as one flat graph, whose operations have built-in gradients wherever it is called.

    Args:
      function: of tensors of these specs; gives one tensor.
      specs: of what it is called with.
      variables: that it reads by itself: the first arguments stand for them, one each.
    """

    def __init__(self, function: Callable[..., Any], specs: Sequence[Any], variables: Sequence[Any]) -> None:
        with _inlined():
            traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        graph = traced.graph
        handles = {id(variable.handle): place for place, variable in enumerate(variables)}
        self._names = [tensor.name for tensor in graph.inputs[: len(specs)]]
        self._held: dict[str, int] = {}
        for outer, inner in graph.captures:
            if id(outer) not in handles:
                raise ConfigurationError("Expected a model that reads no tensors or variables but its weights")
            self._held[inner.op.name] = handles[id(outer)]
        definition = graph.as_graph_def()
        if definition.library.function:
            raise ConfigurationError("Expected a model without loops and conditions")
        self._graph, self._result = with_builtin_gradients(_reading(definition, self._held)), graph.outputs[0].name
        self.output = tf.TensorSpec(graph.outputs[0].shape, graph.outputs[0].dtype)

    def __call__(self, *tensors: Any) -> Any:
        named = dict(zip(self._names, tensors, strict=True))
        named.update({f"{name}:0": tensors[place] for name, place in self._held.items()})
        read = {reference.split(":")[0] for node in self._graph.node for reference in node.input}
        used = {name: tensor for name, tensor in named.items() if name.split(":")[0] in read}
        (output,) = tf.graph_util.import_graph_def(self._graph, input_map=used, return_elements=[self._result], name="")
        return output


@contextmanager
def _inlined() -> Iterator[None]:
    """Functions that are called within become operations of the graph that is traced."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _reading(graph: Any, held: dict[str, int]) -> Any:
    """The graph with tensors in place of the variables whose handles have these names."""
    for node in graph.node:
        if node.name in held:
            node.attr["dtype"].type = tf.float32.as_datatype_enum
            node.attr.pop("shape", None)
            continue
        if not any(reference.split(":")[0] in held for reference in node.input):
            continue
        if node.op == "ReadVariableOp":
            node.op = "Identity"
            node.attr.clear()
            node.attr["T"].type = tf.float32.as_datatype_enum
        elif node.op == "ResourceGather" and not node.attr["batch_dims"].i:
            indices = node.attr["Tindices"].type
            node.op = "Gather"
            node.attr.clear()
            node.attr["Tparams"].type, node.attr["Tindices"].type = tf.float32.as_datatype_enum, indices
        else:
            raise ConfigurationError(f"Expected a model that reads its variables (it has {node.op!r} of one)")
    return graph


def _check_mean(traced: _Traced, output: Any, label: Any) -> None:
    """Raises ConfigurationError unless the loss of a batch is the mean of the losses of its examples."""
    generator = np.random.default_rng(1)
    predictions = tf.constant(generator.uniform(0.1, 0.9, output.shape).astype(np.float32))
    labels = tf.cast(tf.constant(generator.integers(0, 2, label.shape)), label.dtype)
    whole = float(traced.loss(predictions, labels))
    rows = range(output.shape[0])
    mean = float(np.mean([float(traced.loss(predictions[i : i + 1], labels[i : i + 1])) for i in rows]))
    if not abs(whole - mean) <= _MEAN_TOLERANCE * max(1.0, abs(mean)):
        raise ConfigurationError("Expected a loss that is the mean over the examples of a batch")


def _pair(spec: Any) -> tuple[Any, Any]:
    """(features, label) of an input_spec."""
    parts = tuple(spec.values()) if isinstance(spec, dict) else tuple(spec)
    if len(parts) != 2 or not isinstance(parts[1], tf.TensorSpec):
        raise ConfigurationError("Expected an input_spec of features and one label")
    return parts


def _fixed(spec: Any, batch: int) -> Any:
    shape = [batch, *spec.shape[1:]]
    if None in shape:
        raise ConfigurationError(f"Expected an input of known shape but for the batch (got {spec.shape})")
    return tf.TensorSpec(shape, spec.dtype)


def _carried(spec: Any) -> Any:
    return tf.TensorSpec(spec.shape, tf.int32 if spec.dtype.is_integer else tf.float32)


def _example(name: str, spec: Any) -> TensorSpec:
    return TensorSpec(name, tuple(spec.shape[1:]), "int32" if spec.dtype.is_integer else "float32")

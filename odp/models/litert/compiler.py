"""A Keras model as a program for devices. Needs TensorFlow and Keras 3; only the developer's side imports this."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from odp.errors import ConfigurationError
from odp.models.litert.conversion import converted
from odp.models.litert.functions import Functions
from odp.models.litert.program import LOSS, PREDICTION, TARGET, Parameter, Program, TensorSpec
from odp.numerics.arrays import Float32Array

_IGNORED = "would have no effect: devices train with the given loss alone; leave it out"
# How a loss of a batch follows from those of its examples: their mean, as devices take it.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
# Examples of a call: whatever is random in training shows in one of them.
_BOTH_WAYS = 16
# The state of a layer that could draw random numbers; and what layers call the share of numbers that they drop.
_SEED = "seed_generator_state"
_DROPPED = ("rate", "dropout", "recurrent_dropout")
#: Characters of another package's message.
_SHOWN = 160

#: (targets [batch, ..], predictions [batch, ..]) -> a number per example [batch].
PerExample = Callable[[Any, Any], Any]


def compile_model(
    model: Any,
    *,
    loss: Any,
    metrics: Sequence[str] | Mapping[str, PerExample] = (),
    batch: int = 32,
    local: Sequence[str] = (),
    proximal: bool = False,
) -> tuple[Program, Functions]:
    """Compiles a model; the functions are those that the program computes.

    Args:
      model: a Keras model with inputs of known shapes. Layers that are not trainable become constants.
      loss: a Keras loss or its name.
      metrics: ``"accuracy"``, or functions by name.
      batch: examples per step.
      local: names of layers whose weights never leave a device.
      proximal: whether devices may train with a proximal term, which takes another copy of the weights.

    Raises:
      ConfigurationError: the model needs operations that LiteRT has not built in, which the message names; it has
        weights that a layer moves by other means than gradients, random layers, or inputs of unknown shape; a part of
        it would have no effect, as regularizers and constraints; or the program computes something else.
    """
    _check(model, local)
    features = tuple(_spec(f"x{place}", tensor) for place, tensor in enumerate(model.inputs))
    if len(model.outputs) != 1:
        raise ConfigurationError(f"Expected a model of one output (got {len(model.outputs)})")
    _require_one_behaviour(model)
    prediction = _spec(PREDICTION, model.outputs[0])
    lost = _Loss(loss)
    target = _target(lost, prediction)
    order = _ordered(model, local)
    parameters, offset = [], 0
    for variable, is_local in order:
        parameters.append(Parameter(variable.path, tuple(variable.shape), offset, is_local))
        offset += parameters[-1].size
    measured = _metrics(metrics, lost)
    program = Program(
        flatbuffer=b"",
        features=features,
        target=target,
        prediction=prediction,
        parameters=tuple(parameters),
        metrics=tuple(measured),
        batch=batch,
        classes=lost.classes(prediction),
        threshold=0.0 if lost.from_logits else 0.5,
        proximal=proximal,
    )
    functions = _functions(model, [variable for variable, _ in order], lost, measured)
    try:
        return converted(functions, program), functions
    except ConfigurationError:
        raise
    except Exception as error:  # layers, losses and metrics are the developer's own code
        raise ConfigurationError(
            "Expected a loss and metrics of a number per example, and weights that belong to layers; TensorFlow says: "
            + _said(error)
        ) from error


def initial_vector(model: Any, program: Program) -> Float32Array:
    """The present weights of the model as the program's vector, float32 [size]."""
    held = {variable.path: np.asarray(variable.value, dtype=np.float32) for variable in model.trainable_variables}
    return np.concatenate([held[parameter.name].reshape(-1) for parameter in program.parameters])


class _Loss:
    """A Keras loss or its name: ``of`` gives a number per example, or several."""

    def __init__(self, loss: Any) -> None:
        try:
            keras_loss = keras.losses.get(loss)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"Expected loss={loss!r} to be a Keras loss or its name; {_said(error)}") from None
        if not callable(keras_loss):
            raise ConfigurationError(f"Expected loss={loss!r} to be a Keras loss or its name")
        if getattr(keras_loss, "ignore_class", None) is not None:
            raise ConfigurationError("Expected no ignore_class of the loss: devices take the mean over all examples")
        if getattr(keras_loss, "reduction", _MEANS[0]) not in _MEANS:
            raise ConfigurationError(
                "Expected the mean over examples as reduction of the loss, as devices take it (got "
                f"{keras_loss.reduction})"
            )
        self.name = str(getattr(keras_loss, "name", None) or keras_loss.__name__)
        self.of: PerExample = getattr(keras_loss, "call", keras_loss)
        self.from_logits = bool(getattr(keras_loss, "from_logits", False))

    def classes(self, prediction: TensorSpec) -> int:
        """Of the target; 0 where it is a number, or a number per class."""
        if "sparse" in self.name:
            return prediction.shape[-1]
        return 2 if "binary" in self.name and prediction.size == 1 else 0


def _functions(model: Any, order: Sequence[Any], loss: _Loss, metrics: Mapping[str, PerExample]) -> Functions:
    """What the model computes, by the weights in the order of the vector."""
    constants = [np.asarray(variable.value) for variable in model.non_trainable_variables]
    places = [next(i for i, variable in enumerate(order) if variable is v) for v in model.trainable_variables]

    def predict(weights: Sequence[Any], x: Sequence[Any]) -> Any:
        inputs = list(x) if len(x) > 1 else x[0]
        outputs, _ = model.stateless_call([weights[place] for place in places], constants, inputs, training=False)
        return outputs[0] if isinstance(outputs, (list, tuple)) else outputs

    def evaluate(weights: Sequence[Any], x: Sequence[Any], targets: Any) -> dict[str, Any]:
        predictions = predict(weights, x)
        measured = {name: _per_example(measure(targets, predictions)) for name, measure in metrics.items()}
        return {LOSS: _per_example(loss.of(targets, predictions)), **measured}

    return Functions(predict, evaluate)


def _check(model: Any, local: Sequence[str]) -> None:
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ConfigurationError("Expected model to be a keras.Model with an Input")
    if not model.trainable_variables:
        raise ConfigurationError("Expected model to have weights to train")
    for layer in model._flatten_layers(recursive=True, include_self=False):
        if any(isinstance(share := getattr(layer, name, 0.0), float) and share > 0 for name in _DROPPED):
            raise ConfigurationError(f"Expected no layer that drops numbers at random, as {layer.name!r} does")
        state_paths = [
            state.path for state in getattr(layer, "_non_trainable_variables", ()) if _SEED not in state.path
        ]
        if layer.trainable and state_paths:
            raise ConfigurationError(
                f"Expected gradients to move all weights of layer {layer.name!r}, which keeps "
                f"{state_paths[0]!r} besides: "
                "freeze the layer (trainable=False), or take LayerNormalization for BatchNormalization"
            )
    for variable in model.trainable_variables:
        for what in ("regularizer", "constraint"):
            if getattr(variable, what, None) is not None:
                raise ConfigurationError(f"Expected no {what} of {variable.path!r}, which {_IGNORED}")
    names = [layer.name for layer in model.layers]
    for name in local:
        if name not in names:
            raise ConfigurationError(f"Expected local={name!r} to be a layer of the model: {', '.join(names)}")


def _require_one_behaviour(model: Any) -> None:
    """Raises ConfigurationError where the model computes something else in training, or masks what it predicts."""
    source = np.random.Generator(np.random.PCG64(0))
    inputs: Any = [
        source.random((_BOTH_WAYS, *tensor.shape[1:])) if "float" in str(tensor.dtype)
        else np.zeros((_BOTH_WAYS, *tensor.shape[1:]), dtype="int32")
        for tensor in model.inputs
    ]  # fmt: skip
    model_inputs = inputs if len(inputs) > 1 else inputs[0]
    try:
        predicted, trained = model(model_inputs, training=False), model(model_inputs, training=True)
    except Exception as error:  # layers raise their own kinds
        raise ConfigurationError(
            f"Expected a model that takes numbers, and several inputs as a list; it fails: {_said(error)}"
        ) from error
    if model.losses:
        raise ConfigurationError(f"Expected no losses that layers add, each of which {_IGNORED}")
    if getattr(predicted, "_keras_mask", None) is not None:
        raise ConfigurationError("Expected a prediction without a mask: the loss would count hidden places too")
    if not np.allclose(np.asarray(predicted), np.asarray(trained), rtol=1e-4, atol=1e-5, equal_nan=True):
        layers = [layer.name for layer in model._flatten_layers(include_self=False) if layer._call_has_training_arg]
        raise ConfigurationError(
            "Expected layers that do the same in training as in a prediction, as devices have one program for both; "
            f"of {', '.join(layers)} at least one does not"
        )


def _ordered(model: Any, local: Sequence[str]) -> list[tuple[Any, bool]]:
    """The weights in the order of the vector, and whether each is local."""
    ours = {id(variable) for layer in model.layers if layer.name in local for variable in layer.trainable_variables}
    return sorted(
        ((variable, id(variable) in ours) for variable in model.trainable_variables), key=lambda pair: pair[1]
    )


def _spec(name: str, tensor: Any) -> TensorSpec:
    _, *shape = tensor.shape
    if None in shape:
        raise ConfigurationError(f"Expected the shape of {tensor.name!r} to be known (got {tuple(tensor.shape)})")
    return TensorSpec(name, tuple(shape), "int32" if "int" in str(tensor.dtype) else "float32")


def _target(loss: _Loss, prediction: TensorSpec) -> TensorSpec:
    if "sparse" in loss.name:
        return TensorSpec(TARGET, prediction.shape[:-1], "int32")
    return TensorSpec(TARGET, prediction.shape)


def _metrics(metrics: Sequence[str] | Mapping[str, PerExample], loss: _Loss) -> dict[str, PerExample]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    by_name: dict[str, PerExample] = {}
    for name in metrics:
        if name != "accuracy":
            raise ConfigurationError(f"Expected metric {name!r} to be 'accuracy', or a function by that name")
        by_name[name] = _accuracy(loss)
    return by_name


def _accuracy(loss: _Loss) -> PerExample:
    def classes(targets: Any, predictions: Any) -> Any:
        return tf.equal(tf.cast(targets, tf.int32), tf.argmax(predictions, axis=-1, output_type=tf.int32))

    def hottest(targets: Any, predictions: Any) -> Any:
        return classes(tf.argmax(targets, axis=-1, output_type=tf.int32), predictions)

    def sides(targets: Any, predictions: Any) -> Any:
        return tf.equal(targets > 0.5, predictions > (0.0 if loss.from_logits else 0.5))

    by_loss = {
        "sparse_categorical_crossentropy": classes,
        "categorical_crossentropy": hottest,
        "binary_crossentropy": sides,
    }
    if loss.name not in by_loss:
        raise ConfigurationError(f"Expected no metric 'accuracy' with the loss {loss.name!r}")
    return by_loss[loss.name]


def _said(error: Exception) -> str:
    """The line of a message that says what is wrong: Keras writes colours, and first which layer or code it called."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        return lines[-1][:_SHOWN]
    said = next((line for line in lines if not line.startswith("Exception encountered")), type(error).__name__)
    return said[:_SHOWN]


def _per_example(numbers: Any) -> Any:
    numbers = tf.cast(numbers, tf.float32)
    if not numbers.shape.rank:
        raise ValueError("one number for the batch")
    return tf.reduce_mean(tf.reshape(numbers, [numbers.shape[0], -1]), axis=1)

"""Functions of weights and examples as a program for devices. Needs TensorFlow; only the developer's side imports this.

The program trains by itself: its signature ``train`` computes the loss, the gradient and a step of gradient descent,
all in operations that LiteRT has built in. Weights are resource variables, which ``load`` and ``save`` exchange with
one vector.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from typing import Any

import tensorflow as tf

from odp.errors import ConfigurationError
from odp.models.litert.comparison import require_equal
from odp.models.litert.functions import Functions
from odp.models.litert.gradients import builtin_gradients
from odp.models.litert.inspection import check, without_initial_values
from odp.models.litert.program import LOADED, LOSS, PREDICTION, SIGNATURES, VECTOR, Program

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

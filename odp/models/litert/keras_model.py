"""A Keras network as the model of a federated training: compiled once, and trained by devices without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from odp import _validate
from odp._system.extras import require
from odp.errors import ConfigurationError
from odp.models.litert.compiled_model import CompiledModel
from odp.models.litert.program import MOST_BATCH, Program
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.models.litert.functions import Functions
    from odp.models.litert.trainer import Engine
    from odp.protocol.wire.model import ModelVersion
    from odp.v1 import common_pb2

_PARAMETERS = "parameters"
#: What a simulation trains with.
ENGINES = ("auto", "litert", "tensorflow")
# Multiplications of an example from which TensorFlow trains in less than about half of the time of LiteRT.
_MANY = 2**21


@_validate.strict_keywords
@dataclass(frozen=True, eq=False)
class KerasModel:
    """A Keras model and its loss. Needs TensorFlow, here alone: ``pip install 'odp-platform[keras]'``.

    It is compiled when it is made, which takes seconds: into one LiteRT program that computes loss, gradient and step
    by builtin operations. The weights that it has then are those that training begins with; they travel with the task.

    Attributes:
      model: a ``keras.Model`` of one output and inputs of known shapes. Layers that are not trainable stay as they are.
      loss: a Keras loss or its name. Classes go with a sparse crossentropy, or with a binary one for two.
      metrics: functions of targets and predictions [batch, ..] by name, each a number per example; ``odp.simulate``
        shows their means. The accuracy of classes is shown in any case.
      batch: most examples per step, at least the ``batch`` of the training; devices compute this many in every step.
      proximal: whether devices may train with a proximal term, which takes another copy of the weights.
      engine: what ``odp.simulate`` trains with: ``"litert"`` as devices do, ``"tensorflow"``, or ``"auto"`` for
        TensorFlow where an example takes at least 2^21 multiplications. Their numbers differ by rounding.
      local: layers, or their names, whose weights stay on the device. Every device finds its own in each round, as the
        ``reconstruction`` of the training says, beginning with those of the model.
      compiled: the program and the first weights, which can be saved, and need no TensorFlow.

    Raises:
      ConfigurationError: TensorFlow is missing, a number is out of range, an operation cannot be compiled (the message
        names it), or the program is too large for a task.
    """

    model: Any
    loss: Any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 10
    proximal: bool = False
    engine: str = "auto"
    local: Sequence[Any] = ()
    compiled: CompiledModel = field(init=False, repr=False)
    _functions: Functions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_BATCH, batch=self.batch)
        _validate.one_of(ENGINES, engine=self.engine)
        if not isinstance(self.metrics, Mapping):
            raise ConfigurationError(f"Expected metrics={self.metrics!r} to be functions by name")
        for name in self.metrics:
            _validate.identifier(metric=name)
            if name in ("loss", "accuracy"):
                raise ConfigurationError(f"Expected no metric {name!r}: it is always shown")
        require("tensorflow", "ai_edge_litert", to="compile a Keras model", extra="keras")
        from odp.models.litert.compiler import compile_model, initial_vector

        program, functions = compile_model(
            self.model, loss=self.loss, metrics=self.metrics, batch=self.batch, proximal=self.proximal,
            local=_names(self.local),
        )  # fmt: skip
        object.__setattr__(self, "compiled", CompiledModel(program, initial_vector(self.model, program)))
        object.__setattr__(self, "_functions", functions)

    @property
    def program(self) -> Program:
        """What the model was compiled into."""
        return self.compiled.program

    @property
    def size(self) -> int:
        """Number of weights that devices train together: those of local layers do not count."""
        return self.compiled.size

    @property
    def public_matrix(self) -> Float32Array:
        """The weights that training begins with, float32 [size, 1]; the definition names them by their hash.

        Those of local layers are in the definition itself.
        """
        return self.compiled.public_matrix

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        self.compiled.write(definition)

    def own_engine(self) -> Engine | None:
        """What a simulation trains this model with; None for LiteRT. The result is for one simulation at a time."""
        from odp.models.litert.work import multiplications

        if (
            self.engine == "litert"
            or self.program.has_local
            or (self.engine == "auto" and multiplications(self.program) < _MANY)
        ):
            return None
        from odp.models.litert.tensorflow_runner import TensorFlowRunner

        return TensorFlowRunner(self._functions, self.program)

    def load(self, version: ModelVersion) -> None:
        """Gives the Keras model the weights of a trained version, as ``odp.simulate(..).model`` is one.

        Local layers stay as they are: no version has weights of them.

        Raises:
          ConfigurationError: the version is of another model.
        """
        table = version.dense.get(_PARAMETERS)
        if table is None or table.shape != (self.size, 1):
            raise ConfigurationError(f"Expected a version with {self.size} parameters")
        local_zeros = np.zeros(self.program.size - self.size, dtype=np.float32)
        parts = self.program.split(np.concatenate([table[:, 0].astype(np.float32), local_zeros]))
        local = {parameter.name for parameter in self.program.parameters if parameter.local}
        for variable in self.model.trainable_variables:
            if variable.path not in local:
                variable.assign(parts[variable.path])


def _names(layers: Sequence[Any]) -> list[str]:
    """Of layers or of their names."""
    if isinstance(layers, str):
        raise ConfigurationError(f"Expected local={layers!r} to be a list of layers or of their names")
    return [layer if isinstance(layer, str) else str(getattr(layer, "name", layer)) for layer in layers]

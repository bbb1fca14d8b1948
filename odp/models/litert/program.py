"""A compiled network: its flatbuffer, and what goes into it and comes out.

=============  ==================================================  ==============================================
signature      inputs                                              outputs
=============  ==================================================  ==============================================
``load``       vector float32 [size]                               loaded float32 []
``save``                                                           vector float32 [size]
``train``      x0, x1, .., y, mask float32 [batch],                loss float32 []: the batch's mean, before the
               rate float32 [], with local parameters also         step
               local_rate float32 [], with a proximal term
               also proximal float32 []
``infer``      x0, x1, ..                                          prediction float32 [batch, ..]
``evaluate``   x0, x1, .., y                                       loss and each metric float32 [batch]
=============  ==================================================  ==============================================

A batch has a fixed size, so that every tensor's size is known before anything is allocated. A smaller batch is filled
up with copies of its first example, and ``mask`` is 0 for them: they move nothing. Local parameters have a step size of
their own, so that a device can train either kind of parameters while the other one stays. The proximal term is one of
the shared parameters alone.

Rows of examples, as the platform has them, as the arrays that a program takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array

#: Of any type: float32 or int32.
Array = npt.NDArray[Any]
#: Name -> (shape, dtype).
Tensors = dict[str, tuple[tuple[int, ...], str]]

MOST_PARAMETERS = 2**26
MOST_BATCH = 2**12
MOST_CLASSES = 2**16
MOST_TENSORS, MOST_DIMENSIONS, MOST_NUMBERS = 4096, 8, 2**26
#: Characters of a program's description, and of a name in it.
MOST_DESCRIPTION, MOST_NAME, MOST_METRICS = 2**20, 200, 64
DTYPES = ("float32", "int32")
SIGNATURES = ("evaluate", "infer", "load", "save", "train")
#: Names of the inputs of ``train`` besides the features.
TARGET, MASK, RATE, LOCAL_RATE, PROXIMAL, VECTOR = "y", "mask", "rate", "local_rate", "proximal", "vector"
LOSS, PREDICTION, LOADED = "loss", "prediction", "loaded"
#: The threshold of predictions that are logits; any other one is of probabilities.
LOGITS = 0.0


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of one example: ``shape`` without the batch; ``dtype`` is float32 or int32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name.lower())
        _validate.one_of(DTYPES, dtype=self.dtype)
        _checked_shape(self.name, self.shape)

    @property
    def size(self) -> int:
        """Numbers of one example."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Parameter:
    """A tensor of parameters: numbers ``offset`` .. ``offset + size - 1`` of the vector, row-major.

    A ``local`` one never leaves its device.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    local: bool = False

    def __post_init__(self) -> None:
        _checked_name("parameter", self.name)
        _checked_shape(self.name, self.shape)
        _validate.integer(low=0, high=MOST_PARAMETERS, offset=self.offset)

    @property
    def size(self) -> int:
        """Numbers of it."""
        return math.prod(self.shape)


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Program:
    """What a task definition says of a network.

    Attributes:
      flatbuffer: for LiteRT; of builtin operations only.
      features: inputs x0, x1, .. in their order.
      target: input y.
      prediction: what ``infer`` gives.
      parameters: in the order of the vector, without gaps; those that are local come last.
      metrics: names of what ``evaluate`` gives besides the loss.
      batch: examples per step.
      classes: of the target, which is then 0 .. classes - 1; 0 where it is a number.
      threshold: of two classes and one prediction, the second is predicted above it: 0 where predictions are logits,
        0.5 where they are probabilities. Predictions of more classes have the one of their kind, too.
      proximal: whether ``train`` takes the factor of a proximal term.

    Raises:
      ConfigurationError: a number is out of range, parameters leave gaps or share a name, or a name is no printable
        text of at most 200 characters.
    """

    flatbuffer: bytes = field(repr=False)
    features: tuple[TensorSpec, ...]
    target: TensorSpec
    prediction: TensorSpec
    parameters: tuple[Parameter, ...]
    metrics: tuple[str, ...]
    batch: int
    classes: int = 0
    threshold: float = 0.0
    proximal: bool = False

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_BATCH, batch=self.batch)
        _validate.integer(low=0, high=MOST_CLASSES, classes=self.classes)
        _validate.finite(threshold=self.threshold)
        for name, count in (("features", len(self.features)), ("parameters", len(self.parameters))):
            if not 1 <= count <= MOST_TENSORS:
                raise ConfigurationError(f"Expected 1 to {MOST_TENSORS} {name} (got {count})")
        if len({named.name for named in self.parameters}) < len(self.parameters):
            raise ConfigurationError("Expected every parameter to have a name of its own")
        if len(self.metrics) > MOST_METRICS or len({LOSS, *self.metrics}) <= len(self.metrics):
            raise ConfigurationError(
                f"Expected at most {MOST_METRICS} metrics, each with a name of its own that is not {LOSS!r}"
            )
        for name in self.metrics:
            _checked_name("metric", name)
        end = 0
        for parameter, following in zip(self.parameters, (*self.parameters[1:], None), strict=True):
            if parameter.offset != end:
                raise ConfigurationError(
                    f"Expected offset={parameter.offset} of parameter {parameter.name!r} to be {end}"
                )
            if parameter.local and following is not None and not following.local:
                raise ConfigurationError(
                    f"Expected the local parameter {parameter.name!r} to come after all shared ones"
                )
            end += parameter.size
        _validate.integer(low=1, high=MOST_PARAMETERS, size=end)
        if self.shared_size == 0:
            raise ConfigurationError("Expected a parameter that is not local: there would be nothing to train together")

    @property
    def size(self) -> int:
        """Numbers of the whole vector."""
        return self.parameters[-1].offset + self.parameters[-1].size

    @property
    def shared_size(self) -> int:
        """Numbers of it that devices train together: those before the local ones."""
        return sum(parameter.size for parameter in self.parameters if not parameter.local)

    @property
    def has_local(self) -> bool:
        """Whether some parameters never leave a device."""
        return self.parameters[-1].local

    def split(self, vector: Float32Array) -> dict[str, Float32Array]:
        """Views of a vector as named tensors. Raises ConfigurationError for another length."""
        if vector.shape != (self.size,):
            raise ConfigurationError(f"Expected a vector of {self.size} parameters (got {list(vector.shape)})")
        return {
            parameter.name: vector[parameter.offset : parameter.offset + parameter.size].reshape(parameter.shape)
            for parameter in self.parameters
        }

    def inputs(self, signature: str) -> Tensors:
        """What a signature takes."""
        x: Tensors = {f"x{place}": self._batched(spec) for place, spec in enumerate(self.features)}
        number: tuple[tuple[int, ...], str] = ((), "float32")
        by_signature: dict[str, Tensors] = {
            "load": {VECTOR: ((self.size,), "float32")},
            "save": {},
            "infer": x,
            "evaluate": {**x, TARGET: self._batched(self.target)},
            "train": {
                **x,
                TARGET: self._batched(self.target),
                MASK: ((self.batch,), "float32"),
                RATE: number,
                **({LOCAL_RATE: number} if self.has_local else {}),
                **({PROXIMAL: number} if self.proximal else {}),
            },
        }
        return by_signature[signature]

    def outputs(self, signature: str) -> Tensors:
        """What a signature gives."""
        by_signature: dict[str, Tensors] = {
            "load": {LOADED: ((), "float32")},
            "save": {VECTOR: ((self.size,), "float32")},
            "infer": {PREDICTION: self._batched(self.prediction)},
            "evaluate": dict.fromkeys((LOSS, *self.metrics), ((self.batch,), "float32")),
            "train": {LOSS: ((), "float32")},
        }
        return by_signature[signature]

    def to_json(self) -> str:
        """All but the flatbuffer."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "flatbuffer"}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, flatbuffer: bytes) -> Program:
        """The program that ``to_json`` describes. Raises ConfigurationError for anything else."""
        if len(text) > MOST_DESCRIPTION:
            raise ConfigurationError(
                f"Expected a description of a network of at most {MOST_DESCRIPTION} characters (got {len(text)})"
            )
        try:
            description = json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_doubles)
            if set(description) != {attribute.name for attribute in fields(cls)} - {"flatbuffer"}:
                raise ValueError
            values: Mapping[str, Any] = {
                **description,
                "features": tuple(_spec(spec) for spec in description["features"]),
                "target": _spec(description["target"]),
                "prediction": _spec(description["prediction"]),
                "parameters": tuple(
                    Parameter(
                        _typed(parameter["name"], str),
                        tuple(_typed(parameter["shape"], list)),
                        _typed(parameter["offset"], int),
                        _typed(parameter["local"], bool),
                    )
                    for parameter in _typed(description["parameters"], list)
                ),
                "metrics": tuple(_typed(name, str) for name in _typed(description["metrics"], list)),
                "proximal": _typed(description["proximal"], bool),
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigurationError("Expected the description of a compiled network") from None
        return cls(flatbuffer=flatbuffer, **values)

    def _batched(self, spec: TensorSpec) -> tuple[tuple[int, ...], str]:
        return (self.batch, *spec.shape), spec.dtype


def padded(rows: Array, batch: int) -> Array:
    """At least one row and at most ``batch``, filled up with copies of the first."""
    missing = batch - len(rows)
    return rows if not missing else np.concatenate([rows, np.repeat(rows[:1], missing, axis=0)])


def _spec(description: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(
        _typed(description["name"], str), tuple(_typed(description["shape"], list)), _typed(description["dtype"], str)
    )


_T = TypeVar("_T")


def _typed(value: Any, kind: type[_T]) -> _T:
    """``value``, of exactly this type: True is no whole number. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError
    return value


def _refuse(constant: str) -> float:
    """JSON has no NaN and no infinity."""
    raise ValueError(constant)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without a name that occurs twice: two readers would read two programs."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def _checked_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise ConfigurationError(
            f"Expected the name of a {what} to be printable text of 1 to {MOST_NAME} characters "
            f"(got {name[:40]!r}, {len(name)} characters)"
        )


def _checked_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) > MOST_DIMENSIONS:
        raise ConfigurationError(f"Expected {name!r} to have at most {MOST_DIMENSIONS} dimensions (got {len(shape)})")
    for extent in shape:
        _validate.integer(low=1, high=MOST_NUMBERS, extent=extent)
    if math.prod(shape) > MOST_NUMBERS:
        raise ConfigurationError(f"Expected {name!r} to have at most {MOST_NUMBERS} numbers")


def inputs_of(program: Program, features: npt.NDArray[np.generic]) -> list[Array]:
    """The arrays of the program's inputs, [n, ..] each, of rows [n, numbers of all inputs].

    An input of whole numbers gets the nearest ones.
    """
    arrays, begin = [], 0
    for spec in program.features:
        arrays.append(_as_dtype(features[:, begin : begin + spec.size].reshape(-1, *spec.shape), spec.dtype))
        begin += spec.size
    return arrays


def targets_of(program: Program, targets: Float32Array) -> Array:
    """The array of the program's target, [n, ..], of targets float32 [n]."""
    return _as_dtype(targets.reshape(-1, *program.target.shape), program.target.dtype)


def _as_dtype(values: npt.NDArray[Any], dtype: str) -> Array:
    return np.ascontiguousarray(np.rint(values) if dtype == "int32" else values, dtype=dtype)

"""Two Keras encoders as the model of a federated training: of a user and of an item, whose vectors meet in a score.

Devices train both encoders together. The item's encoder is the same for all: its vectors are published. The user's is
too, but what it makes of a person's own features is computed where these are, on the device, and stays there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp._system.extras import require
from odp.errors import ConfigurationError, DataError
from odp.models.litert.keras_model import KerasModel
from odp.numerics.arrays import Float32Array
from odp.v1 import common_pb2, federated_pb2

if TYPE_CHECKING:
    from odp.models.litert.program import Program
    from odp.protocol.wire.model import ModelVersion

_BLOCK = 2**12  # users or items at once


@_validate.strict_keywords
@dataclass(frozen=True, eq=False)
class TwoTower:
    """Two Keras encoders and the score of their vectors.

    It needs TensorFlow, here alone: ``pip install 'odp-platform[keras]'``.

    The examples of a task have the inputs of ``user``, in their order, and as the last feature the item's number.
    The models are compiled together when this is made, as an ``odp.KerasModel`` is.

    Attributes:
      user: a ``keras.Model`` of one or more inputs, whose output is a vector [batch, width].
      item: a ``keras.Model`` with one input [batch, 1], the number of an item, and a vector [batch, width] as output.
        What is known of items is a layer that is not trained, such as an ``Embedding`` of their features.
      items: how many there are; their numbers are 0 .. ``items`` - 1.
      loss: a Keras loss of the score, or its name: "mse" of ratings, ``BinaryCrossentropy(from_logits=True)`` of what
        a person chose.
      head: a ``keras.Model`` with the inputs user vector and item vector, and a score [batch, 1] as output; None for
        their dot product.
      negatives: items that a device draws uniformly among those that the person does not have, as examples of class 0,
        for each example of class 1.
      batch: most examples per step, negatives included, as in ``odp.KerasModel``.
      proximal: whether devices may train with a proximal term, which takes another copy of the weights.

    Raises:
      ConfigurationError: TensorFlow is missing, a number is out of range, the models do not fit together, or an
        operation cannot be compiled (the message names it).
    """

    user: Any
    item: Any
    items: int
    loss: Any
    head: Any = None
    negatives: int = 0
    batch: int = 10
    proximal: bool = False
    network: KerasModel = field(init=False, repr=False)
    _message: federated_pb2.TwoTowerModel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from odp.models.litert.trained_towers import MOST_ITEMS, MOST_NEGATIVES, TrainedTowers

        _validate.integer(low=2, high=MOST_ITEMS, items=self.items)
        _validate.integer(low=0, high=MOST_NEGATIVES, negatives=self.negatives)
        require("tensorflow", "keras", "ai_edge_litert", to="compile two towers", extra="keras")
        joined = _joined(self.user, self.item, self.head)
        network = KerasModel(joined, self.loss, batch=self.batch, proximal=self.proximal)
        definition = common_pb2.TaskDefinition()
        network.write(definition)
        message = federated_pb2.TwoTowerModel(
            network=definition.network, items=self.items, negatives=self.negatives
        )  # fmt: skip
        TrainedTowers.of(message)
        for name, value in (("network", network), ("_message", message)):
            object.__setattr__(self, name, value)

    @property
    def program(self) -> Program:
        """What the towers were compiled into."""
        return self.network.program

    @property
    def size(self) -> int:
        """Number of weights that are trained, both towers and the head together."""
        return self.network.size

    @property
    def public_matrix(self) -> Float32Array | None:
        """The weights that training begins with; the definition names them by their hash."""
        return self.network.public_matrix

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        definition.two_tower.CopyFrom(self._message)

    def load(self, version: ModelVersion) -> None:
        """Gives the Keras models the weights of a trained version, as ``odp.simulate(..).model`` is one.

        Raises:
          ConfigurationError: the version is of another model.
        """
        self.network.load(version)

    def item_vectors(self) -> Float32Array:
        """The vector of every item, float32 [items, width]: what is published for inference."""
        return np.concatenate([_called(self.item, [part]) for part in _parts(np.arange(self.items)[:, None])])

    def user_vectors(self, *features: npt.ArrayLike) -> Float32Array:
        """The vectors of users by the inputs of ``user``, [n, ..] each: float32 [n, width].

        Raises:
          DataError: there is not one array per input, or they differ in length.
        """
        arrays = [np.asarray(feature) for feature in features]
        if len(arrays) != len(self.user.inputs) or len({len(array) for array in arrays}) != 1:
            raise DataError(
                f"Expected {len(self.user.inputs)} arrays of as many users each, as the user tower has inputs"
            )
        return np.concatenate([_called(self.user, list(part)) for part in zip(*map(_parts, arrays), strict=True)])

    def scores(self, users: Float32Array, items: Float32Array) -> Float32Array:
        """The score of every pair of vectors, float32 [users, items], of users [.., width] and items [.., width]."""
        if self.head is None:
            return users @ items.T
        pairs = [
            _called(self.head, [np.repeat(vector[None], len(items), axis=0), items]).reshape(-1) for vector in users
        ]  # fmt: skip
        return np.stack(pairs) if pairs else np.zeros((0, len(items)), dtype=np.float32)


def _joined(user: Any, item: Any, head: Any) -> Any:
    """One Keras model of the inputs of both towers, the item last, whose output is the score [batch, 1]."""
    import keras

    for name, model in (("user", user), ("item", item), *(() if head is None else (("head", head),))):
        if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
            raise ConfigurationError(f"Expected {name} to be a keras.Model with an Input")
    if len(item.inputs) != 1 or tuple(item.inputs[0].shape) != (None, 1):
        raise ConfigurationError(
            f"Expected item to have one input of shape (1,), the item's number (got "
            f"{', '.join(str(tuple(model_input.shape)[1:]) for model_input in item.inputs)})"
        )
    widths = [tuple(model.outputs[0].shape) if len(model.outputs) == 1 else () for model in (user, item)]
    if any(len(shape) != 2 for shape in widths) or (head is None and widths[0] != widths[1]):
        raise ConfigurationError(
            f"Expected user and item to give a vector each, of one width for a dot product (got {widths[0][1:]} and "
            f"{widths[1][1:]})"
        )
    inputs = [
        keras.Input(model_input.shape[1:], dtype=model_input.dtype) for model_input in (*user.inputs, *item.inputs)
    ]
    vectors = [_output(user, inputs[:-1]), _output(item, inputs[-1:])]
    score = keras.layers.Dot(axes=1)(vectors) if head is None else _output(head, vectors)
    if tuple(score.shape) != (None, 1):
        raise ConfigurationError(f"Expected head to give a score of shape (1,) (got {tuple(score.shape)[1:]})")
    return keras.Model(inputs, score)


def _output(model: Any, inputs: list[Any]) -> Any:
    return model(inputs if len(inputs) > 1 else inputs[0])


def _parts(rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [rows[begin : begin + _BLOCK] for begin in range(0, max(1, len(rows)), _BLOCK)]


def _called(model: Any, inputs: list[npt.NDArray[Any]]) -> Float32Array:
    return cast("Float32Array", np.asarray(_output(model, inputs), dtype=np.float32))

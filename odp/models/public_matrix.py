"""The public matrix that a task definition names by its hash: it comes with the task, and stays with the server.

A factorization has its items' features so, and a network its first parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.models.item_features import item_features_from
from odp.models.trained import model_of
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.v1 import common_pb2


def public_matrix_from(definition: common_pb2.TaskDefinition, data: bytes) -> Float32Array | None:
    """The matrix of a task from its bytes; None where the definition names none.

    Raises:
      ConfigurationError: ``data`` is not the matrix that the definition names.
    """
    if definition.WhichOneof("trained_model") is None:
        return item_features_from(definition.model, data)
    return model_of(definition).public_matrix_from(data)

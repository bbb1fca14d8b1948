"""The closed table of algorithms: from the training of a task definition to its object, imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from odp.algorithms.seam import Algorithm, Recommender
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

#: Training -> its package, whose module ``algorithm`` has the class ``TaskAlgorithm``.
PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "dpam": "odp.algorithms.dpam",
        "implicit_dpam": "odp.algorithms.implicit",
        "statistics": "odp.algorithms.statistics",
    }
)


def training_of(definition: common_pb2.TaskDefinition) -> str | None:
    """The name of a definition's training in ``PACKAGES``; another name, or None, where there is no such algorithm.

    Signed definitions write ``implicit_dpam`` as ``dpam`` over implicit data. This is the one place that knows it.
    """
    training = definition.WhichOneof("training")
    implicit = training == "dpam" and definition.WhichOneof("local_data") == "implicit"
    return "implicit_dpam" if implicit else training


def algorithm_for(definition: common_pb2.TaskDefinition) -> Algorithm:
    """The algorithm of a task.

    Raises:
      ConfigurationError: the training is missing, or of an algorithm that this version does not know.
    """
    training = training_of(definition)
    if training is None or training not in PACKAGES:
        raise ConfigurationError(
            f"Expected training={training!r} of task {definition.name!r} to be one of {', '.join(PACKAGES)}"
        )
    algorithm: Algorithm = importlib.import_module(f"{PACKAGES[training]}.algorithm").TaskAlgorithm(definition)
    return algorithm


def recommender_for(definition: common_pb2.TaskDefinition) -> Recommender:
    """The algorithm of a task whose model scores items.

    Raises:
      ConfigurationError: as ``algorithm_for``, or the task has no such model.
    """
    algorithm = algorithm_for(definition)
    if not isinstance(algorithm, Recommender):
        raise ConfigurationError(
            f"task {definition.name!r} asks for {training_of(definition)}: it has no model to predict with"
        )
    return algorithm

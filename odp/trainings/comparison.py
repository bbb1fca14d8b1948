"""Two trainings of a living model as one ``odp.Evaluation``: which items devices test, and by which numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odp.algorithms.capabilities import TestedItems
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.models.rated_items import RatedItems
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.named import NamedCatalogue, named_in
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2


@dataclass(frozen=True)
class ReleasedTraining:
    """One side of a comparison: the number of the training, its task, and the keys of its items by their numbers."""

    number: int
    definition: common_pb2.TaskDefinition
    item_keys: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What devices test, and the two vectors that they test it by; ``of`` makes one."""

    model: RatedItems
    trainings: tuple[ReleasedTraining, ReleasedTraining]
    keys: tuple[str, ...]

    @classmethod
    def of(
        cls, first: ReleasedTraining, second: ReleasedTraining, *, data: Any, catalogue: Catalogue | None
    ) -> Comparison:
        """Of two trainings of one population.

        Args:
          first, second: the trainings.
          data: what devices train on now, as in a task.
          catalogue: the version that the next training is of, or None where devices know items by number.

        Raises:
          ConfigurationError: one of them is of no ratings, or of another range; items are known by number and differ;
            or the later catalogue version of the two was withdrawn, or is none of ``catalogue``.
        """
        rated = [_rated(training) for training in (first, second)]
        rank = max(rated_items.rank for rated_items in rated)
        named = [
            catalogue_name
            for catalogue_name in map(named_in, (first.definition, second.definition))
            if catalogue_name is not None
        ]
        if named:
            version = _version_of(catalogue, max(named, key=lambda named_catalogue: named_catalogue.version))
            items, keys = version.items, version.keys
        elif first.item_keys != second.item_keys:
            raise ConfigurationError(
                f"Expected trainings {first.number} and {second.number} to have the same items: devices know items by "
                "their numbers"
            )
        else:
            version, items, keys = None, rated[0].items, first.item_keys
        model, other = (replace(rated_items, items=items, rank=rank) for rated_items in rated)
        bounds = getattr(data, "low", None), getattr(data, "high", None)
        if model != other or bounds != (model.low, model.high):
            raise ConfigurationError(
                f"Expected trainings {first.number} and {second.number} to have one range and centre of ratings"
            )
        return cls(replace(model, catalogue=version), (first, second), keys)

    def vectors(self, first: ModelVersion, second: ModelVersion) -> tuple[Float32Array, Float32Array]:
        """What the two trainings released, by the numbers of ``model``: float32 [size] each.

        An item that a training did not have is predicted as one without ratings: by its person's mean.

        Raises ConfigurationError where a model is not that of its training.
        """
        first_vector, other = (
            self.model.parameters(version, self._places(training.item_keys))
            for version, training in zip((first, second), self.trainings, strict=True)
        )
        return first_vector, other

    def _places(self, item_keys: tuple[str, ...]) -> Int64Array:
        numbers = dict(zip(item_keys, range(len(item_keys)), strict=True))
        return np.array([numbers.get(key, -1) for key in self.keys], dtype=np.int64)


def _rated(training: ReleasedTraining) -> RatedItems:
    algorithm = algorithm_for(training.definition)
    if not isinstance(algorithm, TestedItems):
        raise ConfigurationError(f"Expected training {training.number} to be of ratings: devices test no other items")
    return algorithm.rated_items


def _version_of(catalogue: Catalogue | None, named: NamedCatalogue) -> Catalogue:
    if catalogue is None or catalogue.version < named.version or catalogue.hashes[named.version - 1] != named.sha256:
        raise ConfigurationError(
            f"Expected the catalogue file with version {named.version}, which task {named.task!r} names"
        )
    catalogue.require_usable(named.version)
    return catalogue.at(named.version)

"""Task definitions on implicit feedback, and data that fit them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from odp.algorithms.implicit.config import ImplicitDPAM
from odp.datasets.ratings import Ratings
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]


@pytest.fixture(scope="session")
def define_implicit() -> Define:
    """Builds a task definition; keywords that are none of its own go to the configuration."""

    def build(
        *, items: int = 30, rank: int = 2, places: int = 4, epsilon: float = 8.0, **config: object
    ) -> common_pb2.TaskDefinition:
        definition = common_pb2.TaskDefinition(name="events", population="people")
        definition.model.items, definition.model.rank = items, rank
        definition.implicit.table = "events"
        definition.privacy.epsilon, definition.privacy.delta = epsilon, 1e-6
        definition.privacy.max_items_per_user = places
        options = {"steps": 2} | config
        training = ImplicitDPAM(**options)  # type: ignore[arg-type]
        definition.dpam.CopyFrom(training.resolve(definition.model, definition.privacy))
        return definition

    return build


@pytest.fixture(scope="session")
def some_events() -> Callable[..., Ratings]:
    """Users with 0 to all items."""

    def build(*, users: int, items: int, seed: int) -> Ratings:
        generator = np.random.default_rng(seed)
        mask = generator.random((users, items)) < generator.choice([0.0, 0.05, 0.3, 1.0], users)[:, None]
        user, item = np.nonzero(mask)
        ones = np.ones(len(user))
        return Ratings.from_triples(
            "made", user, item, ones, low=0, high=1, n_users=users, n_items=items, implicit=True
        )

    return build


@pytest.fixture(scope="session")
def some_model() -> Callable[..., ModelVersion]:
    """A model with random rows; a third of the items is outside of the head."""

    def build(*, version: int, items: int, rank: int, seed: int) -> ModelVersion:
        generator = np.random.default_rng(seed)
        rows = generator.normal(size=(items, 1 + rank)).astype(np.float32)
        rows[:, 0] = generator.uniform(0.2, 1.0, items) * (generator.random(items) < 2 / 3)
        return ModelVersion(version, (TableValues("items", rows, True),))

    return build

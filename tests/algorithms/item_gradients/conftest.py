"""Task definitions on gradients of an item table, and data and models that fit them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from odp.algorithms.choices import define
from odp.algorithms.dpam.config import RatingsData
from odp.algorithms.dpsgd.config import DPSGD
from odp.algorithms.implicit.config import ImplicitData
from odp.datasets.ratings import Ratings
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2


@pytest.fixture(scope="session")
def define_gradients() -> Callable[..., common_pb2.TaskDefinition]:
    """Builds a task definition; keywords that are none of its own go to ``odp.DPSGD``."""

    def build(
        *,
        implicit: bool = False,
        items: int = 30,
        rank: int = 2,
        places: int = 4,
        slices: int = 0,
        epsilon: float = 8.0,
        **config: object,
    ) -> common_pb2.TaskDefinition:
        options: dict[str, object] = {"rounds": 3} | config
        definition = define(
            name="gradients",
            model=MatrixFactorization(items=items, rank=rank),
            data=ImplicitData() if implicit else RatingsData(low=1, high=5),
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6, max_items_per_user=places),
            training=DPSGD(**options),  # type: ignore[arg-type]
            cohort=Cohort(minimum=20, goal=100),
        )
        if slices:
            definition.item_gradients.slices_per_device = slices
        return definition

    return build


@pytest.fixture(scope="session")
def some_ratings() -> Callable[..., Ratings]:
    """Users with 0 to all items."""

    def build(*, users: int, items: int, seed: int, implicit: bool = False) -> Ratings:
        generator = np.random.default_rng(seed)
        mask = generator.random((users, items)) < generator.choice([0.0, 0.05, 0.3, 1.0], users)[:, None]
        user, item = np.nonzero(mask)
        values = generator.integers(1, 6, len(user)).astype(np.float64)
        return Ratings.from_triples(
            "made", user, item, values, low=1, high=5, n_users=users, n_items=items, implicit=implicit
        )

    return build


@pytest.fixture(scope="session")
def some_model() -> Callable[..., ModelVersion]:
    """A model with random rows; with ``spoiled``, a fifth of them as no honest server makes them."""

    def build(
        *, version: int, items: int, rank: int, seed: int, spoiled: bool = False, implicit: bool = False
    ) -> ModelVersion:
        generator = np.random.default_rng(seed)
        rows = generator.normal(size=(items, (2 if implicit else 3) + rank)).astype(np.float32)
        rows[:, 0 if implicit else 2] = 1.0
        if spoiled:
            rows[::5] *= np.float32(1e30)
            rows[1::10, 1] = np.nan
        dense = TableValues("globals", np.array([[0.8, 5.0]], dtype=np.float32), False)
        if implicit:
            dense = TableValues("root", generator.normal(size=(1 + rank, 1 + rank)).astype(np.float32), False)
        return ModelVersion(version, (TableValues("items", rows, True), dense))

    return build

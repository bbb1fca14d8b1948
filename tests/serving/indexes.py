"""Item indexes to test with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.models.item_files import IndexColumns
from odp.numerics.arrays import Float32Array
from odp.serving.index_file import made
from odp.serving.item_index import ItemIndex, ItemKeys, packed


def index_of(
    factors: Float32Array, biases: Float32Array, keys: Sequence[str] | None = None, *, version: int = 3
) -> ItemIndex:
    """An index without a task, for everything below the model."""
    columns = IndexColumns(factors, biases, np.linspace(0, 1, len(biases), dtype=np.float32))
    names = [f"Amélie {place}" for place in range(len(biases))] if keys is None else keys
    return made(
        ItemIndex(
            **packed(columns), keys=ItemKeys.of(names), task=b"a task", tables={"globals": np.ones((1, 2), np.float32)},
            facts={"task": "films"}, version=version, sha256="",
        )
    )  # fmt: skip


def random_index(items: int, rank: int, *, seed: int = 1, keys: Sequence[str] | None = None) -> ItemIndex:
    """An index of normal numbers."""
    generator = np.random.default_rng(seed)
    factors = generator.standard_normal((items, rank), dtype=np.float32)
    return index_of(factors, generator.standard_normal(items).astype(np.float32), keys)

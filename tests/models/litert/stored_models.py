"""The stored programs as what a developer writes: without TensorFlow, nobody can compile them."""

from __future__ import annotations

import numpy as np
from models.litert import compile_mlp, compile_towers

import odp
from odp.models.litert.program import Program
from odp.models.litert.two_tower import TwoTower
from odp.numerics.arrays import Float32Array
from odp.v1 import federated_pb2

DIGITS = odp.Examples({"x": odp.Tensor((compile_mlp.FEATURES,), -2.0, 2.0, scale=0.5)}, label="kind")
CHOICES = odp.Examples(
    {"about": odp.Tensor((compile_towers.FEATURES,), -2.0, 2.0), "item": odp.Tensor((1,), 0, compile_towers.ITEMS - 1)},
    label="chosen",
)


def vector(program: Program, *, seed: int = 4) -> Float32Array:
    """Parameters, float32 [size]."""
    return (np.random.default_rng(seed).normal(size=program.size) * 0.5).astype(np.float32)


def network(program: Program | None = None) -> odp.CompiledModel:
    """The model of a program, that of ``compile_mlp`` unless another is given."""
    program = program or compile_mlp.stored()
    return odp.CompiledModel(program, vector(program))


def towers(program: Program | None = None, *, items: int = compile_towers.ITEMS, negatives: int = 2) -> TwoTower:
    """Towers of a program, that of ``compile_towers`` unless another is given."""
    made, inner = object.__new__(TwoTower), network(program or compile_towers.stored())
    message = federated_pb2.TwoTowerModel(network=inner._message, items=items, negatives=negatives)
    for name, value in (("network", inner), ("_message", message), ("items", items), ("negatives", negatives)):
        object.__setattr__(made, name, value)
    return made


def readers(users: int, *, seed: int = 1) -> odp.data.UsersExamples:
    """Examples of ``DIGITS`` of ragged users, the first without any, with some that no model can use."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 9, users)
    counts[:3] = 0, 1, 5
    total = int(counts.sum())
    features = generator.normal(size=(total, compile_mlp.FEATURES)).astype(np.float32) * 2
    targets = generator.integers(0, compile_mlp.CLASSES, total).astype(np.float32)
    features[2, 1], targets[3], targets[4] = np.nan, np.nan, np.nan
    return odp.data.UsersExamples(features, targets, np.arange(total), np.concatenate(([0], np.cumsum(counts))))


def choosers(users: int, *, seed: int = 1) -> odp.data.UsersExamples:
    """Examples of ``CHOICES`` of ragged users, the first without any, with some that no model can use."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 9, users)
    counts[:3] = 0, 1, 5
    total = int(counts.sum())
    owner = np.repeat(np.arange(users), counts)
    about = generator.normal(size=(users, compile_towers.FEATURES))[owner]
    # Some of a person's numbers change from one choice to the next.
    about[::4, 0] += 0.5
    features = np.column_stack((about, generator.integers(0, compile_towers.ITEMS, total))).astype(np.float32)
    targets = (generator.random(total) < 0.7).astype(np.float32)
    features[2, -1], features[3, 0], targets[4] = 2.5, np.nan, np.nan
    return odp.data.UsersExamples(features, targets, np.arange(total), np.concatenate(([0], np.cumsum(counts))))

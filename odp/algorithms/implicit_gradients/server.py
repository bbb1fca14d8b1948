"""The server's half of gradients from implicit feedback: from noisy releases to the next model.

One factor is fixed: popularity, as the masses tell it. Where the noise drowns the gradients, the damping holds all
others near 0, and the ranking is that of popularity.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.factorization.preconditioned import ImplicitPreconditioner, chances, positive
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.implicit.terms import ITEMS_TABLE, Terms as ImplicitTerms
from odp.algorithms.implicit_gradients.terms import ROOT_TABLE, terms_of
from odp.algorithms.item_gradients.server import GradientServer, State
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import TableValues
from odp.v1 import common_pb2

_START_STD = 0.1


class ImplicitGradientServer(GradientServer[ImplicitTerms]):
    """``odp.algorithms.seam.Server`` of one task; values are popularity and factors.

    Raises:
      ConfigurationError: the definition is no valid task of this kind, or features are given.
    """

    def __init__(self, definition: common_pb2.TaskDefinition, item_features: Float32Array | None = None) -> None:
        terms = terms_of(definition)
        super().__init__(terms, terms.whole_width, item_features)

    def _tables(self, current: State) -> tuple[TableValues, ...]:
        """Keyed table "items" [m, 2 + rank]: share of users, popularity, factors. Dense table "root": R' R = V' V."""
        share = chances(current.mass, current.users)[:, None]
        rows = np.concatenate((share, current.values), axis=1).astype(np.float32)
        root = np.zeros((self._width, self._width))
        triangle = np.linalg.qr(rows[:, 1:].astype(np.float64), mode="r")
        root[: len(triangle)] = triangle
        return (
            TableValues(ITEMS_TABLE, rows, keyed=True),
            TableValues(ROOT_TABLE, root.astype(np.float32), keyed=False),
        )

    def _begun(self, mass: Float64Array, users: float) -> Float64Array:
        """The mean score of an item under the objective, and public random factors in proportion to it."""
        terms, chance = self._terms, chances(mass, users)[:, None]
        score = chance / (chance + terms.unobserved_weight)
        random = _START_STD * public_normals(terms.model.start_seed, (terms.model.items, terms.width))
        return np.concatenate((score, random * score), axis=1)

    def _stepped(self, current: State, tensors: Mapping[str, Float64Array], noise: float, rate: float) -> Float64Array:
        terms = self._terms
        preconditioner = ImplicitPreconditioner.of(
            current.mass,
            current.values[:, 0],
            users=current.users,
            rank=terms.width,
            clip=terms.clip,
            noise=noise,
            unobserved_weight=terms.unobserved_weight,
        )
        gramian = np.zeros((self._width, self._width))
        first, second = np.triu_indices(self._width)
        gramian[first, second] = gramian[second, first] = tensors["gramian"]
        factors = preconditioner.step(current.values, tensors["gradients"], positive(gramian), rate=rate)
        return np.concatenate((current.values[:, :1], factors), axis=1)

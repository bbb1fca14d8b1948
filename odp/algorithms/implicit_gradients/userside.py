"""What a device computes, for any number of devices at once: ``client.py`` runs it for one, ``population.py`` for all.

A device's row u is the best one for its own items: it minimises the sum over these of (1 - <u, v>)^2, plus
``unobserved_weight`` times the sum over all items of <u, v>^2, plus ``row_ridge`` |u|^2. R alone tells of all items.
The gradient of that loss with respect to the item table has two parts, errors times u at the device's own items, and
u u' for all items alike. Its weight is the largest that keeps both within their bounds.

Source: Hu, Koren, Volinsky 2008; Rendle et al. 2022 (arXiv 2110.14037) for the additive weight of unobserved pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from odp.algorithms.factorization.codec import shortened
from odp.algorithms.implicit.terms import FACTOR_COLUMNS, Terms as ImplicitTerms
from odp.algorithms.implicit_gradients.terms import POPULARITY_FACTOR, ROOT_TABLE
from odp.algorithms.item_gradients.codec import LIMIT, UNITS, Contributions
from odp.algorithms.item_gradients.terms import Terms
from odp.algorithms.item_gradients.userside import Entries, places
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

_LEAST = 1e-9
# Rows of items are within 2^8, and there are at most 2^24 of them.
_LARGEST_ROOT = 2.0**24


def common_part(terms: Terms[ImplicitTerms], dense: Mapping[str, Float32Array]) -> Float64Array:
    """What the systems of all users have in common, float64 [1 + rank, 1 + rank].

    Raises:
      ConfigurationError: the model's root is not finite, or huge.
    """
    root = np.asarray(dense[ROOT_TABLE], dtype=np.float64)
    if not (np.abs(root) <= _LARGEST_ROOT).all():
        raise ConfigurationError("the model cannot be trained on: Expected root of finite numbers within 2^24")
    return np.asarray(terms.unobserved_weight * (root.T @ root) + terms.row_ridge * np.eye(len(root)))


def solve(entries: Entries, common: Float64Array) -> Float64Array:
    """Each user's row float64 [users, 1 + rank]: 0 without items."""
    width = len(common)
    design = np.ones((len(entries.user), width + 1))
    design[:, :width] = entries.rows[:, FACTOR_COLUMNS:]
    squares = entries.squares(design)
    solution = np.linalg.solve(squares[:, :width, :width] + common, squares[:, :width, width:])
    return np.asarray(solution[:, :, 0], dtype=np.float64)


def scoring_rows(entries: Entries, common: Float64Array) -> Float64Array:
    """``solve``, and for users without items the row that scores popularity."""
    rows = solve(entries, common)
    rows[np.diff(entries.bounds) == 0, POPULARITY_FACTOR] = 1.0
    return rows


def contributions(
    terms: Terms[ImplicitTerms], entries: Entries, common: Float64Array
) -> tuple[Contributions, Float64Array]:
    """(what leaves the devices in a round of gradients; the row of each, which does not)."""
    users = solve(entries, common)
    error = 1.0 - np.einsum("ed,ed->e", users[entries.user], entries.rows[:, FACTOR_COLUMNS:])
    items, used, errors = places(terms, entries, error)
    factors = users[:, 1:]
    length = np.linalg.norm(factors, axis=1, keepdims=True)
    first = np.linalg.norm(errors, axis=1, keepdims=True) * length
    second = (users**2).sum(axis=1, keepdims=True)
    weight = np.minimum(terms.clip / np.maximum(first, _LEAST), terms.gramian_clip / np.maximum(second, _LEAST))
    targets = shortened(errors * weight * length * (UNITS / terms.clip), LIMIT)
    whole = shortened(users * np.sqrt(weight) * (UNITS / math.sqrt(terms.gramian_clip)), LIMIT)
    direction = shortened(factors / np.maximum(length, _LEAST) * UNITS, LIMIT)
    return Contributions(direction, items, used, targets, whole), users


def shares(entries: Entries, common: Float64Array, rows: Float64Array) -> Float64Array:
    """What each item of the one user in ``entries`` adds to its scores of item rows [k, width], float64 [k, L]."""
    factors = entries.rows[:, FACTOR_COLUMNS:]
    normal = factors.T @ factors + common
    return np.asarray(rows[:, FACTOR_COLUMNS:] @ np.linalg.solve(normal, factors.T))

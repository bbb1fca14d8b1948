"""What the servers of both kinds of DPAM's steps do alike: read a release, write a model. Post-processing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from odp.algorithms.dpam import features
from odp.algorithms.dpam.query import query_of
from odp.algorithms.dpam.terms import GLOBALS_TABLE, ITEMS_TABLE, Terms
from odp.algorithms.factorization.laid_out import tensors
from odp.algorithms.factorization.whole_vectors import whole_vector
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError
from odp.numerics import parallel
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.encoding import rounded
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

_LARGEST_HALF = 65504.0


@contextlib.contextmanager
def opened(
    release: NoisyTensors, terms: Terms, definition: common_pb2.TaskDefinition, *, round: int
) -> Iterator[NoisyTensors]:
    """The release of ``round``, the next one to run, as of an enclave that opens contributions.

    Raises ConfigurationError: it is of another round, or no model follows from numbers of that size.
    """
    if release.round != round or round >= terms.rounds:
        raise ConfigurationError(f"Expected round={release.round!r} to be {round}, of {terms.rounds} rounds")
    if (vector := whole_vector(query_of(terms, round), definition)) is not None:
        release = tensors(vector, release)
    # BLAS's own threads, once awake, would take processors from those of the blocks here and of the users' solves.
    with parallel.one_blas_thread():
        try:
            yield release
        except np.linalg.LinAlgError as error:
            raise ConfigurationError(
                f"Expected the release of round {round} to be sums that devices can have sent: its numbers are far "
                "larger, and no model follows from them; ask who runs the aggregator"
            ) from error


def tensor(release: NoisyTensors, name: str, shape: tuple[int, ...]) -> Float64Array:
    """A tensor of a release. Raises ConfigurationError: there is none of that shape."""
    values = release.tensors.get(name)
    if values is None or values.shape != shape:
        raise ConfigurationError(f"Expected release {name!r} of shape {list(shape)} in round {release.round}")
    return np.asarray(values, dtype=np.float64)


def version(terms: Terms, round: int, rows: Float64Array, dense: Float64Array) -> ModelVersion:
    """The model before ``round``: keyed table "items" [m, 3 + rank], dense table "globals" [1, g] of ``dense`` [g]."""
    values, encoding = rows.astype(np.float32), terms.items_encoding
    if encoding == "float16":
        # Counts beyond it weigh their items as it does; nothing else comes near.
        values = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF)
    items = TableValues(ITEMS_TABLE, rounded(values, encoding), keyed=True, encoding=encoding)
    return ModelVersion(round, (items, TableValues(GLOBALS_TABLE, dense[None].astype(np.float32), keyed=False)))


def feature_groups(terms: Terms, matrix: Float32Array | None, mass: Float64Array) -> list[Float64Array]:
    """Principal components of each group of the public features [m, p]. Raises ConfigurationError: they are missing."""
    widths = terms.item_feature_groups
    if not widths:
        return []
    if matrix is None:
        raise ConfigurationError("Expected item_features: the task definition names a matrix that was not given")
    return [features.components(part, mass) for part in np.split(matrix, np.cumsum(widths)[:-1], axis=1)]

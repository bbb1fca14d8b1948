"""A few numbers per picture that say where strokes run in which direction: a fixed layer, which knows no private data.

    gradients       two convolutions with derivatives of a Gaussian, 5 x 5
    directions      max(0, cos a gx + sin a gy) for 8 angles a
    places          means over squares of 8 x 8, 4 apart, and their roots
    brightness      minus the picture's mean, over its length
    whitening       (numbers - centre) @ projection, measured on invented strokes (``strokes``)

Every step reads one picture alone, so a device computes the same from its own pictures. A network whose only trained
layer is a softmax on these numbers *is* the multinomial model of them: the layers before it are constants. All steps
are operations that LiteRT has built in (convolution, maximum, average pool, root, matrix product).

Source: Dalal and Triggs 2005, "Histograms of oriented gradients for human detection".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import DataError
from odp.numerics.arrays import Float32Array
from odp.research.reproductions.strokes import SIDE, strokes

ANGLES, POOL, STRIDE = 8, 8, 4
#: Added below roots: where nothing is drawn, a root would make much of rounding errors.
LEAST_MEAN, LEAST_SQUARE = 1e-5, 1e-6
_REACH, _DEVIATION = 2, 1.0
_PLACES = (SIDE - POOL) // STRIDE + 1
#: Numbers of a picture before the whitening.
RAW = _PLACES * _PLACES * ANGLES
_PICTURES, _SEED, _FLOOR = 3000, 1, 0.02
#: Of either sign, of a number of the projection: few enough for the network to fit in a task.
_LEVELS = 16
_BLOCK = 256  # pictures whose gradients stay in the processor's cache


@dataclass(frozen=True, eq=False)
class GradientFeatures:
    """The layer; ``centre`` float32 [RAW] and ``projection`` float32 [RAW, count] are its whitening."""

    centre: Float32Array
    projection: Float32Array

    @classmethod
    def whitened(cls, count: int) -> GradientFeatures:
        """The layer that gives ``count`` numbers, of mean 0 and variance near 1 on invented strokes.

        Raises:
          ConfigurationError: ``count`` is none from 1 to ``RAW``.
        """
        _validate.integer(count=count, low=1, high=RAW)
        centre, values, vectors = _invented()
        exact = vectors[:, :count] / np.sqrt(values[:count] + _FLOOR * values.mean())
        steps = 2.0 ** np.ceil(np.log2(np.abs(exact).max(axis=0) / _LEVELS))
        return cls(centre.astype(np.float32), (np.rint(exact / steps) * steps).astype(np.float32))

    @property
    def count(self) -> int:
        """Numbers of a picture."""
        return int(self.projection.shape[1])

    def of(self, pictures: npt.NDArray[np.uint8]) -> Float32Array:
        """The numbers of pictures uint8 [n, 28, 28], float32 [n, count].

        Raises:
          DataError: pictures of another type or shape.
        """
        features = np.empty((len(pictures), self.count), dtype=np.float32)
        for first in range(0, len(pictures), _BLOCK):
            features[first : first + _BLOCK] = (_raw(pictures[first : first + _BLOCK]) - self.centre) @ self.projection
        return features


def kernels() -> tuple[Float32Array, Float32Array]:
    """Smoothing and derivative of one direction, float32 [5] each: their outer products are the two convolutions."""
    at = np.arange(-_REACH, _REACH + 1)
    smooth = np.exp(-np.square(at) / (2.0 * _DEVIATION**2))
    smooth /= smooth.sum()
    slope = -at * smooth
    return smooth.astype(np.float32), (slope / np.abs(at * slope).sum()).astype(np.float32)


def angles() -> Float32Array:
    """Weights of the gradient in x and in y for each direction, float32 [2, ANGLES]."""
    directions = 2.0 * np.pi * np.arange(ANGLES) / ANGLES
    return np.stack([np.cos(directions), np.sin(directions)]).astype(np.float32)


def _raw(pictures: npt.NDArray[np.uint8]) -> Float32Array:
    """The numbers before the whitening, float32 [n, RAW]: by place, then by direction."""
    if pictures.dtype != np.uint8 or pictures.shape[1:] != (SIDE, SIDE):
        raise DataError(f"Expected pictures uint8 [n, {SIDE}, {SIDE}] (got {pictures.dtype} {list(pictures.shape)})")
    smooth, slope = map(_banded, kernels())
    pool = _pooling()
    bright = pictures.astype(np.float32) / np.float32(255.0)
    along_x, along_y = smooth @ (bright @ slope.T), slope @ (bright @ smooth.T)
    pooled = [
        pool @ np.maximum(x * along_x + y * along_y, np.float32(0.0)) @ pool.T
        for x, y in angles().T
    ]  # fmt: skip
    features = np.sqrt(np.stack(pooled, axis=-1) + np.float32(LEAST_MEAN)).reshape(len(pictures), RAW)
    features -= features.mean(axis=1, keepdims=True)
    features /= np.sqrt(np.square(features).sum(axis=1, keepdims=True) + np.float32(LEAST_SQUARE))
    return features


def _banded(kernel: Float32Array) -> Float32Array:
    """The matrix [28, 28] that correlates a column with ``kernel``, zeros beyond the edge."""
    return np.asarray(
        sum(weight * np.eye(SIDE, k=place - _REACH, dtype=np.float32) for place, weight in enumerate(kernel))
    )


def _pooling() -> Float32Array:
    places = np.zeros((_PLACES, SIDE), dtype=np.float32)
    for place in range(_PLACES):
        places[place, place * STRIDE : place * STRIDE + POOL] = 1.0 / POOL
    return places


@functools.cache
def _invented() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean, and variances with their directions from the largest on, of the numbers of invented strokes."""
    numbers = _raw(strokes(_PICTURES, seed=_SEED)).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(numbers.T))
    # The sign of a direction is no matter of the library.
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(RAW)] < 0.0, -1.0, 1.0)
    return numbers.mean(axis=0), np.maximum(values[::-1], 0.0), (vectors * signs)[:, ::-1]

"""Invented pictures of pen strokes: public, so that what is measured on them costs no privacy.

A picture has one to three cubic Bézier curves, each from where the last one ended, scaled to 19 pixels and centred, as
written digits are. They show no character.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.numerics.arrays import Float32Array

SIDE = 28
_EXTENT, _NARROWEST, _MOST_CURVES, _POINTS, _BLOCK = 19.0, 0.6, 3, 16, 32
_THIN, _THICK = 0.8, 1.8  # half widths of a pen


def strokes(count: int, *, seed: int) -> npt.NDArray[np.uint8]:
    """Pictures uint8 [count, 28, 28], 0 (background) to 255: a function of ``count`` and ``seed``.

    Raises:
      ConfigurationError: ``count`` is below 1 or above a million.
    """
    _validate.integer(count=count, low=1, high=10**6)
    generator = np.random.Generator(np.random.PCG64(seed))
    pictures = np.empty((count, SIDE, SIDE), dtype=np.uint8)
    for first in range(0, count, _BLOCK):
        block = pictures[first : first + _BLOCK]
        block[:] = _draw_curves(generator, len(block))
    return pictures


def _draw_curves(generator: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    at = np.linspace(0.0, 1.0, _POINTS)
    weights = np.stack([(1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at**2 * (1 - at), at**3], axis=1)
    corners = generator.uniform(-1.0, 1.0, (count, _MOST_CURVES, 4, 2))
    corners[:, 1:, 0] = corners[:, :-1, 3]
    points = np.einsum("tc,nkcx->nktx", weights, corners)
    curves = generator.integers(1, _MOST_CURVES + 1, count)
    left_out = np.arange(_MOST_CURVES)[None, :] >= curves[:, None]
    points = np.where(left_out[:, :, None, None], points[:, :1, :1], points).reshape(count, -1, 2)
    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    points = (points - low) * (_EXTENT / np.maximum((high - low).max(axis=2, keepdims=True), 1e-6))
    points[:, :, 1] *= generator.uniform(_NARROWEST, 1.0, (count, 1))
    points += (SIDE - 1) / 2.0 - points.mean(axis=1, keepdims=True)
    nearest = _distances(points.astype(np.float32))
    ink = np.clip(generator.uniform(_THIN, _THICK, (count, 1)) + 0.5 - nearest, 0.0, 1.0)
    return np.rint(ink * 255.0).reshape(count, SIDE, SIDE).astype(np.uint8)


def _distances(points: Float32Array) -> Float32Array:
    """How far each pixel is from the nearest of ``points`` [n, points, 2]: float32 [n, pixels]."""
    pixels = np.indices((SIDE, SIDE)).reshape(2, -1).T.astype(np.float32)
    squares = np.square(points).sum(axis=2)[:, None] - np.float32(2.0) * (pixels @ points.transpose(0, 2, 1))
    return np.asarray(np.sqrt(np.maximum(squares.min(axis=2) + np.square(pixels).sum(axis=1), 0.0)))

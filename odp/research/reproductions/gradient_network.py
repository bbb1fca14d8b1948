"""The network of a softmax on ``odp.research.reproductions.gradient_features``, for devices that have pictures.

Import needs TensorFlow; nothing imports this module at the top.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from odp import _validate
from odp.research.reproductions.gradient_features import (
    LEAST_MEAN,
    LEAST_SQUARE,
    POOL,
    RAW,
    STRIDE,
    GradientFeatures,
    angles,
    kernels,
)
from odp.research.reproductions.strokes import SIDE


def gradient_network(layer: GradientFeatures, *, classes: int) -> Any:
    """A ``keras.Model`` of pictures float32 [n, 28, 28, 1] from 0 to 1; its last layer alone is trained.

    That layer begins at zero, as the multinomial model of the features does: it is the same training.

    Raises:
      ConfigurationError: ``classes`` is below 2.
    """
    _validate.integer(classes=classes, low=2, high=2**16)
    pictures = keras.Input((SIDE, SIDE, 1), name="picture")
    smooth, slope = kernels()
    gradients = np.stack([np.outer(smooth, slope), np.outer(slope, smooth)], axis=-1)[:, :, None]
    directed = _convolution(gradients)(pictures)
    directed = keras.ops.maximum(_convolution(angles()[None, None])(directed), 0.0)
    pooled = keras.layers.AveragePooling2D(POOL, strides=STRIDE)(directed)
    numbers = keras.layers.Reshape((RAW,))(keras.ops.sqrt(pooled + LEAST_MEAN))
    centred = numbers - keras.ops.mean(numbers, axis=1, keepdims=True)
    length = keras.ops.sqrt(keras.ops.sum(centred * centred, axis=1, keepdims=True) + LEAST_SQUARE)
    whitening = keras.layers.Dense(layer.count, trainable=False, name="whitened")
    whitened = whitening(centred / length)
    whitening.set_weights([layer.projection, -layer.centre @ layer.projection])
    trained = keras.layers.Dense(classes, activation="softmax", kernel_initializer="zeros", name="trained")
    return keras.Model(pictures, trained(whitened))


def _convolution(weights: np.ndarray[Any, Any]) -> Any:
    return keras.layers.Conv2D(
        weights.shape[-1], weights.shape[:2], padding="same", use_bias=False, trainable=False,
        kernel_initializer=keras.initializers.Constant(weights.astype(np.float32)),
    )  # fmt: skip

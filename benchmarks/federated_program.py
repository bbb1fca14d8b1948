"""The network 784-64-10 that devices train in ``benchmarks.federated_devices``, compiled beforehand.

``python -m benchmarks.federated_program`` compiles it anew, which needs TensorFlow; the benchmark needs LiteRT alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from odp.models.litert.compiled_model import CompiledModel
from odp.models.litert.keras_model import KerasModel
from odp.models.litert.program import Program

FEATURES, HIDDEN, CLASSES, BATCH = 784, 64, 10, 10
_FLATBUFFER, _DESCRIPTION = (Path(__file__).with_name(f"federated_program.{kind}") for kind in ("tflite", "json"))


def stored_network() -> CompiledModel:
    """The stored program with random first weights."""
    program = Program.from_json(_DESCRIPTION.read_text(), _FLATBUFFER.read_bytes())
    generator = np.random.Generator(np.random.PCG64(3))
    return CompiledModel(program, (generator.normal(size=program.size) * 0.05).astype(np.float32))


def compiled() -> Program:
    """The program, from Keras."""
    import keras

    layers = keras.layers
    network = keras.Sequential([
        keras.Input((FEATURES,)), layers.Dense(HIDDEN, activation="relu"), layers.Dense(CLASSES),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return KerasModel(network, loss, batch=BATCH).program


if __name__ == "__main__":
    program = compiled()
    _FLATBUFFER.write_bytes(program.flatbuffer)
    _DESCRIPTION.write_text(program.to_json() + "\n")

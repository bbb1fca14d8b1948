"""Makes ``mlp.tflite`` and ``mlp.json``, the program that tests without TensorFlow run; with TensorFlow, run it again
after changes of the compiler: ``python tests/models/litert/compile_mlp.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odp.models.litert.program import Program

FOLDER = Path(__file__).parent
FEATURES, HIDDEN, CLASSES, BATCH = 6, 7, 5, 4


def model() -> Any:
    """A network of one hidden layer."""
    import keras

    layers = [keras.Input((FEATURES,)), keras.layers.Dense(HIDDEN, activation="relu"), keras.layers.Dense(CLASSES)]
    return keras.Sequential(layers)


def compiled() -> Program:
    """Its program."""
    import keras

    from odp.models.litert.compiler import compile_model

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program, _ = compile_model(model(), loss=loss, metrics=["accuracy"], batch=BATCH, proximal=True)
    return program


def stored() -> Program:
    """The program in the folder."""
    return Program.from_json((FOLDER / "mlp.json").read_text(), (FOLDER / "mlp.tflite").read_bytes())


if __name__ == "__main__":
    program = compiled()
    (FOLDER / "mlp.tflite").write_bytes(program.flatbuffer)
    (FOLDER / "mlp.json").write_text(program.to_json() + "\n")

"""Makes ``partly.tflite`` and ``partly.json``, a program whose last layer stays on the device; with TensorFlow, run it
again after changes of the compiler: ``python tests/models/litert/compile_partly.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odp.models.litert.program import Program

FOLDER = Path(__file__).parent
FEATURES, HIDDEN, CLASSES, BATCH = 6, 7, 3, 4
SHARED, LOCAL = (FEATURES + 1) * HIDDEN, (HIDDEN + 1) * CLASSES


def model() -> Any:
    """A network of one hidden layer and a head."""
    import keras

    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(HIDDEN, activation="relu")
    return keras.Sequential([keras.Input((FEATURES,)), hidden, keras.layers.Dense(CLASSES, name="head")])


def compiled() -> Program:
    """Its program."""
    import keras

    from odp.models.litert.compiler import compile_model

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program, _ = compile_model(model(), loss=loss, batch=BATCH, local=["head"], proximal=True)
    return program


def stored() -> Program:
    """The program in the folder."""
    return Program.from_json((FOLDER / "partly.json").read_text(), (FOLDER / "partly.tflite").read_bytes())


if __name__ == "__main__":
    program = compiled()
    (FOLDER / "partly.tflite").write_bytes(program.flatbuffer)
    (FOLDER / "partly.json").write_text(program.to_json() + "\n")

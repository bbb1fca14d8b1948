"""Makes ``towers.tflite`` and ``towers.json``, the towers that tests without TensorFlow run.

With TensorFlow, run it again after changes of the compiler: ``python tests/models/litert/compile_towers.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odp.models.litert.program import Program

FOLDER = Path(__file__).parent
ITEMS, WIDTH, FEATURES, BATCH = 12, 3, 4, 5


def encoders() -> tuple[Any, Any]:
    """A user's encoder of one layer, and an item's of one table."""
    import keras

    user = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(WIDTH, activation="tanh")])
    table = keras.layers.Embedding(ITEMS, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.5))
    return user, keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])


def towers(**changes: Any) -> Any:
    """An ``odp.TwoTower`` of them, whose devices draw two items for each example."""
    import keras

    from odp.models.litert.two_tower import TwoTower

    keras.utils.set_random_seed(2)  # some initial weights take more rounds than a test has
    user, item = encoders()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return TwoTower(
        **{"user": user, "item": item, "items": ITEMS, "loss": loss, "negatives": 2, "batch": BATCH} | changes
    )


def stored() -> Program:
    """The program in the folder."""
    return Program.from_json((FOLDER / "towers.json").read_text(), (FOLDER / "towers.tflite").read_bytes())


if __name__ == "__main__":
    program = towers().program
    (FOLDER / "towers.tflite").write_bytes(program.flatbuffer)
    (FOLDER / "towers.json").write_text(program.to_json() + "\n")

"""The recorded combinations: definitions, and the payload of one device for each of their rounds, as bytes.

Run as a program it makes them anew: after a combination came, and not because an enclave takes the old ones no more.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from combinations import sampled, unsampled
from odp.algorithms.registry import algorithm_for, training_of
from odp.algorithms.seam import LocalRows, NoisyTensors
from odp.protocol.aggregation import mode_of
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

FILE = Path(__file__).with_name("recorded.zip")
_POPULATIONS = 6
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Recorded(NamedTuple):
    """A combination: its definition without the developer's key, and one payload for each round that takes any."""

    name: str
    definition: common_pb2.TaskDefinition
    payloads: tuple[bytes, ...]


def recorded() -> list[Recorded]:
    """All of the file."""
    combinations = []
    with zipfile.ZipFile(FILE) as archive:
        names = archive.namelist()
        for folder in dict.fromkeys(name.partition("/")[0] for name in names):
            definition = common_pb2.TaskDefinition.FromString(archive.read(f"{folder}/definition"))
            payloads = sorted(name for name in names if name.startswith(f"{folder}/round-"))
            combinations.append(Recorded(folder, definition, tuple(map(archive.read, payloads))))
    return combinations


def made() -> list[Recorded]:
    """The same of today's code."""
    combinations = []
    for number, definition in enumerate((*unsampled(), *sampled(unsampled()))):
        copy = common_pb2.TaskDefinition()
        copy.CopyFrom(definition)
        # Several share a ledger, which then has to account for charges of different kinds together.
        copy.population = f"recorded-{number % _POPULATIONS}"
        kind = "-".join(filter(None, (training_of(copy), mode_of(copy.cohort).name)))
        combinations.append(Recorded(f"{number:03}-{kind}", copy, tuple(payloads_of(copy))))
    return combinations


def payloads_of(definition: common_pb2.TaskDefinition) -> list[bytes]:
    """What a device with three ratings contributes to each round, where what was released before is zeros."""
    algorithm = algorithm_for(definition)
    server = algorithm.server(item_features=blank_matrix(definition))
    state, payloads = server.start(), []
    for number in range(len(algorithm.planned_releases())):
        broadcast = server.broadcast(state)
        items = np.arange(3)
        rows = next((table.rows[items] for table in broadcast.tables if table.keyed), np.zeros((0, 0), np.float32))
        slices = Slices(number, items if len(rows) else items[:0], rows, broadcast.dense)
        data = algorithm.data_of(LocalRows(items, np.ones(3)))
        payloads.append(algorithm.client().contribute(slices, data, round=number, seed=1)[0])
        zeros = {release.name: np.zeros(release.shape) for release in algorithm.query(number).releases}
        state = server.step(state, NoisyTensors(number, zeros, 1))
    return payloads


def blank_matrix(definition: common_pb2.TaskDefinition) -> np.ndarray | None:
    """Parameters that a task names by their hash, where it does."""
    algorithm = algorithm_for(definition)
    if not definition.HasField("model_evaluation"):
        return None
    terms = algorithm.terms()
    return np.zeros((len(terms.tables), terms.model.size), np.float32)


def write(combinations: list[Recorded]) -> None:
    """Writes the file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, definition, payloads in combinations:
            files = {"definition": definition.SerializeToString(deterministic=True)}
            files |= {f"round-{number:03}": payload for number, payload in enumerate(payloads)}
            for file, data in files.items():
                archive.writestr(zipfile.ZipInfo(f"{name}/{file}", _EPOCH), data, zipfile.ZIP_DEFLATED)
    FILE.write_bytes(packed.getvalue())


if __name__ == "__main__":
    write(made())

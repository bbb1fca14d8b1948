"""Bits per number of an upload: accuracy of a federated training against bytes, and the time that few bits take.

Multinomial regression 200 -> 10 of 1,000 simulated users with 30 examples each, all in every round, 20 rounds at
epsilon 4 and delta 1e-4. The examples are synthetic: uniform features, and the largest of ten noisy linear scores as
their class. Each setting is trained with the same three seeds.

``python -m benchmarks.uploads`` prints the table of docs/federated.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import odp
from benchmarks.harness import Figure, progress
from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.rotated import RotatedGrid
from odp.algorithms.dense.uploads import upload_of
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.privacy.events import GaussianRelease

_FEATURES, _CLASSES, _USERS, _HELD, _TEST = 200, 10, 1_000, 30, 5_000
_BITS = (32, 16, 12, 10, 8)
_SEEDS = (1, 2, 3)
_LONG = 2**20 + 1


@dataclass(frozen=True)
class Row:
    """A setting of ``upload_bits``: bytes of a payload, noise on the sum beside that of 32 bits, test accuracies."""

    bits: int
    payload_bytes: int
    noise: float
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Their mean."""
        return float(np.mean(self.accuracies))


def run(quick: bool) -> list[Figure]:
    """Accuracy and bytes of every setting, and the processor time of one long upload."""
    rows = trained(_SEEDS[:1] if quick else _SEEDS, users=300 if quick else _USERS, rounds=5 if quick else 20)
    figures = []
    for row in rows:
        figures.append(Figure(f"{row.bits} bits: upload", row.payload_bytes, "bytes"))
        figures.append(Figure(f"{row.bits} bits: noise, share of 32 bits", row.noise, "", "<= 1.05"))
        figures.append(Figure(f"{row.bits} bits: test accuracy", row.accuracy, ""))
    lost = rows[0].accuracy - min(row.accuracy for row in rows)
    figures.append(Figure("accuracy that few bits lose", lost, "", None if quick else "<= 0.02"))
    for name, seconds, plain in _long_upload(3 if quick else 10):
        figures.append(Figure(f"{name}, a million numbers", seconds / plain, "times 32 bits"))
    return figures


def trained(seeds: tuple[int, ...], *, users: int = _USERS, rounds: int = 20) -> list[Row]:
    """A row per number of bits, 32 first."""
    people, rows = _people(users), []
    for bits in _BITS:
        task = odp.Task(
            name="uploads",
            model=odp.Glm("multinomial", _FEATURES, _CLASSES),
            data=odp.Examples({"x": odp.Tensor((_FEATURES,), -1.0, 1.0)}, label="kind"),
            privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
            training=odp.DPFedAvg(
                rounds=rounds, rate=0.5, clip=1.0, server_momentum=0.5, upload_bits=None if bits == 32 else bits
            ),
            cohort=odp.Cohort(minimum=100, goal=users),
        )
        query = algorithm_for(task.definition()).query(0)
        accuracies = tuple(odp.simulate(task, people, seed=seed).metrics["test_accuracy"] for seed in seeds)
        (charge,) = charges_of(query)
        assert isinstance(charge, GaussianRelease)
        rows.append(Row(bits, query.payload_bytes, charge.noise_std, accuracies))
        progress(f"benchmarks: uploads: {bits} bits: accuracy {np.mean(accuracies):.4f}")
    noise = rows[0].noise
    return [Row(row.bits, row.payload_bytes, row.noise / noise, row.accuracies) for row in rows]


def markdown(rows: list[Row]) -> str:
    """The rows as a table of a page."""
    lines = [
        "| `upload_bits` | bytes of an upload | noise on the sum | test accuracy, mean of the seeds | least, largest |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        bits = "None (32)" if row.bits == 32 else str(row.bits)
        span = f"{min(row.accuracies):.3f}, {max(row.accuracies):.3f}"
        lines.append(f"| {bits} | {row.payload_bytes:,} | {row.noise:.4f} | {row.accuracy:.3f} | {span} |")
    return "\n".join(lines)


def _people(users: int) -> odp.data.ExamplesSplit:
    generator = np.random.Generator(np.random.PCG64(7))
    own = users * _HELD
    features = generator.uniform(-1.0, 1.0, (own + _TEST, _FEATURES)).astype(np.float32)
    truth = generator.normal(size=(_FEATURES, _CLASSES)).astype(np.float32)
    scores = features @ truth + generator.normal(size=(len(features), _CLASSES)).astype(np.float32)
    kinds = scores.argmax(axis=1)
    return odp.data.ExamplesSplit(
        train=odp.data.UsersExamples.of_users(features[:own], kinds[:own], np.arange(own) % users),
        test=odp.data.UsersExamples.of_users(features[own:], kinds[own:], np.zeros(_TEST, dtype=int)),
    )


def _long_upload(times: int) -> list[tuple[str, float, float]]:
    """(step, least processor seconds with 8 bits, with 32 bits) of one vector."""
    rows = np.random.Generator(np.random.PCG64(1)).normal(size=(1, _LONG)) * (0.5 / _LONG**0.5)
    seeds = np.zeros(1, dtype=np.uint64)
    measured = []
    for grid in (
        RotatedGrid(size=_LONG, clip=1.0, width=8, noise_multiplier=1.0, maximum=1_000),
        Grid.chosen(size=_LONG, clip=1.0, noise_std=1.0, maximum=1_000),
    ):
        upload = upload_of(grid, 0)
        query = upload.query("update")
        payload = upload.payload(upload.numbers(rows, seeds=seeds)[0])
        total = query.new_sum()
        least = [float("inf")] * 3
        for _ in range(times):
            begin = time.process_time()
            upload.payload(upload.numbers(rows, seeds=seeds)[0])
            made = time.process_time()
            query.check(payload)
            checked = time.process_time()
            total.add([payload])
            spent = (made - begin, checked - made, time.process_time() - checked)
            least = [min(pair) for pair in zip(least, spent, strict=True)]
        measured.append(least)
    return list(zip(("a device's part", "the enclave's check", "the enclave's sum"), *measured, strict=True))


if __name__ == "__main__":
    print(markdown(trained(_SEEDS)))

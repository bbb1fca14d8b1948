"""Updates of a simulated Draw and Discard server, beside numpy's noise for them and beside plain training in numpy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Figure, Limit
from odp.algorithms.draw_and_discard.simulation import EncodedUsers, Instances
from odp.numerics.arrays import Float32Array
from odp.research.reproductions import known_weights

_GOAL = 2_000_000  # updates per second
_BATCH = 256


def run(quick: bool) -> list[Figure]:
    """The model of 33 known weights, one row per report: without noise, and with it. One core, like both yardsticks."""
    rounds, reports = (5, 2**18) if quick else (9, 2**20)
    people = known_weights.rows(reports, seed=1)
    users = np.arange(reports)
    plain, private = (_server(epsilon) for epsilon in (math.inf, math.log(16)))
    generator = np.random.Generator(np.random.SFC64(1))  # the yardstick; nothing is released
    noise = np.empty((2**12, people.features.shape[1]), dtype=np.float32)
    plain.advance(people, users[:1])  # compiles
    private.advance(people, users[:1])
    ours, noisy, laplace, descent = [], [], [], []
    for _ in range(rounds):  # by turns, so that all see the same machine
        ours.append(_seconds(lambda: plain.advance(people, users)))
        noisy.append(_seconds(lambda: private.advance(people, users)))
        laplace.append(_seconds(lambda: _laplace(generator, noise, reports // len(noise))))
        descent.append(_seconds(lambda: _descent(people)))
    name = "Draw and Discard, 33 weights"
    rate = {key: reports / min(times) for key, times in
            {"plain": ours, "noisy": noisy, "laplace": laplace, "descent": descent}.items()}  # fmt: skip
    return [
        Figure(f"{name}, without noise", rate["plain"], "updates/s", f">= {_GOAL}",
               Limit(f"numpy descent, batches of {_BATCH}", rate["descent"])),
        Figure(f"{name}, epsilon log 16", rate["noisy"], "updates/s", f">= {_GOAL}",
               Limit("numpy, the same Laplace numbers alone", rate["laplace"])),
    ]  # fmt: skip


def _server(epsilon: float) -> Instances:
    noisy = math.isfinite(epsilon)
    return Instances(known_weights.task_of(epsilon=epsilon if noisy else 1.0).terms(noise=noisy))


def _laplace(generator: np.random.Generator, noise: Float32Array, blocks: int) -> None:
    """The fastest of numpy: an exponential of 32 bits with a random sign, in memory that stays in the cache."""
    signs = noise.view(np.uint32)
    for _ in range(blocks):
        generator.standard_exponential(dtype=np.float32, out=noise)
        words = generator.bit_generator.random_raw(noise.size // 2).view(np.uint32)
        signs |= words.reshape(noise.shape) & np.uint32(0x80000000)


def _descent(people: EncodedUsers) -> Float32Array:
    """One pass of stochastic gradient descent in batches: rows per second of a developer without privacy."""
    features, targets = people.features, people.targets
    weights = np.zeros(features.shape[1], dtype=np.float32)
    step = np.float32(known_weights.RATE)
    for begin in range(0, len(targets), _BATCH):
        x = features[begin : begin + _BATCH]
        residual = np.float32(1.0) / (np.float32(1.0) + np.exp(-(x @ weights))) - targets[begin : begin + _BATCH]
        weights -= step * (residual @ x)
    return weights


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started

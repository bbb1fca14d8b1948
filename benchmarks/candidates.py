"""What candidates find of the whole ranking, for how many bytes; and what float16 rows cost in accuracy.

A model is trained in the simulator. For users of its population, the ten best items of the whole model are compared
with those among the candidates that a device would fetch, its own items left out of both: the same computation as on a
device, without the network. Bytes are those of the rows; sealing and framing add less than 500.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

import odp
from benchmarks.harness import Figure, Limit, progress
from odp.algorithms.capabilities import Recommender, RecommenderClient
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.datasets import Ratings, Split, random_split
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.wire.encoding import Encoding
from odp.protocol.wire.model import Slices
from odp.research.simulation.engine import RunResult, simulate
from odp.research.simulation.presets import preset_task
from odp.signed.tables.candidates import STAMP, Candidates, candidate_tables, opened_buckets

BEST = 10
_BUCKETS = (1, 2, 4, 8, 16)
_MODEL = bytes(32)
_SEEDS = (1, 2, 3)


def run(quick: bool) -> list[Figure]:
    """Figures of a synthetic population with the shape of MovieLens-1M, smaller if ``quick``."""
    if quick:
        ratings = odp.data.synthetic_movielens(n_users=800, n_items=1000)
    else:
        ratings = odp.data.synthetic_movielens(n_users=6040, n_items=3706, ratings_per_user=165.0)
    return figures(ratings, users=100 if quick else 500, seeds=_SEEDS[:1] if quick else _SEEDS)


def figures(ratings: Ratings, *, users: int, seeds: tuple[int, ...]) -> list[Figure]:
    """Figures of any data set, on its first ``users`` users."""
    split = random_split(ratings, seed=1)
    result, found = accuracy(split, seeds)
    found += recalls(result, split.train, "epsilon 8", users=users)
    progress("training without noise")
    # Noise levels users' rows: without it they differ most, and candidates are hardest to choose.
    task = preset_task("auto", split.train, epsilon=math.inf, delta=1e-6)
    return found + recalls(simulate(task, split.train), split.train, "no noise", users=users)


def accuracy(split: Split, seeds: tuple[int, ...]) -> tuple[RunResult, list[Figure]]:
    """A model, and test RMSE in both encodings: the same seeds, the same noise."""
    task = preset_task("auto", split.train, epsilon=8.0, delta=1e-6)
    runs: dict[str, list[RunResult]] = {}
    encodings: tuple[Encoding, ...] = ("float32", "float16")
    for encoding in encodings:
        progress(f"training with item rows in {encoding}")
        changed = dataclasses.replace(task, training=_published_in(task.training, encoding))
        runs[encoding] = [simulate(changed, split, seed=seed) for seed in seeds]
    errors = {name: np.array([one.metrics["test_rmse"] for one in found]) for name, found in runs.items()}
    worst = float(np.abs(errors["float16"] - errors["float32"]).max())
    spread = float(errors["float32"].std()) if len(seeds) > 1 else None
    shown = [
        Figure(f"{split.train.name}: test RMSE, item rows in {name}", float(found.mean()), "")
        for name, found in errors.items()
    ]
    limit = None if spread is None else Limit("spread of the noise's seeds", spread)
    return runs["float32"][0], [
        *shown,
        Figure(f"{split.train.name}: largest difference of RMSE by float16, same seed", worst, "", None, limit),
    ]


def recalls(result: RunResult, history: Ratings, kind: str, *, users: int) -> list[Figure]:
    """Recall of the ten best items, and bytes, for several numbers of buckets."""
    items, width = result.model.keyed.rows.shape
    algorithm = recommender_for(result.task.definition())
    client = algorithm.client()
    everything = Slices(
        result.model.version, np.arange(items, dtype=np.int64), result.model.keyed.rows, result.model.dense
    )
    chosen = [user for user in range(min(users, history.n_users)) if history.counts()[user]]
    data = [_local(algorithm, history, user) for user in chosen]
    best = [_best(client, everything, one, np.arange(items, dtype=np.int64)) for one in data]
    whole = items * width * 4
    label = f"{history.name}, {kind}"
    found = [Figure(f"{label}: the whole model", whole, "B")]
    for buckets in _BUCKETS:
        made = candidate_tables("benchmark", result.model, _MODEL, buckets_per_request=buckets)
        hits = [
            len(np.intersect1d(_fetched(client, everything, one, made), ranked)) / len(ranked)
            for one, ranked in zip(data, best, strict=True)
        ]
        sent = buckets * made.buckets.rows.shape[1] * 4
        name = f"{label}: {buckets} of {len(made.buckets.rows)} buckets"
        found += [
            Figure(f"{name}, recall of the {BEST} best", float(np.mean(hits)), ""),
            Figure(f"{name}, bytes of buckets", sent, "B", None, Limit("the whole model", whole)),
        ]
    centroids = made.centroids.rows.nbytes
    own = result.task.definition().dpam.slices_per_device * width * 4
    return [
        *found,
        Figure(f"{label}: bytes of centroids, once per version", centroids, "B"),
        Figure(f"{label}: bytes of a device's own item rows", own, "B"),
    ]


def _published_in(training: object, encoding: Encoding) -> odp.DPAM:
    if not isinstance(training, odp.DPAM):
        raise ConfigurationError("Expected a data set of ratings: it is their training that has the option")
    return dataclasses.replace(training, items_encoding=encoding)


def _local(algorithm: Recommender, history: Ratings, user: int) -> LocalData:
    items, values = history.user(user)
    rows = LocalRows(np.asarray(items, dtype=np.int64), np.asarray(values, dtype=np.float64))
    return algorithm.data_of(rows)


def _best(client: RecommenderClient, slices: Slices, data: LocalData, items: Int64Array) -> Int64Array:
    new = np.setdiff1d(items, client.items(data))
    scores: Float64Array = client.predict(slices, data, new)
    return new[np.argsort(-scores, kind="stable")[:BEST]]


def _fetched(client: RecommenderClient, everything: Slices, data: LocalData, made: Candidates) -> Int64Array:
    """The best items of the buckets that a device would fetch."""
    items, width = everything.rows.shape
    numbers = items + np.arange(len(made.centroids.rows), dtype=np.int64)
    rows = np.concatenate([everything.rows, made.centroids.rows[:, STAMP:]])
    together = Slices(everything.version, np.concatenate([everything.keys, numbers]), rows, everything.dense)
    order = np.argsort(-client.predict(together, data, numbers), kind="stable")
    taken = order[: made.buckets.rows_per_request]
    candidates, _ = opened_buckets(made.buckets.rows[taken], width)
    return _best(client, everything, data, candidates)

"""What a device computes for one contribution at most, beside the cost model that fixes its time.

Every kind of task, with data that need the most: each row that the task may read is there, and usable. Measured is the
processor time from the store's first read to the checked payload; a network runs in this process, where the model
counts an isolated one. The model's units are those of a machine of the reference speed, and are scaled to this one by
``machine_speed``. Goals: the model is within a factor of 4 of what was measured, so that a safety factor of 4 covers
what it leaves out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import odp
from benchmarks.harness import Figure, Limit, progress
from device_runtime.round.examples import examples
from device_runtime.store.app_data import AppData
from device_runtime.store.database import Bounds
from device_runtime.store.labelled_examples import examples_of
from device_runtime.store.store import Store
from odp.algorithms.computing_time import SAFETY, machine_speed, worst_case_seconds
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import ProgramClient
from odp.models.litert.program import Program
from odp.models.litert.trained import network_message
from odp.models.litert.trainer import Measured
from odp.numerics.arrays import Float32Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

_REPEATS = 3
_BOUNDS = Bounds(file_bytes=2**31 - 1, examples=10**6, events=10**6)
_COHORT = odp.Cohort(minimum=100, goal=1000, round_seconds=600)
_PRIVACY = odp.UserLevelDP(epsilon=4.0, delta=1e-6)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_ITEMS = 2**13

Fill = Callable[[Store], None]


@dataclass(frozen=True)
class Case:
    """A task at its caps, and data that reach them; ``round`` is the most costly one."""

    name: str
    task: Any
    fill: Fill
    round: int = 0


def run(quick: bool) -> list[Figure]:
    """Model over measured, of each kind of task."""
    speed = machine_speed()
    figures = [Figure("speed of this machine: time of the reference computation", speed, "x")]
    for case in _cases(1 if quick else 4):
        progress(f"computing-time: {case.name}")
        measured, modelled = _measured(case), worst_case_seconds(case.task.definition()) * speed
        goal = f"<= {SAFETY:g}" if modelled > measured else f">= {1 / SAFETY:g}"
        limit = Limit("measured ms", measured * 1e3)
        figures.append(
            Figure(f"{case.name}: model over measured", modelled / measured, "x", None if quick else goal, limit)
        )
    return figures


def _measured(case: Case) -> float:
    """Seconds of processor time of one contribution, the best of a few."""
    definition = case.task.definition()
    algorithm = algorithm_for(definition)
    with tempfile.TemporaryDirectory() as folder, Store.open_or_create(Path(folder) / "0.sqlite") as store:
        case.fill(store)
        if isinstance(algorithm, LocalReporter):
            return min(_seconds(lambda: _report(algorithm, definition, store)) for _ in range(_REPEATS))
        client, query = algorithm.client(), algorithm.query(case.round)
        if isinstance(client, ProgramClient):
            client = client.run_by(_InThisProcess())
        slices = _slices(algorithm, case.round)

        def contribute() -> None:
            rows = examples(store, definition, now=1e9)
            if slices.keys.size:
                client.keys(rows, round=case.round, seed=7)
            query.check(client.contribute(slices, rows, round=case.round, seed=7)[0])

        return min(_seconds(contribute) for _ in range(_REPEATS))


class _InThisProcess:
    """``odp.models.litert.trainer.ProgramTrainer`` without walls, for a program of our own."""

    def require(self, program: Program, *, most_examples: int) -> None:
        """Accepts it."""

    def prepare(self, program: Program) -> None:
        """Needs nothing."""

    def difference(
        self, program: Program, start: Any, features: Any, targets: Any, batches: Any, **given: Any
    ) -> Float32Array:  # fmt: skip
        """As ``Runner.difference``."""
        from odp.models.litert.runner import Runner

        return Runner(program).difference(start, features, targets, batches, **given)

    def measured(self, program: Program, vector: Any, features: Any, targets: Any, *, items: int = 0) -> Measured:
        """As ``Runner.measured``."""
        from odp.models.litert.runner import Runner

        return Runner(program).measured(vector, features, targets, items=items)


class _Network:
    """A task of the stored program, 784-64-10."""

    def __init__(self, most: int) -> None:
        self._most = most

    def definition(self) -> common_pb2.TaskDefinition:
        """Five epochs."""
        folder = Path(__file__).parent
        flatbuffer = (folder / "federated_program.tflite").read_bytes()
        program = Program.from_json((folder / "federated_program.json").read_text(), flatbuffer)
        definition = common_pb2.TaskDefinition(name="t", population="t", privacy=_PRIVACY.to_proto(None))
        definition.cohort.CopyFrom(_COHORT.to_proto(1e-6))
        definition.network.CopyFrom(network_message(program, None))
        odp.Examples({"x": odp.Tensor(program.features[0].shape, 0, 1)}).write(definition)
        odp.DPFedAvg(rounds=2, most_examples=self._most, epochs=5).write(definition)
        return definition


def _report(algorithm: LocalReporter, definition: common_pb2.TaskDefinition, store: Store) -> None:
    drawn = (algorithm.first_rows() or [b""])[0]
    algorithm.report(drawn, examples(store, definition, now=1e9), source=RandomSource())


def _slices(algorithm: Any, round: int) -> Slices:
    """A model: its tables' numbers do not change the time."""
    generator = np.random.default_rng(1)
    keys, rows, dense = np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {}
    for table in algorithm.tables:
        values = generator.normal(size=(table.rows, table.width), scale=0.1).astype(np.float32)
        if table.keyed:
            keys = np.arange(algorithm.rows_per_request, dtype=np.int64)
            rows = np.abs(values[keys])
        else:
            dense[table.name] = np.abs(values) + np.float32(table.name in ("globals", "clip"))
    return Slices(round, keys, rows, dense)


def _seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def _cases(scale: int) -> Iterator[Case]:
    """``scale`` multiplies caps."""
    yield from _of_items()
    yield from _of_events(5000 * scale)
    yield from _of_examples(500 * scale)


def _of_items() -> Iterator[Case]:
    privacy = odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4096)
    for rank in (4, 64):
        yield Case(
            f"ratings, rank {rank}",
            odp.Task(
                name="t", model=odp.MatrixFactorization(items=_ITEMS, rank=rank), cohort=_COHORT, privacy=privacy,
                data=odp.RatingsData(low=1, high=5), training=odp.DPAM(steps=1, slices_per_device=_ITEMS),
            ),
            _ratings,
            round=2,
        )  # fmt: skip
    yield Case(
        "gradients of ratings, rank 64",
        odp.Task(
            name="t", model=odp.MatrixFactorization(items=_ITEMS, rank=64), cohort=_COHORT, privacy=privacy,
            data=odp.RatingsData(low=1, high=5), training=odp.DPSGD(rounds=2),
        ),
        _ratings,
        round=1,
    )  # fmt: skip
    # A device that masks lays out numbers of all items: many of which it has none, or few of which it has each.
    for mode, rank, items in (("enclave", 64, _ITEMS), ("masked", 64, _ITEMS), ("masked", 4, 2**20)):
        yield Case(
            f"gradient steps of ratings, rank {rank}, {items:,} items, aggregation={mode}",
            odp.Task(
                name="t", model=odp.MatrixFactorization(items=items, rank=rank), privacy=privacy,
                cohort=replace(_COHORT, aggregation=mode), data=odp.RatingsData(low=1, high=5),
                training=odp.DPAM(step="gradient", steps=2, slices_per_device=_ITEMS),
            ),
            _ratings,
            round=1,
        )  # fmt: skip
    model = odp.RatedItems(items=_ITEMS, rank=64)
    yield Case(
        "evaluation of ratings, rank 64",
        odp.Evaluation(
            name="t", model=model, data=odp.RatingsData(low=1, high=5), of=np.zeros(model.size, np.float32),
            cohort=_COHORT, privacy=_PRIVACY,
        ),
        _ratings,
    )  # fmt: skip
    yield Case(
        "quantiles", odp.Quantiles(name="t", low=0, high=6, bins=1000, cohort=_COHORT, privacy=_PRIVACY), _ratings
    )


def _of_events(most: int) -> Iterator[Case]:
    def fill(store: Store) -> None:
        _events(store, most)

    def read(item: str | Sequence[str], **given: Any) -> odp.Events:
        return odp.Events(service="music", type="play", item=item, most_events=most, **given)

    privacy = odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=2000)
    yield Case(
        "implicit feedback of events",
        odp.Task(
            name="t", model=odp.MatrixFactorization(items=most, rank=32), cohort=_COHORT, privacy=privacy,
            data=odp.ImplicitData(events=read("track")),
            training=odp.ImplicitDPAM(steps=1, slices_per_device=4000),
        ),
        fill,
        round=1,
    )  # fmt: skip
    yield Case(
        "gradients of implicit feedback of events",
        odp.Task(
            name="t", model=odp.MatrixFactorization(items=most, rank=32), cohort=_COHORT, privacy=privacy,
            data=odp.ImplicitData(events=read("track")), training=odp.DPSGD(rounds=2, clip=1.0),
        ),
        fill,
        round=1,
    )  # fmt: skip
    crossed = read(("track", "word", "seconds"), buckets=2**16, where=["seconds >= 0"] * 8)
    queries: dict[str, odp.Histogram | odp.Mean] = {
        "crosses": odp.Histogram(bins=2**16, events=crossed),
        "seconds": odp.Mean(low=0, high=1, events=read("track", value="seconds")),
    }
    yield Case(
        "statistics of events", odp.Statistics(name="t", queries=queries, cohort=_COHORT, privacy=_PRIVACY), fill
    )
    tracks = {"tracks": odp.Histogram(bins=64, events=read("track"))}
    for trust in ("shuffle", "local"):
        task = odp.Statistics(name="t", queries=tracks, trust=trust, cohort=_COHORT, privacy=_PRIVACY)
        yield Case(f"statistics of events, trust={trust}", task, fill)
    words = read("word")
    yield Case(
        "frequent words",
        odp.HeavyHitters(events=words, alphabet=_ALPHABET, length=12, prefixes=1000, name="t", cohort=_COHORT,
                         privacy=_PRIVACY),
        fill,
        round=4,
    )  # fmt: skip
    yield Case(
        "frequent words, trust=local",
        odp.HeavyHitters(
            events=words, alphabet=_ALPHABET, length=12, name="t", trust="local", cohort=_COHORT, privacy=_PRIVACY
        ),
        fill,
    )


def _of_examples(most: int) -> Iterator[Case]:
    shapes = (
        (10, 1, odp.DPFedAvg(rounds=2, most_examples=most)),
        (784, 10, odp.DPFedAvg(rounds=2, most_examples=most, batch=20)),
        (100, 10, odp.DPFedAvg(rounds=2, most_examples=most, epochs=10, batch=1, proximal=0.1)),
    )
    for features, classes, training in shapes:
        model = odp.Glm("logistic", features) if classes == 1 else odp.Glm("multinomial", features, classes)
        data = odp.Examples({"x": odp.Tensor((features,), 0, 1)})
        fill = _examples(features, max(classes, 2), 4 * most)
        name = f"{features} features, {classes} outputs"
        trained = _training(model, data, training)
        yield Case(f"federated averaging, {name}", trained, fill)
        counted = replace(trained, count_usable=odp.CountUsable(share=0.5))
        yield Case(f"count of usable rows, {name}", counted.usable_question(), fill)
        if classes == 10:
            zeros = np.zeros(model.size, np.float32)
            yield Case(
                f"evaluation, {name}",
                odp.Evaluation(
                    name="t", model=model, data=data, of=zeros, against=zeros, bins=10,
                    most_examples=most, cohort=_COHORT, privacy=_PRIVACY,
                ),
                fill,
            )  # fmt: skip
    wide = odp.Examples({"x": odp.Tensor((2**16,), 0, 1)})
    few = 8
    fill = _examples(2**16, 2, 32)
    model = odp.Glm("logistic", 2**16)
    trainings = {
        "DP-SGD": odp.DPSGD(rounds=2, most_examples=few),
        "DP-FTRL": odp.DPFTRL(rounds=2, bands=2, most_examples=few),
        "eight bits": odp.DPFedAvg(rounds=2, upload_bits=8, most_examples=few),
        "PrivateFL": odp.PrivateFL(rounds=2, participations=2, most_examples=few),
    }
    for name, chosen in trainings.items():
        yield Case(f"{name}, 65,536 parameters", _training(model, wide, chosen), fill)
    yield Case("a category of 2,000", *_categories(most))
    yield Case("a network, 784-64-10, in this process", _Network(most), _examples(784, 10, 4 * most))
    yield Case(
        "Draw and Discard, 1,000 inputs",
        odp.DrawAndDiscard(
            name="t", features={"x": odp.Number(size=1000)}, epsilon=2.0, instances=3, most_examples=most,
            family="logistic",
        ),
        _examples(1000, 2, most),
    )  # fmt: skip


def _training(model: Any, data: odp.Examples, training: Any) -> odp.Task:
    return odp.Task(name="t", model=model, data=data, cohort=_COHORT, privacy=_PRIVACY, training=training)


def _categories(most: int) -> tuple[odp.Task, Fill]:
    names = tuple(f"name{place}" for place in range(2000))

    def fill(store: Store) -> None:
        columns = {"x": np.array(names)[np.arange(4 * most) % len(names)], "label": np.arange(4 * most) % 2}
        _added(store, columns)

    data = odp.Examples({"x": odp.Category(names)})
    return _training(odp.Glm("logistic", len(names)), data, odp.DPFedAvg(rounds=2, most_examples=most)), fill


def _ratings(store: Store) -> None:
    values = np.random.default_rng(1).integers(1, 6, _ITEMS).astype(np.float64)
    store.fill(np.arange(_ITEMS), values, filled_from=b"benchmark")


def _events(store: Store, count: int) -> None:
    generator = np.random.default_rng(1)
    words = generator.choice(list(_ALPHABET), (count, 10))
    rows = [{"track": place, "seconds": place / count, "word": "".join(words[place])} for place in range(count)]
    AppData(store, "music", _BOUNDS).replace_events("play", rows, time=1.0)


def _examples(features: int, classes: int, count: int) -> Fill:
    def fill(store: Store) -> None:
        generator = np.random.default_rng(1)
        _added(store, {"x": generator.random((count, features)), "label": generator.integers(0, classes, count)})

    return fill


def _added(store: Store, columns: Mapping[str, np.ndarray]) -> None:
    examples_of(store, "examples", _BOUNDS).add(columns, time=1.0)

"""Tasks of every kind that a hostile developer signs to learn from the time of a device, and data that they look for.

A kind is a task and fills of stores. Its definitions go from the costliest to the cheapest: a trial takes the first one
that may be made at all and whose fixed time is short enough to wait for. So the same kinds attack a platform whatever
it accepts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import device_runtime
import odp
from device_runtime.round.examples import MadeExamples
from device_runtime.store.store import Store
from odp.errors import OdpError
from odp.v1 import common_pb2

#: What a device holds: writes it into an open store.
Fill = Callable[[Store], None]

ITEMS = 600
#: Rounds that no trial fills, so that none closes, and grows the log, while another task is tried.
COHORT: dict[str, Any] = {"minimum": 10_000, "goal": 10_000, "round_seconds": 3600}
SECRET, OTHER = "secret", "other"
#: Rows of a service that no task asks for.
UNRELATED = 100_000


def nothing(store: Store) -> None:
    """Of a device without data."""


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
      definitions: makers of the task, costliest first, each for a name of task and population.
      data: fills by name; "empty" is what all others are compared with.
      devices: that one host has, all but the first without data.
      polls: methods that a host calls until something is there, so that chance decides how often.
      fresh: each run is a process of its own, which imports and compiles what it needs.
      host: makes settings of ``Outside.observe``.
    """

    definitions: Sequence[Callable[[str], Any]]
    data: Mapping[str, Fill]
    devices: int = 1
    polls: tuple[str, ...] = ()
    fresh: bool = False
    host: Callable[[], Mapping[str, Any]] = dict

    def task(self, name: str, *, most_seconds: float, first: int = 0) -> Any:
        """The costliest task whose fixed time is at most ``most_seconds``, but for the ``first`` ones.

        Raises LookupError where there is none.
        """
        reasons = []
        for make in self.definitions[first:]:
            try:
                task = make(name)
                seconds = fixed_seconds(task.definition())
            except OdpError as error:
                reasons.append(str(error))
                continue
            if seconds <= most_seconds:
                return task
            reasons.append(f"{seconds:g} s")
        raise LookupError("; ".join(reasons))


def fixed_seconds(definition: common_pb2.TaskDefinition) -> float:
    """The fixed time of a task; 0 where the platform has none."""
    try:
        from odp.algorithms import computing_time
    except ImportError:
        return 0.0
    return float(computing_time.fixed_seconds(definition))


# Fills.


def examples(count: int, *, kind: str = SECRET, number: float = 1.0, inputs: int = 8, label: float = 1.0) -> Fill:
    """Labelled examples: a category, which a task may not know, and numbers."""

    def fill(store: Store) -> None:
        numbers = np.random.default_rng(1).normal(size=(count, inputs)).astype(np.float32)
        numbers[:, 0] = number
        store.examples("examples").add(
            {"kind": np.array([kind] * count), "x": numbers, "label": np.full(count, label, np.float32)}, time=1.7e9
        )

    return fill


def events(count: int, *, kind: str = SECRET, item: Any = None, service: str = "films", value: float = 4.0) -> Fill:
    """Events of a category, each of another item unless one is given."""

    def fill(store: Store) -> None:
        rows = [{"kind": kind, "film": number % ITEMS if item is None else item, "stars": value}
                for number in range(count)]  # fmt: skip
        store.data(service).replace_events("seen", rows, time=1.7e9)

    return fill


def huge_rows(store: Store) -> None:
    """Examples whose other columns are as large as a store allows."""
    rows = 14
    store.examples("examples").add(
        {"kind": np.array([SECRET] * rows), "x": np.ones((rows, 8), np.float32), "label": np.ones(rows, np.float32),
         "photo": np.zeros((rows, 2**22 - 200), np.uint8)},
        time=1.7e9,
    )  # fmt: skip


def many_layouts(store: Store) -> None:
    """Examples of which each has a column that no other one has."""
    row = {"kind": np.array([SECRET]), "x": np.ones((1, 8), np.float32), "label": np.ones(1, np.float32)}
    with store.transaction():
        for number in range(1000):
            store.examples("examples").add({**row, f"other{number}": np.zeros(1, np.float32)}, time=1.7e9)


def long_events(store: Store) -> None:
    """Events whose other columns are as large as a store allows."""
    row = {"kind": SECRET, "film": 7, "stars": 4.0, "note": "n" * 16_000}
    store.data("films").replace_events("seen", [row] * 3_500, time=1.7e9)


def ratings(count: int, *, value: float = 4.0, step: int = 1) -> Fill:
    """Ratings of the items from 0 on."""

    def fill(store: Store) -> None:
        items = np.arange(count, dtype=np.int64) * step
        store.fill(items, np.full(count, value), filled_from=hashlib.sha256(repr((count, value)).encode()).digest())

    return fill


EXAMPLES: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": examples(1),
    "caps full": examples(1000),
    "ten times the caps": examples(10_000),
    "none matches": examples(1000, kind=OTHER),
    "no numbers": examples(1000, number=float("nan")),
    "infinite": examples(1000, number=float("inf")),
    "tiny numbers": examples(1000, number=1e-42),
    "no class": examples(1000, label=77.0),
    "unrelated events": events(UNRELATED, service="others"),
    "huge rows": huge_rows,
    "many layouts": many_layouts,
}
EVENTS: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": events(1),
    "caps full": events(10_000),
    "ten times the caps": events(100_000),
    "one item": events(100_000, item=7),
    "none matches": events(100_000, kind=OTHER),
    "items of no model": events(10_000, item=2**40),
    "texts": events(10_000, item="text"),
    "huge values": events(10_000, value=1e308),
    "long events": long_events,
    "unrelated events": events(UNRELATED, service="others"),
}
WORDS: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": events(1, item="secret"),
    "caps full": events(10_000, item="secret"),
    "ten times the caps": events(100_000, item="secret"),
    "long texts": events(10_000, item="s" * 1000),
    "none matches": events(100_000, item=3),
    "unrelated events": events(UNRELATED, service="others"),
}
RATINGS: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": ratings(1),
    "caps full": ratings(300),
    "all items": ratings(ITEMS),
    "ten times the items": ratings(10 * ITEMS),
    "items of no model": ratings(100_000, step=7),
    "out of range": ratings(ITEMS, value=1e300),
    "unrelated events": events(UNRELATED, service="others"),
}


# Tasks.

CATEGORY = odp.Category((SECRET, "never"))
DATA = odp.Examples({"kind": CATEGORY, "x": odp.Tensor((8,), -2, 2)})
WIDE_DATA = odp.Examples({"x": odp.Tensor((8,), -2, 2)})
LOGISTIC = odp.Glm("logistic", features=10)
PRIVACY = odp.UserLevelDP(epsilon=1.0, delta=1e-6)
#: Epochs, and the most examples of a device.
WORK = ((1000, 1000), (300, 1000), (100, 1000), (30, 1000), (10, 1000), (3, 1000), (1, 1000), (1, 100), (1, 10))
EVENT_CAPS = (100_000, 50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 300, 100)


def trained(training: Callable[..., Any], *, model: Any = LOGISTIC, data: Any = DATA, **cohort: Any) -> Any:
    """Makers of trainings that ask for less and less work."""
    return [
        lambda name, epochs=epochs, most=most: odp.Task(
            name=name, model=model, data=data, privacy=PRIVACY, cohort=odp.Cohort(**{**COHORT, **cohort}),
            training=training(epochs=epochs, most_examples=most),
        )
        for epochs, most in WORK
    ]  # fmt: skip


def asked(queries: Callable[[int], Mapping[str, Any]], **changes: Any) -> Any:
    """Makers of statistics over fewer and fewer events."""
    cohort = {**COHORT, **changes.pop("cohort", {})}

    def maker(most: int) -> Callable[[str], Any]:
        return lambda name: odp.Statistics(
            name=name, queries=queries(most), privacy=PRIVACY, cohort=odp.Cohort(**cohort), **changes
        )

    return [maker(most) for most in EVENT_CAPS]


def seen(most: int, **changes: Any) -> odp.Events:
    """The events of a category that the developer picks."""
    return odp.Events(**{
        "service": "films", "type": "seen", "item": "film", "where": [f'kind == "{SECRET}"'], "most_events": most,
        **changes,
    })  # fmt: skip


def of_events(most: int) -> Mapping[str, Any]:
    return {
        "items": odp.Histogram(bins=ITEMS, counts="shares", events=seen(most)),
        "stars": odp.Mean(low=0, high=5, events=seen(most, value="stars")),
        "crossed": odp.Histogram(bins=256, events=seen(most, item=["film", "kind"], buckets=256)),
    }


def training(kind: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A training of one step per example."""
    return functools.partial(kind, **{"rounds": 1, "batch": 1, **fixed})


fedavg = training(odp.DPFedAvg)


def factorization(training: Any, data: Any) -> Any:
    return [
        lambda name, rank=rank: odp.Task(
            name=name, model=odp.MatrixFactorization(items=ITEMS, rank=rank), data=data,
            privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-6, max_items_per_user=300), training=training,
            cohort=odp.Cohort(**COHORT),
        )
        for rank in (16, 8, 4, 2)
    ]  # fmt: skip


def evaluated(personal: bool) -> Any:
    of = np.zeros(LOGISTIC.size, np.float32)
    return [
        lambda name, epochs=epochs, most=most: odp.Evaluation(
            name=name, model=LOGISTIC, data=DATA, of=of, privacy=PRIVACY, cohort=odp.Cohort(**COHORT),
            personal=odp.PersonalTraining(epochs=epochs, batch=1) if personal else None, most_examples=most,
        )
        for epochs, most in WORK
    ]  # fmt: skip


def discarded(inputs: Mapping[str, Any], **changes: Any) -> Any:
    return [
        lambda name, most=most: odp.DrawAndDiscard(
            name=name, features=inputs, epsilon=0.5, most_examples=most, false_alarms=0.0, **changes
        )
        for most in (65_536, 10_000, 1000, 100, 10)
    ]


def words(**changes: Any) -> Any:
    return [
        lambda name, most=most: odp.HeavyHitters(
            name=name, events=odp.Events(service="films", type="seen", item="film", most_events=most), length=8,
            privacy=PRIVACY, cohort=odp.Cohort(**COHORT), **changes,
        )
        for most in EVENT_CAPS
    ]  # fmt: skip


def wide(kind: Callable[..., Any]) -> Any:
    """A model of up to half a million parameters, by a definition of a few bytes."""
    model = functools.partial(odp.Glm, "multinomial", features=8)
    return [
        lambda name, classes=classes, epochs=epochs, most=most: odp.Task(
            name=name, model=model(classes=classes), data=WIDE_DATA, privacy=PRIVACY, cohort=odp.Cohort(**COHORT),
            training=training(kind)(epochs=epochs, most_examples=most),
        )
        for classes in (2**16, 2**14, 2**12, 2**10, 2**8)
        for epochs, most in ((1000, 1000), (100, 100), (10, 100), (1, 100), (1, 10), (1, 1))
    ]  # fmt: skip


def numbered(count: int) -> Fill:
    """Examples of a category of 4,096 numbers."""

    def fill(store: Store) -> None:
        numbers = np.arange(count, dtype=np.int64) % 4096
        store.examples("examples").add({"number": numbers, "label": np.ones(count, np.float32)}, time=1.7e9)

    return fill


NUMBERED: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": numbered(1),
    "caps full": numbered(8_000),
    "ten times the caps": numbered(80_000),
}
LOCAL_INPUTS = {"number": odp.Category(4096)}


class Maker:
    """A developer's own code, which makes as many examples as the device has ratings."""

    def asked_for(self, task: Any) -> bool:
        return True

    def most_asked(self, task: Any) -> int:
        return 100_000

    def make(self, path: Path, task: Any) -> Sequence[Any]:
        with Store.open(path, durable=False) as store:
            return [{"film": int(item) % ITEMS, "stars": 4.0, "kind": SECRET} for item in store.ratings().items]

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        store.data("films").replace_events("example", made, time=1.7e9)


def with_maker() -> Mapping[str, Any]:
    """A host whose devices have a developer's own code."""
    made = MadeExamples(maker=Maker(), code_seconds=3.0)
    return {"start": functools.partial(device_runtime.start, made_examples=made)}


TEXTS = odp.Examples({"said": odp.Text(tuple(f"word{n}" for n in range(2000)), 64)})


def said(count: int, text: str) -> Fill:
    def fill(store: Store) -> None:
        store.examples("examples").add(
            {"said": np.array([text] * count), "label": np.ones(count, np.float32)}, time=1.7e9
        )

    return fill


KNOWN_WORD = odp.Examples({"said": odp.Text(("word", "never"), 1)})
SAID: Mapping[str, Fill] = {
    "empty": nothing,
    "one record": said(1, "word7"),
    "caps full": said(1000, "word7 " * 64),
    "long texts": said(1000, "word7 " * 600),
    "unknown words": said(1000, "x " * 64),
    "huge rows": said(14, "word " * 800_000),
}
KINDS: dict[str, Kind] = {
    "DPFedAvg": Kind(trained(fedavg), EXAMPLES),
    "DPFedAvg, masked": Kind(trained(fedavg, aggregation="masked"), EXAMPLES),
    "DPFedAvg, wide": Kind(wide(odp.DPFedAvg), EXAMPLES),
    "DPFedAvg, 8 bits": Kind(trained(training(odp.DPFedAvg, upload_bits=8)), EXAMPLES),
    "DPFedAvg, text": Kind(trained(fedavg, model=odp.Glm("logistic", features=2000), data=TEXTS), SAID),
    "DPFedAvg, two words": Kind(trained(fedavg, model=odp.Glm("logistic", features=2), data=KNOWN_WORD), SAID),
    "DPFedAvg, synced disk": Kind(trained(fedavg), EXAMPLES, host=lambda: {"durable": True}),
    "statistics, synced disk": Kind(asked(of_events), EVENTS, host=lambda: {"durable": True}),
    "DPFedAvg, new process": Kind(trained(fedavg), EXAMPLES, fresh=True),
    "statistics, new process": Kind(asked(of_events), EVENTS, fresh=True),
    "ratings, new process": Kind(factorization(odp.DPAM(steps=1), odp.RatingsData(low=1, high=5)), RATINGS, fresh=True),
    "DPSGD": Kind(trained(lambda epochs, most_examples: odp.DPSGD(rounds=1, most_examples=most_examples)), EXAMPLES),
    "DPFTRL": Kind(
        trained(training(odp.DPFTRL, rounds=2, bands=2)), EXAMPLES
    ),
    "PrivateFL": Kind(
        trained(training(odp.PrivateFL)), EXAMPLES
    ),
    "PrivateFL, wide": Kind(wide(odp.PrivateFL), EXAMPLES),
    "evaluation": Kind(evaluated(personal=False), EXAMPLES),
    "evaluation after training": Kind(evaluated(personal=True), EXAMPLES),
    "statistics": Kind(asked(of_events), EVENTS),
    "statistics, masked": Kind(asked(of_events, cohort={"aggregation": "masked"}), EVENTS),
    "shuffled statistics": Kind(asked(of_events, trust="shuffle", cohort={"minimum": 100}), EVENTS),
    "local statistics": Kind(asked(of_events, trust="local"), EVENTS),
    "quantiles": Kind(
        [
            lambda name, most=most: odp.Quantiles(
                name=name, low=0, high=6, bins=2**12, events=seen(most, value="stars"), privacy=PRIVACY,
                cohort=odp.Cohort(**COHORT),
            )
            for most in EVENT_CAPS
        ],
        EVENTS,
    ),
    "heavy hitters": Kind(words(), WORDS),
    "local heavy hitters": Kind(words(trust="local"), WORDS),
    "ratings": Kind(factorization(odp.DPAM(steps=1), odp.RatingsData(low=1, high=5)), RATINGS),
    "ratings of events": Kind(
        factorization(
            odp.DPAM(steps=1),
            odp.RatingsData(low=1, high=5, events=seen(10_000, value="stars", aggregate="mean")),
        ),
        EVENTS,
    ),
    "implicit": Kind(factorization(odp.ImplicitDPAM(steps=1), odp.ImplicitData()), RATINGS),
    "made examples": Kind(
        factorization(
            odp.DPAM(steps=1),
            odp.RatingsData(low=1, high=5, events=seen(10_000, type="example", value="stars", aggregate="mean")),
        ),
        {"empty": nothing, "one record": ratings(1), "caps full": ratings(10_000),
         "ten times the caps": ratings(90_000)},
        host=with_maker,
    ),
    "Draw and Discard": Kind(discarded({"kind": CATEGORY}), EXAMPLES),
    "Draw and Discard, wide": Kind(discarded(LOCAL_INPUTS, per="model"), NUMBERED),
    # One device of a host has data, and may not move the calls of the others.
    "DPFedAvg, five devices": Kind(trained(fedavg), EXAMPLES, devices=5),
    "statistics, five devices": Kind(asked(of_events), EVENTS, devices=5),
    "local statistics, five devices": Kind(asked(of_events, trust="local"), EVENTS, devices=5),
    "DPFedAvg, secagg+": Kind(
        trained(
            training(odp.DPFedAvg, rounds=1000),
            aggregation="secagg+", minimum=5, goal=5, corrupt_fraction=0.0, dropout_fraction=0.2,
        ),
        EXAMPLES, devices=5, polls=("Step", "Join", "CheckIn", "GetHashes", "GetEvidence"), host=lambda: {"threads": 8},
    ),
}  # fmt: skip


def _networks() -> dict[str, Kind]:
    """Developers' own programs; without LiteRT, nobody can run them."""
    from models.litert import hostile
    from models.litert.compile_mlp import stored
    from models.litert.stored_models import DIGITS, network

    def digits(count: int) -> Fill:
        def fill(store: Store) -> None:
            numbers = np.random.default_rng(1).normal(size=(count, 6)).astype(np.float32)
            store.examples("examples").add({"x": numbers, "kind": np.arange(count, dtype=np.float32) % 5}, time=1.7e9)

        return fill

    data = {"empty": nothing, "one record": digits(1), "caps full": digits(1000), "ten times the caps": digits(10_000)}
    programs = {
        "network": stored(), "network that never ends": hostile.endless(stored()),
        "network that eats memory": hostile.hungry(stored()), "network that crashes": hostile.crashing(stored()),
    }  # fmt: skip
    return {
        name: Kind(trained(fedavg, model=network(program), data=DIGITS), data) for name, program in programs.items()
    }


if importlib.util.find_spec("ai_edge_litert") is not None:
    KINDS |= _networks()

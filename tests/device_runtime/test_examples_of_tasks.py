from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import odp
from device_runtime.round.examples import bucket_of, events, examples
from device_runtime.store.store import Store, store_path
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError, DataError
from odp.identity import LabelledItems
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        yield store


def asked(**given: Any) -> EventsTerms:
    made = odp.Events(**{"service": "music", "type": "play", "item": "track", **given})
    holder = common_pb2.RatingsData(table=made.table, events=made.to_proto(aggregate="each"))
    found = EventsTerms.of(holder, aggregates=tuple(AGGREGATES))
    assert found is not None
    return found


def play(store: Store, *rows: dict[str, Any], service: str = "music", type: str = "play", start: float = 0.0) -> None:
    for place, row in enumerate(rows):
        store.data(service).add_event(type, row, time=start + place)


def rows(store: Store, **given: Any) -> list[tuple[int, float]]:
    found = events(store, asked(**given), now=NOW)
    return list(zip(found.items.tolist(), found.values.tolist(), strict=True))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-100, 100)), max_size=30),
    st.sampled_from(["last", "sum", "mean", "max", "min", "count"]),
)
def test_several_events_of_one_item_become_one_row(
    store: Store, entered: list[tuple[int, int]], aggregate: str
) -> None:
    store.erase()
    play(store, *({"track": item, "stars": value} for item, value in entered))
    by_item: dict[int, list[float]] = {}
    for item, value in entered:
        by_item.setdefault(item, []).append(float(value))
    of = {"last": lambda v: v[-1], "sum": sum, "mean": lambda v: sum(v) / len(v), "max": max, "min": min, "count": len}
    value = {} if aggregate == "count" else {"value": "stars"}
    expected = [(item, float(of[aggregate](values))) for item, values in sorted(by_item.items())]
    found = rows(store, aggregate=aggregate, **value)
    assert [item for item, _ in found] == [item for item, _ in expected]
    assert dict(found) == pytest.approx(dict(expected))


def test_half_a_character_of_an_earlier_version_is_about_the_data_and_not_about_the_store(store: Store) -> None:
    """A store that cannot be read would keep the device from its round, and so tell the server of the event."""
    play(store, {"track": 1})
    store.execute("UPDATE events SET data = ?", ('{"track": "\\ud83d"}',))
    assert events(store, asked(), now=NOW).items.tolist() == []
    with pytest.raises(DataError, match="no UTF-8"):
        events(store, asked(), now=NOW, catalogue=LabelledItems(["a"]))


def test_events_of_other_types_services_and_kinds_of_values_give_no_row(store: Store) -> None:
    play(store, {"track": 1, "stars": 4})
    play(store, {"track": 2, "stars": 4}, type="skip")
    play(store, {"track": 3, "stars": 4}, service="video")
    play(store, {"track": 4}, {"stars": 4}, {"track": "5", "stars": 4}, {"track": 6.5, "stars": 4},
         {"track": True, "stars": 4}, {"track": 7, "stars": "4"}, {"track": 8, "stars": None},
         {"track": [9], "stars": 4},
         {"track": 2**80, "stars": 4})  # fmt: skip
    store.data("music").add_event("play", b'{"track": 9, "stars": 4}', time=1.0)
    assert rows(store, value="stars") == [(1, 4.0)]


def test_r340_only_the_newest_labelled_examples_that_the_task_may_read_leave_the_store(store: Store) -> None:
    """A cap that an algorithm applies to all rows would come too late: they are in the memory then."""
    definition = odp.DrawAndDiscard(
        name="t", features={"x": odp.Number()}, epsilon=2.0, instances=3, most_examples=5
    ).definition()
    store.examples("examples").add({"x": np.arange(50) / 64, "label": np.ones(50)}, time=NOW)
    (read,) = examples(store, definition, now=NOW).values()
    assert read.features["x"].tolist() == [number / 64 for number in range(45, 50)]


def test_only_the_newest_events_of_the_asked_days_are_read(store: Store) -> None:
    play(store, *({"track": number} for number in range(5)), start=NOW - 2 * 86_400 - 2.5)
    assert [item for item, _ in rows(store)] == [0, 1, 2, 3, 4]
    assert [item for item, _ in rows(store, days=2)] == [3, 4]
    assert [item for item, _ in rows(store, most_events=1)] == [4]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (["seconds >= 30"], [1, 2]),
        (["seconds > 30", "seconds < 100"], [2]),
        (["seconds != 30"], [0, 2]),
        (['genre == "rock"'], [0, 2]),
        (['genre != "rock"'], [1]),
        (["live == true"], [1]),
        (["live != true"], [0]),
        (['seconds == "30"'], []),
        (["absent != 1"], []),
    ],
)
def test_conditions_compare_values_of_their_own_kind(store: Store, where: list[str], found: list[int]) -> None:
    play(store, {"track": 0, "seconds": 5, "genre": "rock", "live": False},
         {"track": 1, "seconds": 30, "genre": 'jazz" OR 1=1', "live": True},
         {"track": 2, "seconds": 60.5, "genre": "rock", "live": 1})  # fmt: skip
    assert [item for item, _ in rows(store, where=where)] == found


def test_a_cross_is_hashed_as_the_protocol_says(store: Store) -> None:
    play(store, {"genre": "röck", "hour": 7}, {"genre": "röck", "hour": 8}, {"genre": True, "hour": 7.5})
    digest = hashlib.sha256(b"odp/v1/events-bucket\0")
    for text in (b'"r\\u00f6ck"', b"7"):
        digest.update(struct.pack("<I", len(text)) + text)
    first = int.from_bytes(digest.digest()[:8], "little") % 1000
    found = rows(store, item=("genre", "hour"), buckets=1000)
    assert [item for item, _ in found] == [
        first, bucket_of(('"r\\u00f6ck"', "8"), 1000), bucket_of(("true", "7.5"), 1000)
    ]  # fmt: skip


def test_edges_divide_numbers_into_bins(store: Store) -> None:
    play(store, *({"track": value} for value in (-1, 0, 9.5, 10, 20, 20.5)))
    assert rows(store, edges=[0, 10, 20]) == [(0, 1.0), (0, 1.0), (1, 1.0), (1, 1.0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item": ("a", "b")}, "buckets"), ({"item": "a b"}, "item"), ({"where": ["a ~ 1"]}, "where"),
        ({"where": ['a > "x"']}, "ordered"), ({"where": ["a == [1]"]}, "where"), ({"where": ["a == NaN"]}, "where"),
        ({"where": ["a == 1" + "0" * 400]}, "where"), ({"buckets": 0}, "buckets"), ({"edges": [2, 1]}, "edges"),
        ({"buckets": 5, "edges": [1, 2]}, "not both"), ({"days": 0}, "days"), ({"most_events": 0}, "most_events"),
        ({"aggregate": "median"}, "aggregate"), ({"service": "s" * 60}, "table"), ({"where": ["a == 1"] * 17}, "where"),
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        odp.Events(**{"service": "music", "type": "play", "item": "track", **change})


@pytest.mark.parametrize("field", ["type", "most_events", "item_columns", "buckets", "aggregate", "filters", "table"])
def test_a_signed_query_out_of_its_bounds_is_refused_on_the_device(field: str) -> None:
    made = odp.Events(service="music", type="play", item="track")
    holder = common_pb2.RatingsData(table=made.table, events=made.to_proto(aggregate="count"))
    match field:
        case "type":
            holder.events.type = 'play"'
        case "most_events":
            holder.events.most_events = 10**9
        case "item_columns":
            holder.events.item_columns[0] = '"; DROP'
        case "buckets":
            holder.events.buckets = 2**31
        case "aggregate":
            holder.events.aggregate = 99  # type: ignore[assignment]
        case "filters":
            holder.events.filters.add(column="a")
        case _:
            holder.table = "ratings"
    with pytest.raises(ConfigurationError):
        EventsTerms.of(holder, aggregates=("count", "last"))


def task(data: Any, **changes: Any) -> odp.Task:
    return odp.Task(
        name="films", model=odp.MatrixFactorization(items=20, rank=2), data=data,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5), **changes,
    )  # fmt: skip


def test_ratings_and_implicit_data_are_made_of_events_as_the_task_says(store: Store) -> None:
    play(store, *({"track": track} for track in (3, 3, 3, 1, 99)))
    store.rate(7, 2.0)
    of_events = odp.Events(service="music", type="play", item="track")
    ratings = task(odp.RatingsData(low=0, high=2, events=of_events)).definition()
    assert algorithm_for(ratings).local_tables == {"events.music"}
    found = examples(store, ratings, now=NOW)
    rows = found[ROWS]
    assert (rows.items.tolist(), rows.values.tolist()) == ([1, 3, 99], [1.0, 3.0, 1.0])
    assert algorithm_for(ratings).client().keys(found, round=0, seed=1).tolist() == [1, 3]
    implicit = task(odp.ImplicitData(events=of_events), training=odp.ImplicitDPAM(steps=1)).definition()
    found = examples(store, implicit, now=NOW)[ROWS]
    assert (found.items.tolist(), found.values.tolist()) == ([1, 3, 99], [1.0, 1.0, 1.0])
    plain = task(odp.RatingsData(low=0, high=5)).definition()
    assert examples(store, plain, now=NOW)[ROWS].items.tolist() == [7]


def test_every_query_of_a_statistics_task_reads_its_own_rows(store: Store) -> None:
    play(store, {"track": 1, "seconds": 10}, {"track": 1, "seconds": 30}, {"track": 2, "seconds": 500})
    store.fill(np.array([0]), np.array([5.0]), filled_from=b"x")
    played = odp.Events(service="music", type="play", item="track")
    short = odp.Events(service="music", type="play", item="track", value="seconds", where=["seconds < 100"])
    asked = odp.Statistics(
        name="listening",
        queries={
            "tracks": odp.Histogram(bins=3, counts="records", clip=10, events=played),
            "seconds": odp.Mean(low=0, high=100, events=short),
            "stars": odp.Histogram(bins=3),
        },
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-6),
    )  # fmt: skip
    definition = asked.definition()
    algorithm = algorithm_for(definition)
    assert algorithm.local_tables == {"events.music", "ratings"}
    data = examples(store, definition, now=NOW)
    payload, _ = algorithm.client().contribute(
        Slices(0, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {}), data, round=0, seed=1
    )
    from odp.algorithms.statistics.terms import Terms

    terms = Terms.of(definition)
    numbers = np.frombuffer(payload, "<i4") * terms.grid.step
    tracks, seconds, stars = (numbers[part.place] / part.scale for part in terms.parts)
    assert tracks == pytest.approx([0, 2, 1], abs=0.02)
    assert 50 + 50 * seconds[0] / seconds[1] == pytest.approx(20, abs=1)
    assert stars == pytest.approx([1, 0, 0], abs=0.02)


def test_a_task_file_holds_the_query() -> None:
    from odp.tasks.file import parse_task, render_task

    made = task(odp.RatingsData(low=0, high=2, events=odp.Events(
        service="music", type="play", item=("genre", "hour"), buckets=20, where=['genre == "rock"'])))  # fmt: skip
    again = parse_task(render_task(made))
    assert again.definition() == made.definition()

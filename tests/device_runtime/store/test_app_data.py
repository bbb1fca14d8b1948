from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from stores import decrypted

from device_runtime.store.app_data import services
from device_runtime.store.database import Bounds
from device_runtime.store.store import Store, store_path
from odp.errors import ConfigurationError, DataError, DiskFull

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,10}", fullmatch=True)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20), st.lists(st.integers(0, 5), max_size=3),
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        yield store


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, st.one_of(st.dictionaries(NAMES, VALUES, max_size=4), st.binary(max_size=50)),
                  st.floats(-1e9, 1e9)),
        max_size=8,
    )
)  # fmt: skip
def test_events_come_back_as_they_went_in_by_time_and_then_by_entry(entered: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = store_path(Path(folder), 0)
        with Store.open_or_create(path, durable=False) as store:
            for type, data, time in entered:
                store.data("music").add_event(type, data, time=time)
        with Store.open(path) as store:
            found = store.data("music").events()
            assert store.data("other").events() == []
    expected = sorted(entered, key=lambda one: one[2])
    assert [(one.type, one.data, one.time) for one in found] == expected


def test_events_are_asked_for_by_type_and_time_and_the_newest_are_given(store: Store) -> None:
    data = store.data("music")
    for time in range(6):
        data.add_event("play" if time % 2 else "skip", {"track": time}, time=float(time))
    assert [one.time for one in data.events(type="play")] == [1, 3, 5]
    assert [one.time for one in data.events(since=2.0, most=3)] == [3, 4, 5]


def test_an_event_may_answer_a_request_of_its_own_service_alone(store: Store) -> None:
    music, video = store.data("music"), store.data("video")
    asked = music.add_request("player", {"mood": "calm"}, time=1.0)
    music.add_event("play", {"track": 1}, time=2.0, request=asked)
    with pytest.raises(DataError, match="request"):
        video.add_event("play", {"track": 1}, time=2.0, request=asked)
    music.answer(asked, [{"track": 1}, {"track": 2}])
    with pytest.raises(DataError, match="answer"):
        music.answer(asked, [])
    (request,) = music.requests()
    assert (request.app, request.asked, request.rows) == ("player", {"mood": "calm"}, [{"track": 1}, {"track": 2}])
    assert video.requests() == []


def test_local_data_are_set_and_deleted_together_or_not_at_all(store: Store) -> None:
    data = store.data("music", bounds=Bounds(value_bytes=10, local_bytes=15, keys=3))
    data.set("a", b"12345", time=1.0)
    data.change({"b": b"678", "c": b"9"}, time=2.0)
    data.change({"b": None}, time=3.0)
    assert (data.get("a"), data.get("b"), data.local_keys()) == (b"12345", None, ["a", "c"])
    for wrong, message in [
        ({"a": None, "d": b"x" * 11}, "value_bytes"),
        ({"a": None, "d": b"x" * 10, "e": b"x" * 10}, "local_bytes"),
        ({"a": b"", "d": b"", "e": b""}, "keys"),
        ({"": b""}, "key"),
        ({"k" * 513: b""}, "key"),
    ]:
        with pytest.raises(DataError, match=message):
            data.change(wrong, time=4.0)
        assert (data.get("a"), data.local_keys()) == (b"12345", ["a", "c"])
    assert store.data("other").get("a") is None


def test_downloads_are_replaced_as_a_whole_and_a_version_never_changes(store: Store) -> None:
    data = store.data("music")
    assert data.downloaded_keys() == []
    assert data.download("v1", {"titles": b"one", "years": b"1"}, time=1.0)
    assert not data.download("v1", {"years": b"1", "titles": b"one"}, time=2.0)
    with pytest.raises(DataError, match="immutable"):
        data.download("v1", {"titles": b"two"}, time=2.0)
    assert data.downloaded("titles") == b"one"
    assert data.download("v2", {"titles": b"two"}, time=3.0)
    assert (data.downloaded_keys(), data.downloaded("titles"), data.downloaded("years")) == (["titles"], b"two", None)


def test_text_beyond_the_basic_plane_and_text_about_surrogates_are_text(store: Store) -> None:
    row = {"a": "\U0001f600", "b": "\\ud83d"}
    store.data("music").add_event("play", row, time=1.0)
    assert [event.data for event in store.data("music").events()] == [row]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": float("nan")}, "JSON"),
        ({"a": object()}, "JSON"),
        ({"a": "xxx\ud83d"}, "lone surrogates"),
        ({"a": ["xxx", {"b\udc00": 1}]}, "lone surrogates"),
        ({"a": "x" * 20_000}, "event_bytes"),
        (b"x" * 20_000, "event_bytes"),
        ({f"c{n}": 1 for n in range(65)}, "columns"),
        ([1], "mapping"),
    ],
)
def test_an_event_that_is_no_event_is_refused_without_showing_it(store: Store, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        store.data("music").add_event("play", data, time=1.0)
    assert "xxx" not in str(caught.value)
    assert store.data("music").events() == []


def test_names_are_names(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="service"):
        store.data("Music!")
    with pytest.raises(ConfigurationError, match="type"):
        store.data("music").add_event("play it", {}, time=1.0)
    with pytest.raises(ConfigurationError, match="column"):
        store.data("music").add_event("play", {'a"b': 1}, time=1.0)
    with pytest.raises(ConfigurationError, match="time"):
        store.data("music").add_event("play", {}, time=math.inf)


def test_a_service_has_its_own_bounds_and_the_ledger_has_room_beyond_those_of_the_file(store: Store) -> None:
    data = store.data("music", bounds=Bounds(events=2))
    for time in range(2):
        data.add_event("play", {}, time=float(time))
    with pytest.raises(DataError, match="events=2"):
        data.add_event("play", {}, time=2.0)
    store.data("video", bounds=Bounds(events=2)).add_event("play", {}, time=2.0)
    small = Bounds(file_bytes=store.used_bytes())
    with pytest.raises(DataError, match="file_bytes"):
        store.data("music", bounds=small).add_event("play", {}, time=2.0)
    with pytest.raises(DataError, match="file_bytes"):
        store.data("music", bounds=small).set("key", b"x", time=2.0)
    with pytest.raises(DataError, match="file_bytes"):
        store.data("music", bounds=small).download("v1", {"a": b"x" * 5000}, time=2.0)
    store.change_person(lambda person: person.with_opt_out("films", 1.0))
    assert services(store) == ["music", "video"]


def test_a_full_disk_keeps_what_was_there_and_says_so(store: Store) -> None:
    data = store.data("music")
    data.set("key", b"before", time=1.0)
    (pages,) = store.first("PRAGMA page_count") or (0,)
    store.first(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DiskFull):
        data.set("key", b"x" * 50_000, time=2.0)
    assert data.get("key") == b"before"


def test_erasing_wipes_what_apps_kept(store: Store) -> None:
    data = store.data("music")
    data.add_event("play", {"track": 1}, time=1.0)
    data.add_request("player", {}, time=1.0)
    data.set("key", b"value", time=1.0)
    data.download("v1", {"titles": b"one"}, time=1.0)
    assert store.count_examples() == 1
    store.erase()
    assert services(store) == []
    assert (data.events(), data.requests(), data.get("key"), data.downloaded("titles")) == ([], [], None, None)


def test_no_file_of_a_state_folder_holds_what_was_put_into_a_store(tmp_path: Path) -> None:
    """A rating, an event, a value, in the file, in its journal in the middle of a change, and in what VACUUM writes."""
    sentinel = "a most telling sentence "
    path = store_path(tmp_path, 7)
    with Store.open_or_create(path) as store:
        store.rate(1234567891, 0.123456789)
        data = store.data("music")
        data.add_event("play", {"title": sentinel * 20}, time=1.0)
        data.set("note", sentinel.encode() * 100, time=1.0)
        data.add_request("player", {"asked": sentinel}, time=1.0)
        data.download("v1", {"key": sentinel.encode()}, time=1.0)
        store._connection.execute("BEGIN IMMEDIATE")
        store._connection.execute("UPDATE local_data SET value = x'00'")
        store._connection.execute("DELETE FROM events")
        during = {one.name: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        store._connection.execute("ROLLBACK")
        store._connection.execute("VACUUM")
    secrets = (sentinel.encode()[:16], struct.pack(">d", 0.123456789), b"CREATE TABLE", b"SQLite format")
    after = {f"{one.name} after": one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    assert "7.sqlite-journal" in during
    assert all(secret in decrypted(path) for secret in secrets)
    for name, content in {**during, **after}.items():
        for secret in secrets:
            assert secret not in content, name

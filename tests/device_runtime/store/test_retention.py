from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runtime_ledger import TASK, participation, prepare
from hypothesis import HealthCheck, given, settings, strategies as st

from device_runtime.host import housekeeping
from device_runtime.host.housekeeping import END_SECONDS, HOUR_SECONDS, Housekeeping
from device_runtime.person.limits import Limits
from device_runtime.store.retention import Retention, prune, prune_records, records_needed
from device_runtime.store.schema import State
from device_runtime.store.store import Store, store_path
from odp.errors import ConfigurationError
from odp.transport.logs import Log

DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        yield store


def pruned(store: Store, retention: Retention, now: float, **bound: Any) -> int:
    with store.transaction():
        store.execute("DELETE FROM pruning")
    assert prune(store, retention, now=now) == 0, "the first time is only noted"
    return prune(store, retention, now=now, **bound)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 200), max_size=10), st.floats(1, 100), st.integers(1, 20))
def test_rows_go_after_their_period_a_bounded_number_at_a_time(
    store: Store, ages: list[float], days: float, most: int
) -> None:
    store.erase()
    now = 1000 * DAY
    for age in ages:
        store.data("music").add_event("play", {}, time=now - age * DAY)
    old = sorted(age for age in ages if now - age * DAY < now - days * DAY)
    retention = Retention(events=days)
    assert pruned(store, retention, now, most=most) == min(len(old), most)
    while prune(store, retention, now=now, most=most):
        pass
    assert len(store.data("music").events()) == len(ages) - len(old)


def test_every_table_keeps_to_its_own_period_and_the_ledger_never_expires(store: Store) -> None:
    data = store.data("music")
    data.add_event("play", {}, time=0.0)
    data.add_request("player", {}, time=0.0)
    data.set("key", b"value", time=0.0)
    data.download("v1", {"a": b"1", "b": b"2"}, time=0.0)
    prepare(store, participation())
    store.set_limits(Limits(max_epsilon=3.0))
    store.change_person(lambda person: person.with_opt_out("other", 1.0))
    forever = Retention(**dict.fromkeys(vars(Retention()), None))
    assert pruned(store, forever, 1e9) == 0
    pruned(store, Retention(), 1e9)
    assert store.local_parameters(TASK) is not None  # still to be sent
    store.settle(TASK, 0, State.SENT)
    while prune(store, Retention(), now=1e9):
        pass
    assert (data.events(), data.requests(), data.get("key"), data.downloaded("a")) == ([], [], None, None)
    assert data.download("v1", {"a": b"other"}, time=1e9), "the version that was there is forgotten, too"
    assert store.local_parameters(TASK) is None
    assert store.assignments() == []
    assert len(store.charged()) == 1
    assert (store.person().limits, set(store.person().opt_outs)) == (Limits(max_epsilon=3.0), {"other"})


def test_a_clock_that_jumps_deletes_nothing_unless_it_still_says_so_the_next_time(store: Store) -> None:
    now = 1000 * DAY
    store.data("music").add_event("play", {}, time=now)
    retention = Retention(events=90)
    for moment in (now, now + 1, now + 1000 * DAY, now + 2, now + 1000 * DAY, now + 3, now + HOUR_SECONDS):
        assert prune(store, retention, now=moment) == 0
    assert prune(store, retention, now=now + 1000 * DAY) == 0
    assert prune(store, retention, now=now + 1000 * DAY + HOUR_SECONDS) == 1


def test_records_that_a_ledger_needs_stay_and_others_go(tmp_path: Path, store: Store) -> None:
    import dataclasses

    folder = tmp_path / "records"
    folder.mkdir()
    needed, rests_on, old, young = (bytes([number]) * 32 for number in range(4))
    for one in (needed, rests_on, old, young):
        path = folder / f"{one.hex()}.json"
        path.write_text(f'{{"reference_values_sha256": "{rests_on.hex()}"}}')
        os.utime(path, (0, 0) if one != young else None)
    prepare(store, dataclasses.replace(participation(), record=needed, time=900 * DAY))
    found = records_needed(store, Retention(), now=1000 * DAY)
    assert found == {needed.hex()}
    assert prune_records(folder, found, Retention(), now=1000 * DAY) == 1
    assert {path.stem for path in folder.iterdir()} == {one.hex() for one in (needed, rests_on, young)}


def test_a_host_looks_at_all_stores_of_its_folder_once_an_hour(tmp_path: Path) -> None:
    now = [1000 * DAY]
    for device in range(40):
        with Store.open_or_create(store_path(tmp_path, device), durable=False) as store:
            store.data("music").add_event("play", {}, time=0.0)
    text = io.StringIO()
    keeper = Housekeeping(
        tmp_path, Retention(), log=Log("devices", stream=text), durable=False,
        clock=lambda: now[0], monotonic=lambda: now[0],
    )  # fmt: skip
    for _ in range(3):  # 32 stores, the other 8, and nothing
        keeper.step()
    assert "expired" not in text.getvalue()
    store_path(tmp_path, 3).write_bytes(b"damaged")
    now[0] += HOUR_SECONDS
    for _ in range(3):
        keeper.step()
    assert "rows=39" in text.getvalue()
    with Store.open(store_path(tmp_path, 39)) as store:
        assert store.data("music").events() == []


def test_r422_a_step_ends_at_its_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Half a second passes at each look at the clock, and so for each row."""
    now, steady = [1000 * DAY], [0.0]

    def monotonic() -> float:
        steady[0] += 0.5
        return steady[0]

    for device in range(2):
        with Store.open_or_create(store_path(tmp_path, device), durable=False) as store:
            store.data("music").replace_events("play", [{"track": track} for track in range(20)], time=0.0)
            prune(store, Retention(), now=now[0])
    text = io.StringIO()
    keeper = Housekeeping(
        tmp_path, Retention(), log=Log("devices", stream=text), durable=False, clock=lambda: now[0],
        monotonic=monotonic,
    )  # fmt: skip

    def left() -> list[int]:
        counts = []
        for device in range(2):
            with Store.open(store_path(tmp_path, device)) as store:
                counts.append(store.data("music").count("events"))
        return counts

    now[0] += HOUR_SECONDS
    begin = steady[0]
    keeper.step(seconds=5.0)
    assert steady[0] - begin <= 7.0, "no further row after the time is over"
    before = left()
    assert 0 < before[0] < 20
    assert before[1] == 20
    begin = steady[0]
    keeper.step_in_fixed_time()
    assert steady[0] - begin == 0.5, "a look at the clock: an app's call takes its fixed time once an hour"
    assert left() == before
    keeper.step(seconds=1e9)
    assert left() == [0, 0]
    assert "rows=40" in text.getvalue()


@pytest.mark.parametrize("takes", [0.0, 5.0])
def test_r422_an_app_that_forgets_rows_waits_for_the_same_time_however_long_that_takes(
    tmp_path: Path, takes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real clock: nothing is there to be deleted, or more than fits."""
    release = threading.Event()
    monkeypatch.setattr(housekeeping, "_FIXED_SECONDS", 1.25)
    monkeypatch.setattr(Housekeeping, "step", lambda self, *, seconds: release.wait(takes))
    keeper = Housekeeping(tmp_path, Retention(), log=Log("devices", stream=io.StringIO()))
    begin = time.monotonic()
    keeper.step_in_fixed_time()
    took = time.monotonic() - begin
    release.set()
    assert 1.25 <= took < 4.0


def test_r422_the_largest_row_that_a_store_accepts_is_overwritten_in_the_time_left_for_it(tmp_path: Path) -> None:
    """On a real clock, with a margin of two for a busy machine."""
    with Store.open_or_create(store_path(tmp_path, 0), durable=True) as store:
        store.examples("examples").add({"photo": np.zeros((2, 2**22 - 200), np.uint8)}, time=0.0)
        prune(store, Retention(), now=1000 * DAY)
        overs = iter([False, True])
        begin = time.monotonic()
        assert prune(store, Retention(), now=1000 * DAY + HOUR_SECONDS, over=lambda: next(overs)) == 1
        assert time.monotonic() - begin < 2 * END_SECONDS


def test_a_retention_file_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "retention.toml"
    path.write_text("events = 7\nrequests = 0\n")
    assert Retention.load(path) == Retention(events=7.0, requests=None)
    for text, message in [
        ("event = 7", "events"),
        ("events = -1", "events"),
        ("events = 'x'", "events"),
        ("=", "TOML"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            Retention.load(path)


def test_r422_rows_are_deleted_few_at_a_time_so_that_nobody_waits_for_all_of_them(tmp_path: Path) -> None:
    now, seen = 1000 * DAY, []
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        store.data("music").replace_events("play", [{"track": track} for track in range(40)], time=0.0)
        prune(store, Retention(), now=now)

        def look() -> bool:
            with Store.open(store_path(tmp_path, 0), durable=False) as other:
                seen.append(other.data("music").count("events"))
            return False

        assert prune(store, Retention(), now=now + HOUR_SECONDS, over=look) == 40
    assert sorted(set(seen), reverse=True) == [40, 24, 8, 0], "what other programs see between transactions"

"""What the `Storage` of the aggregator's host promises: the conformance suite that every implementation passes.

What is acknowledged is there, in order and within limits; what is erased is gone; and what is left by a process that
was killed between any two statements.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading

import pytest
import sqlalchemy
from conformance.aggregators import AGGREGATOR_STORES, SqliteStores
from conformance.dying import deaths

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.large_files import LARGE_BYTES
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.state.records import SealedRecord, ledger_key, ledger_state_key, numbered_state

TASK, OTHER = bytes(32), bytes([1]) * 32


@pytest.fixture
def folder(tmp_path):
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        yield state


@pytest.fixture(params=AGGREGATOR_STORES)
def stores(request):
    return AGGREGATOR_STORES[request.param](request)


@pytest.fixture
def file_stores():
    """Stores whose every step is died at: on PostgreSQL one step takes a second, and a transaction is one."""
    return SqliteStores()


@pytest.fixture
def files(folder):
    """The store whose disk these tests fill, read and share: one of files."""
    opened = SqliteStorage(folder)
    yield opened
    opened.close()


@pytest.fixture
def storage(stores, folder):
    opened = stores.open(folder)
    yield opened
    opened.close()


def _full(storage, engine_name):
    """Lets the database grow no further, as a full disk does."""
    engine = getattr(storage, engine_name).engine

    def limit(connection, _record):
        connection.execute("PRAGMA max_page_count=1")

    sqlalchemy.event.listen(engine, "connect", limit)
    engine.dispose()


def _change_schema(storage, *statements):
    """Runs statements in each database; ``{name}`` is the table with the number of its schema."""
    for engine in {storage._contributions.engine, storage._sealed.engine}:
        with engine.begin() as connection:
            for name in sqlalchemy.inspect(connection).get_table_names():
                for statement in statements if name.endswith("_schema") else ():
                    connection.exec_driver_sql(statement.format(name=name))


def test_a_store_of_a_newer_schema_is_refused_and_not_changed(stores, folder):
    with contextlib.closing(stores.open(folder)) as storage:
        storage.add([SealedContribution(TASK, 0, b"kept")])
        _change_schema(storage, "UPDATE {name} SET version_num = '0002'")
    with pytest.raises(StateError, match="0002 of a newer version"):
        stores.open(folder)


def test_a_store_of_a_release_without_numbers_is_brought_up_in_place(stores, folder):
    with contextlib.closing(stores.open(folder)) as storage:
        storage.add([SealedContribution(TASK, 0, b"kept")])
        storage.apply([SealedRecord("record", b"kept")])
        _change_schema(storage, "DROP TABLE {name}")
        with storage._contributions.engine.begin() as connection:
            storage._tables.parts.drop(connection)
    for _ in range(2):
        with contextlib.closing(stores.open(folder)) as storage:
            assert list(storage.contributions(TASK, 0)) == [b"kept"]
            assert storage.records() == {"record": b"kept"}
            storage.add_part(TASK, 0, b"part")
            _change_schema(storage, "UPDATE {name} SET version_num = '0001'")
    with contextlib.closing(stores.open(folder)) as storage:
        assert storage.parts(TASK, 0) == [b"part"] * 2


def test_contributions_come_back_in_order_by_task_and_round(storage):
    rows = [os.urandom(40) for _ in range(5)]
    for row in rows:
        storage.add([SealedContribution(TASK, 0, row)])
    storage.add([SealedContribution(TASK, 1, b"next round")])
    storage.add([SealedContribution(OTHER, 0, rows[0])])
    assert list(storage.contributions(TASK, 0)) == rows
    assert list(storage.contributions(TASK, 1)) == [b"next round"]
    assert list(storage.contributions(OTHER, 0)) == [rows[0]]
    assert list(storage.contributions(OTHER, 1)) == []


def test_pages_hold_all_rows(storage, monkeypatch):
    monkeypatch.setattr("trusted_aggregator.host.storage._PAGE", 3)
    rows = [os.urandom(8) for _ in range(10)]
    for row in rows:
        storage.add([SealedContribution(TASK, 0, row)])
    assert list(storage.contributions(TASK, 0)) == rows


def test_contributions_that_come_together_are_stored_together_or_not_at_all(storage):
    storage.add([SealedContribution(TASK, 0, b"first"), SealedContribution(TASK, 1, b"other round")])
    storage.add([])
    with pytest.raises(StateError, match="could not be stored"):
        storage.add([SealedContribution(TASK, 0, b"second"), SealedContribution(None, 0, b"of no task")])
    assert list(storage.contributions(TASK, 0)) == [b"first"]
    assert list(storage.contributions(TASK, 1)) == [b"other round"]


def test_what_add_returned_for_survives_an_abrupt_end(folder, files):
    files.add([SealedContribution(TASK, 0, b"row")])
    files.apply([SealedRecord("population/a", b"1")])
    again = SqliteStorage(folder)  # the first one was never closed
    assert list(again.contributions(TASK, 0)) == [b"row"]
    assert again.records() == {"population/a": b"1"}
    again.close()


def test_many_threads_share_commits_and_none_is_lost(storage):
    rows = [[os.urandom(16) for _ in range(20)] for _ in range(16)]

    def add(mine):
        for row in mine:
            storage.add([SealedContribution(TASK, 0, row)])

    threads = [threading.Thread(target=add, args=(mine,)) for mine in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.wait_for(TASK, 0, 320, timeout=1)
    assert sorted(storage.contributions(TASK, 0)) == sorted(row for mine in rows for row in mine)


def test_records_are_replaced_and_erased_together(storage):
    storage.apply([SealedRecord("a", b"1"), SealedRecord("b", b"2"), SealedRecord("release/x", b"3")])
    storage.apply([SealedRecord("a", b"4"), SealedRecord("b", None)])
    assert storage.records() == {"a": b"4"}
    assert storage.record("release/x") == b"3"
    assert storage.record("b") is None


def test_a_write_that_fails_half_way_changes_nothing(storage):
    storage.apply([SealedRecord("a", b"1")])
    with pytest.raises((sqlalchemy.exc.StatementError, TypeError)):  # the second is of the driver itself
        storage.apply([SealedRecord("a", b"2"), SealedRecord("b", object())])
    assert storage.records() == {"a": b"1"}


def test_a_full_disk_is_never_acknowledged_and_stops_all_further_contributions(folder, files):
    files.add([SealedContribution(TASK, 0, b"before")])
    _full(files, "_contributions")
    with pytest.raises(StateError, match="disk full"):
        files.add([SealedContribution(TASK, 0, bytes(100_000))])
    for call in (
        lambda: files.add([SealedContribution(TASK, 0, b"after")]),
        lambda: files.wait_for(TASK, 0, 9, timeout=1),
    ):
        with pytest.raises(StateError, match="disk full"):
            call()
    again = SqliteStorage(folder)
    assert list(again.contributions(TASK, 0)) == [b"before"]
    again.close()


def test_a_full_disk_leaves_the_sealed_records_as_they_were(files):
    files.apply([SealedRecord("a", b"1")])
    _full(files, "_sealed")
    with pytest.raises(StateError, match="disk full"):
        files.apply([SealedRecord("a", bytes(100_000))])
    assert files.records() == {"a": b"1"}


def test_waiting_for_what_never_comes_ends(storage):
    storage.add([SealedContribution(TASK, 0, b"row")])
    storage.wait_for(TASK, 0, 1, timeout=1)
    with pytest.raises(StateError, match="not stored in time"):
        storage.wait_for(TASK, 0, 2, timeout=0.05)


def test_erased_contributions_are_gone_from_the_files(folder, files):
    secret = os.urandom(32)
    files.add([SealedContribution(TASK, 0, secret)])
    files.add([SealedContribution(TASK, 1, b"stays")])
    assert any(secret in path.read_bytes() for path in folder.root.glob("contributions.db*"))
    files.erase(TASK, 0)
    files.finish_erasing()
    assert not any(secret in path.read_bytes() for path in folder.root.glob("contributions.db*"))
    assert list(files.contributions(TASK, 1)) == [b"stays"]


def test_keep_only_erases_rounds_that_are_over(storage):
    for task, number in ((TASK, 0), (TASK, 1), (OTHER, 0)):
        storage.add([SealedContribution(task, number, b"row")])
    storage.keep_only({(TASK, 1)})
    assert list(storage.contributions(TASK, 0)) == list(storage.contributions(OTHER, 0)) == []
    assert list(storage.contributions(TASK, 1)) == [b"row"]


def test_files_are_private(folder, files):
    assert {path.stat().st_mode & 0o777 for path in folder.root.glob("*.db")} == {0o600}


def test_a_closed_storage_refuses(stores, folder):
    storage = stores.open(folder)
    storage.close()
    storage.close()
    with pytest.raises(StateError, match="stopping"):
        storage.add([SealedContribution(TASK, 0, b"late")])


def test_a_file_that_is_no_database_is_a_one_line_error(folder):
    for name in ("contributions.db", "sealed.db"):
        folder.path(name).write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(StateError, match=r"damaged|not a database"):
        SqliteStorage(folder)


LARGE = b"large" + bytes(LARGE_BYTES)
VECTORS = [b"small vector", b"large vector" + bytes(LARGE_BYTES)]


def masked(vector, number=0):
    return SealedContribution(TASK, number, b"masked by ", hashlib.sha256(vector).digest(), vector)


def digests(*vectors):
    return [hashlib.sha256(vector).digest() for vector in vectors]


def test_large_ciphertexts_and_masked_vectors_come_back_whole_and_in_order(storage):
    given = [SealedContribution(TASK, 0, b"first"), SealedContribution(TASK, 0, LARGE), *map(masked, VECTORS)]
    storage.add(given)
    assert list(storage.contributions(TASK, 0)) == [one.stored for one in given]
    found = storage.masked(TASK, 0, digests(*VECTORS, b"not stored"))
    assert list(found) == list(zip(digests(*VECTORS), VECTORS, strict=True))
    assert list(storage.masked(TASK, 0, digests(VECTORS[1]))) == [(*digests(VECTORS[1]), VECTORS[1])]
    assert list(storage.masked(TASK, 1, digests(*VECTORS))) == []


def test_what_the_enclave_took_back_at_start_counts_as_stored(storage):
    storage.set_stored(TASK, 0, 3)
    storage.add([SealedContribution(TASK, 0, b"row")])
    storage.wait_for(TASK, 0, 4, timeout=1)
    with pytest.raises(StateError, match="not stored in time"):
        storage.wait_for(TASK, 1, 1, timeout=0.05)


def test_an_enclave_starts_with_the_records_and_the_ledger_entries_that_no_state_covers(storage):
    entries = [SealedRecord(ledger_key("a", number), b"a%d" % number) for number in range(5)]
    entries += [SealedRecord(ledger_key("b", number), b"b%d" % number) for number in range(2)]
    others = {"population/a": b"1", ledger_state_key("a"): numbered_state(3, b"sum")}
    storage.apply([*entries, *(SealedRecord(key, data) for key, data in others.items())])
    storage.apply([SealedRecord("noise/x", b"later"), SealedRecord("release/x", b"later")])
    behind = {record.key: record.data for record in entries if record.data not in (b"a0", b"a1", b"a2")}
    assert storage.records() == others | behind
    stored = sorted([*others, *(record.key for record in entries), "noise/x", "release/x"])
    assert storage.keys() == stored
    assert storage.keys(after=stored[3]) == stored[4:]
    assert [storage.record(key) for key in (ledger_key("a", 1), ledger_key("a", 9), "noise/x")] == [
        b"a1", None, b"later",
    ]  # fmt: skip
    assert [storage.holds(key) for key in ("noise/x", "noise/y", ledger_key("a", 1))] == [True, False, False]


def test_an_entry_of_a_ledger_is_replaced_by_one_of_its_number(storage):
    storage.apply([SealedRecord(ledger_key("a", 0), b"before"), SealedRecord(ledger_key("a", 1), b"next")])
    storage.apply([SealedRecord(ledger_key("a", 0), b"after")])
    assert storage.ledger_lines("a", 0, 2, most_bytes=100) == b"afternext"


@pytest.mark.parametrize(
    ("most_bytes", "lines"), [(0, b"0000"), (4, b"0000"), (7, b"0000"), (8, b"00001111"), (99, b"000011112222")]
)
def test_entries_of_a_ledger_come_in_order_and_as_many_as_fit(storage, most_bytes, lines):
    storage.apply([SealedRecord(ledger_key("a", number), b"%d" % number * 4) for number in (2, 0, 3, 1)])
    assert storage.ledger_lines("a", 0, 3, most_bytes=most_bytes) == lines
    assert storage.ledger_lines("a", 4, 9, most_bytes=most_bytes) == b""


def test_charters_come_by_number_within_a_limit_and_the_first_of_a_number_stays(storage):
    for number in (2, 0, 1, 0):
        storage.keep_charter("a", number, b"%d" % number)
    storage.keep_charter("a", 1, b"another")
    assert storage.charters("a", 0, 9) == [b"0", b"1", b"2"]
    assert storage.charters("a", 1, 1) == [b"1"]
    assert storage.charters("b", 0, 9) == []


def test_a_task_is_idle_since_somebody_worked_on_it_last(storage):
    storage.note_work(TASK, 1.5)
    storage.note_work(OTHER, 3.0)
    assert storage.idle(1.5) == []
    assert storage.idle(2.0) == [TASK]
    storage.note_work(TASK, 9.0, unless_noted=True)
    assert storage.idle(2.0) == [TASK]
    storage.note_work(TASK, 9.0)
    assert storage.idle(5.0) == [OTHER]
    storage.forget_work(OTHER)
    storage.forget_work(OTHER)
    assert storage.idle(1e12) == [TASK]


SECRET = b"to be erased" * 3


def _filled(storage):
    storage.add([SealedContribution(TASK, 0, SECRET), SealedContribution(TASK, 1, b"stays")])
    storage.add([SealedContribution(TASK, 0, SECRET + LARGE), masked(VECTORS[0]), masked(VECTORS[1])])
    storage.add([SealedContribution(OTHER, 0, SECRET + LARGE)])


def _recorded(storage):
    storage.apply([SealedRecord("a", b"1"), SealedRecord("b", SECRET), SealedRecord(ledger_key("a", 0), b"line")])


#: What precedes each change, and the change.
CHANGES = {
    "add": (_filled, lambda storage: storage.add([SealedContribution(TASK, 0, b"new"), masked(VECTORS[0], 1)])),
    "add large": (
        _filled,
        lambda storage: storage.add(
            [SealedContribution(TASK, 0, LARGE), SealedContribution(TASK, 2, LARGE), masked(VECTORS[1])]
        ),
    ),
    "add_part": (_filled, lambda storage: storage.add_part(TASK, 0, b"part")),
    "add_part large": (_filled, lambda storage: storage.add_part(TASK, 0, LARGE)),
    "erase": (_filled, lambda storage: storage.erase(TASK, 0)),
    "keep_only": (_filled, lambda storage: storage.keep_only([(TASK, 1)])),
    "apply": (
        _recorded,
        lambda storage: storage.apply(
            [SealedRecord("a", b"2"), SealedRecord("b", None), SealedRecord(ledger_key("a", 1), b"next"),
             SealedRecord("noise/x", b"3")]
        ),
    ),
    "write_pieces": (
        lambda storage: storage.apply([SealedRecord("noise/p", b"of pieces")]),
        lambda storage: storage.write_pieces(b"of pieces", [b"first", b"second"]),
    ),
    "keep_charter": (_recorded, lambda storage: storage.keep_charter("a", 0, b"charter")),
    "note_work": (lambda storage: storage.note_work(TASK, 1.0), lambda storage: storage.note_work(TASK, 2.0)),
    "forget_work": (lambda storage: storage.note_work(TASK, 1.0), lambda storage: storage.forget_work(TASK)),
}  # fmt: skip
#: A kill leaves some of the rounds that it is about; the next call erases them.
GRADUAL = ("keep_only",)


def _content(storage):
    """All that can be read of what these tests store."""
    rounds, names = list(itertools.product((TASK, OTHER), range(3))), storage.keys()
    return {
        "pieces": list(storage.pieces(b"of pieces")),
        "contributions": {key: list(storage.contributions(*key)) for key in rounds},
        "masked": {key: list(storage.masked(*key, digests(*VECTORS))) for key in rounds},
        "parts": {key: storage.parts(*key) for key in rounds},
        "records": {key: storage.record(key) for key in names},
        "to start with": storage.records(),
        "charters": storage.charters("a", 0, 9),
        "idle": [storage.idle(before) for before in (1.5, 9.0)],
    }


@contextlib.contextmanager
def _opened(stores, place):
    with StateFolder.open(place, "aggregator") as state:
        storage = stores.open(state)
        yield storage
        storage.close()


def _places(tmp_path):
    return (tmp_path / str(number) for number in itertools.count())


def test_parts_of_a_round_come_back_in_order_and_are_erased_with_it(stores, tmp_path):
    with _opened(stores, tmp_path / "one") as storage:
        for data in (b"first", LARGE, b"second"):
            storage.add_part(TASK, 0, data)
        storage.add_part(TASK, 1, b"of another round")
    with _opened(stores, tmp_path / "one") as storage:
        assert storage.parts(TASK, 0) == [b"first", LARGE, b"second"]
        storage.erase(TASK, 0)
        assert (storage.parts(TASK, 0), storage.parts(TASK, 1)) == ([], [b"of another round"])
        storage.keep_only([])
        assert storage.parts(TASK, 1) == []


def test_every_change_is_among_those_that_are_tested():
    reads = {
        "contributions", "masked", "records", "ledger_lines", "keys", "record", "pieces", "holds", "charters", "idle",
        "parts",
    }  # fmt: skip
    methods = {name for name in vars(Storage) if not name.startswith("_")}
    without_content = {"close", "wait_for", "set_stored", "finish_erasing"}
    assert methods - reads - without_content == {name.split()[0] for name in CHANGES}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_between_any_two_steps_leaves_all_of_a_change_or_nothing(name, file_stores, tmp_path):
    prepare, change = CHANGES[name]
    origin = tmp_path / "origin"
    with _opened(file_stores, origin) as storage:
        prepare(storage)
        before = _content(storage)

    def act(place, arm):
        with _opened(file_stores, place) as storage:
            arm()
            change(storage)
            os._exit(0)

    left, repeated = [], []
    for place, _ in deaths(act, (file_stores.copy(origin, place) for place in _places(tmp_path))):
        with _opened(file_stores, place) as storage:
            left.append(_content(storage))
            if left[-1] == before or name in GRADUAL:
                change(storage)
                repeated.append(_content(storage))
    assert left[0] == before != left[-1]
    assert name in GRADUAL or [number for number, one in enumerate(left) if one not in (before, left[-1])] == []
    assert [number for number, one in enumerate(repeated) if one != left[-1]] == []


@pytest.mark.slow
def test_what_was_being_erased_when_its_process_died_is_gone_once_a_program_has_started_again(file_stores, tmp_path):
    origin = tmp_path / "origin"
    with _opened(file_stores, origin) as storage:
        _filled(storage)

    def act(place, arm):
        with _opened(file_stores, place) as storage:
            arm()
            storage.erase(TASK, 0)
            storage.keep_only([(TASK, 1)])
            storage.finish_erasing()
            os._exit(0)

    for place, _ in deaths(act, (file_stores.copy(origin, place) for place in _places(tmp_path))):
        with _opened(file_stores, place) as storage:
            storage.keep_only([(TASK, 1)])
            storage.finish_erasing()
            assert list(storage.contributions(TASK, 1)) == [b"stays"]
            assert not file_stores.traces(place, SECRET)


def test_a_replaced_or_erased_record_leaves_no_trace(stores, tmp_path):
    with _opened(stores, tmp_path / "state") as storage:
        _recorded(storage)
        storage.apply([SealedRecord("b", b"another")])
    assert not stores.traces(tmp_path / "state", SECRET)


@pytest.mark.slow
def test_a_store_that_was_being_made_when_its_process_died_is_whole_at_the_next_start(file_stores, tmp_path):
    def act(place, arm):
        with StateFolder.open(place, "aggregator") as state:
            arm()
            file_stores.open(state)
            os._exit(0)

    for place, _ in deaths(act, _places(tmp_path)):
        with _opened(file_stores, place) as storage:
            for prepare, change in (*CHANGES.values(), (lambda _: None, lambda storage: storage.finish_erasing())):
                prepare(storage)
                change(storage)
            assert (storage.record("noise/x"), storage.charters("a", 0, 9)) == (b"3", [b"charter"])
            assert list(storage.contributions(TASK, 1)) != []

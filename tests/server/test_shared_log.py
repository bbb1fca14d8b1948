"""A log in a database that several servers append to: one tree for all, whoever dies in between."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.servers import PostgresqlStores, ServerStores, SqliteStores

from odp.crypto.note import NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.step import SignedStep
from odp.transport.logs import Log
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.endorsements import EndorsementFile
from odp.trust.log.log_files import LogFiles
from server.shared_log import SharedLog
from server.storage import Storage
from server.storage.leases import Deposed, Holder
from server.transparency import LogKeeper

KEY = NoteKey.generate("log.example")
NOW = 7.0


def clock() -> float:
    return NOW


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> ServerStores:
    if request.param == "sqlite":
        return SqliteStores()
    return PostgresqlStores(request.getfixturevalue("postgresql"))


@pytest.fixture
def storage(stores: ServerStores, tmp_path: Path) -> Iterator[Storage]:
    made = stores.open(tmp_path)
    yield made
    made.close()


def joined(storage: Storage, folder: Path, key: NoteKey = KEY) -> SharedLog:
    return SharedLog.join(folder, key, storage.log_rows, clock=clock)


def entries(log: LogFiles) -> list[bytes]:
    return [log.entry(index) for index in range(log.size)]


def test_what_one_server_appends_the_others_have_under_the_same_checkpoint(storage: Storage, tmp_path: Path) -> None:
    with joined(storage, tmp_path / "one") as one, joined(storage, tmp_path / "two") as two:
        assert one.append([b"a", b"b"], now=NOW) == [0, 1]
        assert two.append([b"c", b"a"], now=NOW) == [2, 0], "it takes in what it lacks first"
        assert not one.catch_up() or one.size == 3
        assert entries(one) == entries(two) == [b"a", b"b", b"c"]
        assert one.note == two.note
        assert one.append([b"b"], now=NOW) == [1]
        proof = one.consistency_proof(2, 3)
        assert proof == two.consistency_proof(2, 3)


def test_signatures_and_cosignatures_reach_the_others(storage: Storage, tmp_path: Path) -> None:
    with joined(storage, tmp_path / "one") as one, joined(storage, tmp_path / "two") as two:
        one.append([b"a"], now=NOW)
        one.sign_again(now=NOW + 60)
        assert two.catch_up()
        assert two.note == one.note
        assert not two.catch_up()
        body = one.checkpoint.body
        two.append([b"b"], now=NOW)
        assert not one.add_cosignatures(body, []), "of a tree that is not the newest any more"


def test_a_server_that_comes_later_has_all_of_it_and_one_with_files_of_its_own_brings_them(
    storage: Storage, tmp_path: Path
) -> None:
    many = [b"entry %d" % number for number in range(2500)]
    with LogFiles.open(tmp_path / "one", KEY, now=NOW) as alone:
        alone.append(many, now=NOW)
        note = alone.note
    with joined(storage, tmp_path / "one") as one, joined(storage, tmp_path / "two") as two:
        assert one.note == two.note == note
        assert entries(two) == many
        assert two.index_of(merkle.leaf_hash(many[2400])) == 2400


def test_a_log_of_another_key_or_with_other_entries_is_refused(storage: Storage, tmp_path: Path) -> None:
    with joined(storage, tmp_path / "one") as one:
        one.append([b"a"], now=NOW)
    with pytest.raises(StateError, match=r"copy log\.key of the other servers"):
        joined(storage, tmp_path / "two", NoteKey.generate("other.example"))
    for number, own in enumerate(([b"x"], [b"a", b"x"])):
        with LogFiles.open(tmp_path / f"three-{number}", KEY, now=NOW) as alone:
            alone.append(own, now=NOW)
        with pytest.raises(StateError, match="is not the one of"):
            joined(storage, tmp_path / f"three-{number}")
    with joined(storage, tmp_path / "one") as one:
        assert entries(one) == [b"a"]


def test_many_servers_append_at_once_and_each_entry_is_there_once(
    stores: ServerStores, storage: Storage, tmp_path: Path
) -> None:
    places = [stores.open(tmp_path) for _ in range(3)]
    logs = [joined(place, tmp_path / f"log-{number}") for number, place in enumerate(places)]
    start = threading.Barrier(3)

    def run(log: SharedLog) -> None:
        start.wait()
        for number in range(15):
            log.append([b"entry %d" % number], now=NOW)

    threads = [threading.Thread(target=run, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.catch_up()
    assert sorted(entries(logs[0])) == sorted(b"entry %d" % number for number in range(15))
    assert len({log.note for log in logs}) == 1
    for log in logs:
        log.close()
    for place in places:
        place.close()


def test_a_server_that_dies_before_or_after_the_commit_leaves_one_tree(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    with joined(storage, tmp_path / "two") as two:
        with joined(storage, tmp_path / "one") as one, monkeypatch.context() as patched:
            one.append([b"a"], now=NOW)
            patched.setattr(SharedLog, "_write", die)  # committed, and its own files know nothing
            with pytest.raises(Died):
                one.append([b"b"], now=NOW)
        assert two.append([b"c"], now=NOW) == [2]
        with joined(storage, tmp_path / "one") as one:
            assert entries(one) == [b"a", b"b", b"c"]
            with monkeypatch.context() as patched:
                patched.setattr(SharedLog, "_planned", die)  # nothing is committed
                with pytest.raises(Died):
                    one.append([b"d"], now=NOW)
            assert one.append([b"e"], now=NOW) == [3]
        assert two.catch_up()
        assert entries(two) == [b"a", b"b", b"c", b"e"]
        assert two.checkpoint == Checkpoint.from_body(two.checkpoint.body)


def test_a_deposed_leader_appends_nothing_and_what_is_overtaken_is_not_appended(
    storage: Storage, tmp_path: Path, stores: ServerStores
) -> None:
    leases = stores.open(tmp_path, lease_clock=lambda: times.pop(0))
    times = [0.0, 0.0, 10.0, 10.0]
    [old] = leases.leases.take([b"task"], Holder("one", "here"), seconds=3)
    leases.leases.take([b"task"], Holder("two", "there"), seconds=3)
    with joined(leases, tmp_path / "one") as one, joined(storage, tmp_path / "two") as two:
        with pytest.raises(Deposed), leases.leases.fenced(old):
            one.append([b"a"], now=NOW)
        assert one.size == 0
        two.append([b"b"], now=NOW)
        assert one.append([b"a"], now=NOW, unless=lambda: one.size == 1) == []
        assert entries(one) == entries(two) == [b"b"]
        with pytest.raises(ConfigurationError):
            one.append([b""], now=NOW)
    leases.close()


def test_all_servers_of_a_database_have_one_key_and_tables_are_changed_by_compare_and_set(storage: Storage) -> None:
    rows = storage.log_rows
    assert rows.shared_key("developer.key", "a") == "a"
    assert rows.shared_key("developer.key", "b") == "a"
    assert rows.table("films") is None
    assert rows.set_table("films", b"1", before=None)
    assert not rows.set_table("films", b"2", before=None)
    assert not rows.set_table("films", b"2", before=b"0")
    assert rows.set_table("films", b"2", before=b"1")
    assert (rows.table("films"), rows.count_tables()) == (b"2", 1)
    assert "films" in rows.where("films")


def test_servers_of_one_log_have_one_chain_of_each_catalogue(storage: Storage, tmp_path: Path) -> None:
    first = Catalogue.make("films", ["a", "b"])
    second, fork = first.change(add=["c"]), first.change(add=["fork"])
    key, silent = SigningKey.generate(), Log("server", stream=io.StringIO())
    with joined(storage, tmp_path / "one") as one, joined(storage, tmp_path / "two") as two:
        keepers = [LogKeeper(log, endorsements=EndorsementFile(), events=silent, clock=clock) for log in (one, two)]
        for step in second.steps:
            assert keepers[0].log_catalogue(SignedStep.by(key, step))
        assert keepers[1].catalogues.newest("films") is None, "it has not looked yet"
        assert keepers[1].catalogues.shared("films", 2) == second
        third = second.change(retire=["a"])
        keepers[0].log_catalogue(SignedStep.by(key, third.steps[2]))
        with pytest.raises(ConfigurationError, match="was published with other items"):
            keepers[1].log_catalogue(SignedStep.by(key, second.change(add=["late"]).steps[2]))
        with pytest.raises(ConfigurationError, match="was published with other items"):
            keepers[1].log_catalogue(SignedStep.by(key, fork.steps[1]))
        assert not keepers[1].log_catalogue(SignedStep.by(key, third.steps[2])), "the same one is published already"
        assert entries(one) == entries(two)

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from device_runtime_ledger import TASK, participation, prepare, terms
from stores import decrypted

from device_runtime.person.decisions import Person
from device_runtime.person.limits import Limits
from device_runtime.store.schema import SCHEMA_VERSION, State
from device_runtime.store.store import Store, store_path
from odp.errors import PrivacyError, Refusal, StateError
from odp.v1 import common_pb2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_path(tmp_path, 7)


def test_a_new_store_keeps_its_random_identity(path: Path) -> None:
    with Store.open_or_create(path) as store:
        made = store.identity()
    with Store.open(path) as store:
        assert store.identity() == made
    with Store.open_or_create(path) as store:
        assert store.identity() == made
    with Store.open_or_create(path.with_name("8.sqlite")) as other:
        assert other.identity().secret != made.secret
        assert other.identity().seed != made.seed


def test_the_identity_shows_no_secret_when_it_is_printed(path: Path) -> None:
    with Store.open_or_create(path, random_bytes=lambda n: b"\x5a" * n) as store:
        shown = repr(store.identity())
    assert "secret" not in shown
    assert str(int.from_bytes(b"\x5a" * 8, "little")) not in shown


def test_only_the_owner_can_read_a_store_or_its_journal(path: Path) -> None:
    with Store.open_or_create(path) as store:
        store._connection.execute("BEGIN IMMEDIATE")
        store._connection.execute("INSERT INTO ratings (item, value) VALUES (1, 2.0)")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        store._connection.execute("ROLLBACK")
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_ratings_come_back_ascending_and_a_device_without_any_has_empty_arrays(path: Path) -> None:
    with Store.open_or_create(path) as store:
        assert store.ratings().items.shape == store.ratings().values.shape == (0,)
        assert store.fill(np.array([9, 3]), np.array([1.5, 4.0]), filled_from=b"x")
        assert not store.fill(np.array([9, 3]), np.array([1.5, 4.0]), filled_from=b"x")
        store.rate(5, 2.0)
        ratings = store.ratings()
    assert ratings.items.tolist() == [3, 5, 9]
    assert ratings.values.tolist() == [4.0, 2.0, 1.5]
    assert ratings.items.dtype == np.int64
    assert ratings.values.dtype == np.float64


def test_a_store_that_holds_other_data_is_never_overwritten(path: Path) -> None:
    with Store.open_or_create(path) as store:
        store.fill(np.array([1]), np.array([2.0]), filled_from=b"x")
        with pytest.raises(StateError, match="other data"):
            store.fill(np.array([1]), np.array([3.0]), filled_from=b"y")
        assert store.ratings().values.tolist() == [2.0]


def test_a_second_contribution_to_one_round_is_impossible(path: Path) -> None:
    with Store.open_or_create(path) as store:
        prepare(store, participation(), local_parameters=b"1")
        with pytest.raises(StateError, match="already has a contribution to round 0"):
            prepare(store, participation(), local_parameters=b"2")
        assert store.local_parameters(TASK) == (0, b"1")
        store.settle(TASK, 0, State.SENT)
        with pytest.raises(StateError, match="already has a contribution to round 0"):
            prepare(store, participation(), local_parameters=b"2")


@pytest.mark.parametrize(
    ("state", "refusal"), [(State.SENT, None), (State.REFUSED, Refusal.ROUND_CLOSED)], ids=["sent", "refused"]
)
def test_an_answer_erases_what_was_kept_for_sending_but_no_report(
    path: Path, state: State, refusal: Refusal | None
) -> None:
    with Store.open_or_create(path) as store:
        prepare(store, participation(), local_parameters=b"1")
        assert store.settled() == []
        store.settle(TASK, 0, state, refusal)
        known = store.participation(TASK, 0)
        assert known is not None
        assert (known.state, known.refusal, known.report, known.sealed) == (state, refusal, b"report", None)
        store.settle(TASK, 0, State.REFUSED, Refusal.MALFORMED)
        assert store.participation(TASK, 0) == known
        assert store.settled() == [(TASK, 0, known.recipient, state)]


def test_a_later_round_erases_the_bytes_of_an_unanswered_one(path: Path) -> None:
    with Store.open_or_create(path) as store:
        prepare(store, participation(0), local_parameters=b"1")
        prepare(store, participation(1), local_parameters=b"2")
        first, second = store.ledger()
    assert (first.state, first.report, first.sealed) == (State.PREPARED, None, None)
    assert (second.state, second.report, second.sealed) == (State.PREPARED, b"report", b"sealed")


def test_the_charged_contributions_are_all_but_the_refused_ones_and_know_their_terms(path: Path) -> None:
    with Store.open_or_create(path) as store:
        for round in range(3):
            prepare(store, participation(round, task=b"a" * 32), name="first")
        prepare(store, participation(task=b"b" * 32), name="second")
        store.settle(b"a" * 32, 0, State.SENT)
        store.settle(b"b" * 32, 0, State.REFUSED, Refusal.ROUND_CLOSED)
    with Store.open(path) as store:
        charged = store.charged()
        assert [(one.terms, one.round) for one in charged] == [(terms(b"a" * 32, name="first"), n) for n in range(3)]
        assert [one.round for one in store.charged(but=(b"a" * 32, 1))] == [0, 2]
        assert {one.name for one in store.tasks()} == {"first", "second"}


def test_declined_tasks_are_remembered_up_to_a_bound_and_cost_nothing(path: Path) -> None:
    definition = common_pb2.TaskDefinition()
    definition.data.table, definition.dpam.steps = "ratings", 1
    signed = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=b"s" * 64)
    with Store.open_or_create(path) as store:
        for number in range(40):
            store.declined(signed, terms(bytes([number]) * 32), 3)
        assert len(store.tasks()) == 32
        assert (store.offered(b"\x00" * 32), store.offered(bytes([39]) * 32)) == (3, 0)
        store.declined(signed, terms(b"\x00" * 32), 2)
        assert store.offered(b"\x00" * 32) == 3
        assert store.charged() == []
        prepare(store, participation(task=bytes([39]) * 32))  # what is contributed to is always kept
        assert len(store.charged()) == 1


def test_what_a_person_decided_is_there_when_the_store_is_opened_again(path: Path) -> None:
    limits = Limits(max_epsilon=1.5, populations=("one", "two"), tables=("ratings",))
    with Store.open_or_create(path) as store:
        assert store.person() == Person()
        store.set_limits(limits)
        store.change_person(lambda person: dataclasses.replace(person, paused=3.0).with_opt_out("films", 4.0))
    with Store.open(path) as store:
        assert store.person() == Person(limits=limits, paused=3.0, opt_outs={"films": 4.0})


def test_an_opt_out_cancels_what_is_queued_and_forgets_parameters_of_that_task_alone(path: Path) -> None:
    with Store.open_or_create(path) as store:
        prepare(store, participation(task=b"a" * 32), name="first")
        prepare(store, participation(task=b"b" * 32), name="second")
        store.change_person(lambda person: person.with_opt_out("first", 1.0))
        first, second = (store.participation(task, 0) for task in (b"a" * 32, b"b" * 32))
        assert first is not None
        assert second is not None
        assert (first.report, first.sealed, second.sealed) == (None, None, b"sealed")
        assert (store.local_parameters(b"a" * 32), store.local_parameters(b"b" * 32)) == (None, (0, b"local"))
        assert len(store.charged()) == 2  # it may have arrived before
        with pytest.raises(PrivacyError, match="opted out"):
            prepare(store, participation(1, task=b"a" * 32), name="first")
        store.change_person(lambda person: person.with_opt_out(None, 2.0))
        assert store.local_parameters(b"b" * 32) is None


def test_an_answer_that_comes_after_an_opt_out_is_still_stored(path: Path) -> None:
    with Store.open_or_create(path) as store:
        prepare(store, participation())
        store.change_person(lambda person: person.with_opt_out(TASK.hex(), 1.0))
        store.settle(TASK, 0, State.SENT)
        assert store.ledger()[0].state is State.SENT


@pytest.mark.slow
def test_erasing_leaves_no_byte_of_the_data_in_the_file_and_keeps_the_ledger(path: Path) -> None:
    values, secret = np.arange(300) + 0.123456789, b"what was trained" * 40
    with Store.open_or_create(path) as store:
        identity = store.identity()
        store.fill(np.arange(300), values, filled_from=b"hash of the data")
        prepare(store, dataclasses.replace(participation(), report=secret, sealed=secret), local_parameters=secret)
        kept = [struct.pack(">d", value) for value in values.tolist()] + [secret[:64], b"hash of the data"]
        plain, encrypted = decrypted(path), path.read_bytes()
        assert all(one in plain for one in kept)
        assert not any(one in encrypted for one in kept)
        store.set_limits(Limits(max_epsilon=3.0))
        store.erase()
        plain = decrypted(path)
        assert not any(one in plain for one in kept)
        assert store.first("PRAGMA freelist_count") == (0,)
        assert store.ratings().items.size == 0
        assert not store.fill(np.arange(300), values, filled_from=b"hash of the data")
        assert store.ratings().items.size == 0
        assert len(store.charged()) == 1
        store.erase(ledger_too=True)
        assert (store.ledger(), store.charged(), store.tasks()) == ((), [], ())
        assert store.identity() == identity
        assert store.person().limits == Limits(max_epsilon=3.0)


def test_a_ledger_whose_terms_are_damaged_is_never_read_as_nothing_spent(path: Path) -> None:
    for statement in (
        "DELETE FROM tasks", "UPDATE tasks SET charges = 'x'", "UPDATE tasks SET charges = '[[{}]]'",
        "UPDATE tasks SET charges = '[]'", "UPDATE tasks SET definition = x'ff'",
    ):  # fmt: skip
        path.unlink(missing_ok=True)
        with Store.open_or_create(path) as store:
            prepare(store, participation())
            store._connection.execute(statement)
            with pytest.raises(StateError, match="damaged"):
                store.charged()


def test_decisions_that_cannot_be_read_are_never_read_as_no_limits(path: Path) -> None:
    for data in ("{", "[]", '{"limits": {}}', '{"limits": null, "paused": null, "opted_out": null, "other": 1}'):
        path.unlink(missing_ok=True)
        with Store.open_or_create(path) as store:
            store._connection.execute("INSERT INTO person VALUES (1, ?)", (data,))
            with pytest.raises(StateError, match="damaged"):
                store.person()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\x07" * 4000])
def test_a_damaged_file_is_named_in_one_line(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StateError, match=str(path)) as caught, Store.open(path) as store:
        store.ratings()
    assert "\n" not in str(caught.value)


def test_damage_in_the_middle_of_a_file_is_named_too(path: Path) -> None:
    with Store.open_or_create(path) as store:
        store.fill(np.arange(500), np.full(500, 3.0), filled_from=b"x")
    content = bytearray(path.read_bytes())
    content[1024:] = b"\xff" * (len(content) - 1024)
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"7\.sqlite is damaged"), Store.open(path) as store:
        store.ratings()


def test_a_missing_store_and_a_store_of_another_version_say_so(path: Path) -> None:
    with pytest.raises(StateError, match="does not exist"):
        Store.open(path)
    with Store.open_or_create(path) as store:
        store._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match=f"version {SCHEMA_VERSION + 1}"):
        Store.open(path)


def test_a_store_whose_making_was_interrupted_is_made_again(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with pytest.raises(StateError, match="never completed"):
        Store.open(path)
    with Store.open_or_create(path) as store:
        assert len(store.identity().secret) == 32


def _prepare_and_die(path: str, at: str) -> None:
    store = Store.open(Path(path))

    def die(statement: str) -> None:
        if statement.startswith(at):
            os.kill(os.getpid(), signal.SIGKILL)

    store._connection.set_trace_callback(die)
    prepare(store, participation(), local_parameters=b"local")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("at", "kept"),
    [
        ("BEGIN", False),
        ("UPDATE participations", False),
        ("INSERT INTO tasks", False),
        ("INSERT INTO participations", False),
        ("INSERT OR REPLACE INTO local_parameters", False),
        ("COMMIT", False),
        ("never", True),
    ],
)
def test_a_kill_leaves_a_participation_and_its_parameters_whole_or_absent(path: Path, at: str, kept: bool) -> None:
    with Store.open_or_create(path) as store:
        identity = store.identity()
    process = multiprocessing.get_context("fork").Process(target=_prepare_and_die, args=(str(path), at))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Store.open(path) as store:
        assert store.identity() == identity
        assert (store.participation(TASK, 0) is not None) is kept
        assert (store.local_parameters(TASK) is not None) is kept
        if not kept:
            prepare(store, participation(), local_parameters=b"local")


def test_a_filled_store_is_small(tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0), durable=False) as store:
        store.fill(np.arange(165), np.full(165, 3.0), filled_from=b"x")
    assert max(path.stat().st_size for path in tmp_path.rglob("*.sqlite")) < 29_000

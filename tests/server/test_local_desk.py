"""The desk of local reports and what it stores: each report counts once, and what is refused is named."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from conformance.servers import PostgresqlStores, ServerStores, SqliteStores

import odp
from odp.algorithms.local_seam import LocalReporter
from odp.crypto.signing import SigningKey
from odp.errors import Busy, ConfigurationError, Refusal, StateError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource
from odp.signed.task import check_definition, open_task, sign_task, task_sha256
from odp.transport.logs import Log
from odp.v1 import common_pb2
from server.local import desk as desk_module
from server.local.desk import Desk
from server.local.steps import reporter_of
from server.storage import Storage, TaskRecord
from server.storage.reports import NewReport

KEY = SigningKey.from_bytes(hashlib.sha256(b"local desk").digest())
SECONDS = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> ServerStores:
    """Both kinds of database; PostgreSQL is skipped where it is not installed."""
    if request.param == "sqlite":
        return SqliteStores()
    return PostgresqlStores(request.getfixturevalue("postgresql"))


@pytest.fixture
def storage(stores: ServerStores, tmp_path: Path) -> Iterator[Storage]:
    opened = stores.open(tmp_path)
    yield opened
    opened.close()


def added(storage: Storage, task: odp.DrawAndDiscard | odp.Statistics) -> tuple[bytes, LocalReporter]:
    signed = sign_task(task.definition(), KEY)
    definition, sha256 = open_task(signed), task_sha256(signed)
    storage.add_task(TaskRecord(sha256, definition.name, "people", signed.definition, signed.signature, 0))
    reporter = reporter_of(definition)
    assert reporter is not None
    return sha256, reporter


def model(**changes: object) -> odp.DrawAndDiscard:
    given: dict[str, object] = {
        "name": "clicks", "features": {"x": odp.Number(size=7)}, "epsilon": 2.0, "instances": 5, "false_alarms": 0.0
    }  # fmt: skip
    return odp.DrawAndDiscard(**{**given, **changes})  # type: ignore[arg-type]


def statistics(goal: int = 100) -> odp.Statistics:
    return odp.Statistics(
        name="seen", trust="local", queries={"seen": odp.Histogram(bins=5)},
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-6), cohort=odp.Cohort(minimum=2, goal=goal),
    )  # fmt: skip


def identity(number: int) -> bytes:
    return number.to_bytes(32, "big")


def answer(done: Future[Refusal | None] | None) -> Refusal | None:
    assert done is not None
    return done.result(SECONDS)


def honest(desk: Desk, sha256: bytes, reporter: LocalReporter, seed: int) -> bytes:
    drawn = desk.draw(sha256)
    assert drawn is not None
    return reporter.empty_report(drawn, source=RandomSource(SeededNoise(seed)))


@pytest.fixture
def desk(storage: Storage) -> Iterator[Desk]:
    opened = Desk(storage.reports, log=Log("server"))
    yield opened
    opened.stop()


def test_a_report_becomes_one_row_and_counts_once(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, model())
    desk.open(sha256, reporter)
    before = storage.reports.rows(sha256)
    assert before == reporter.first_rows()
    sent = honest(desk, sha256, reporter, 1)
    for _ in range(3):
        assert answer(desk.report(sha256, identity(1), sent)) is None
    after = storage.reports.rows(sha256)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert sent in after
    assert (desk.count(sha256), storage.reports.count(sha256)) == (1, 1)
    assert desk.draw(sha256) in after


def test_a_restart_goes_on_with_what_was_stored(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, model())
    desk.open(sha256, reporter)
    for number in range(40):
        assert answer(desk.report(sha256, identity(number), honest(desk, sha256, reporter, number))) is None
    again = Desk(storage.reports, log=Log("server"))
    again.open(sha256, reporter)
    assert again.count(sha256) == 40
    assert {again.draw(sha256) for _ in range(200)} == set(storage.reports.rows(sha256))
    assert answer(again.report(sha256, identity(0), honest(again, sha256, reporter, 0))) is None
    assert again.count(sha256) == 40, "an id of before counts once"
    again.stop()


def test_reports_that_are_kept_are_summed_up(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, statistics())
    desk.open(sha256, reporter)
    assert desk.draw(sha256) == b""
    for number in range(30):
        assert answer(desk.report(sha256, identity(number), (number % 3).to_bytes(4, "little"))) is None
    count, summary = desk.summary(sha256, reporter)
    assert count == 30
    assert np.frombuffer(summary, "<i8")[:3].tolist() == [10, 10, 10]
    assert reporter.answers_of_summary(summary, reports=count).contributions == 30


@pytest.mark.parametrize(
    ("report", "refusal"),
    [
        (b"", Refusal.MALFORMED),
        (bytes(31), Refusal.MALFORMED),
        (bytes(33), Refusal.MALFORMED),
        (b"\xff\xff\xff\x7f" * 8, Refusal.OUT_OF_BOUNDS),
        (b"\x00\x00\x00\x80" * 8, Refusal.OUT_OF_BOUNDS),
    ],
)
def test_what_no_honest_device_sends_is_refused_by_name(
    storage: Storage, desk: Desk, report: bytes, refusal: Refusal
) -> None:
    sha256, reporter = added(storage, model())
    desk.open(sha256, reporter)
    assert answer(desk.report(sha256, identity(1), report)) is refusal
    assert storage.reports.rows(sha256) == reporter.first_rows()
    assert storage.reports.count(sha256) == 0


def test_spam_is_refused_and_a_report_that_was_taken_is_not_when_it_comes_again(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, model(instances=20, false_alarms=0.01))
    desk.open(sha256, reporter)
    rows = np.stack([np.frombuffer(row, "<i4") for row in storage.reports.rows(sha256)])
    spam = (rows.mean(axis=0) + 100 * rows.std(axis=0)).astype("<i4").tobytes()
    assert answer(desk.report(sha256, identity(1), spam)) is Refusal.OUT_OF_BOUNDS
    assert answer(desk.report(sha256, identity(2), storage.reports.rows(sha256)[0])) is None
    # The same id with whatever content: it was taken, and nothing changes.
    kept = storage.reports.rows(sha256)
    assert answer(desk.report(sha256, identity(2), spam)) is None
    assert storage.reports.rows(sha256) == kept


def test_a_task_takes_exactly_the_reports_that_it_asks_for(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, statistics(goal=10))
    desk.open(sha256, reporter)
    answers = [desk.report(sha256, identity(number), bytes(4)) for number in range(50)]
    refusals = [answer(done) for done in answers]
    assert refusals.count(None) == 10
    assert set(refusals) == {None, Refusal.ROUND_CLOSED}
    assert desk.is_full(sha256)
    assert storage.reports.count(sha256) == 10
    first = refusals.index(None)
    assert answer(desk.report(sha256, identity(first), bytes(4))) is None, "one of the ten, again"


def test_a_task_that_is_over_refuses_by_name_unless_the_report_was_taken(storage: Storage, desk: Desk) -> None:
    sha256, reporter = added(storage, statistics())
    desk.open(sha256, reporter)
    assert answer(desk.report(sha256, identity(1), bytes(4))) is None
    desk.close(sha256)
    assert desk.draw(sha256) is None
    assert desk.report(sha256, identity(2), bytes(4)) is None
    assert answer(desk.refuse(sha256, identity(2), Refusal.TASK_ABANDONED)) is Refusal.TASK_ABANDONED
    assert answer(desk.refuse(sha256, identity(1), Refusal.TASK_ABANDONED)) is None


def test_a_disk_that_fails_answers_nobody_and_stores_nothing(
    storage: Storage, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, reporter = added(storage, statistics(goal=10))
    desk.open(sha256, reporter)

    def fail(reports: list[NewReport]) -> list[bool]:
        raise StateError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(storage.reports, "take", fail)
        done = desk.report(sha256, identity(1), bytes(4))
        with pytest.raises(StateError, match="disk full"):
            answer(done)
    assert storage.reports.count(sha256) == 0
    refusals = [answer(desk.report(sha256, identity(number), bytes(4))) for number in range(11)]
    assert refusals == [None] * 10 + [Refusal.ROUND_CLOSED], "what failed takes no place"


def test_strangers_fill_no_memory(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    taking, going_on = threading.Event(), threading.Event()
    take = storage.reports.take

    def slow(reports: list[NewReport]) -> list[bool]:
        taking.set()
        assert going_on.wait(SECONDS)
        return take(reports)

    monkeypatch.setattr(desk_module, "_MOST_WAITING_BYTES", 10 * (1024 + 4))
    monkeypatch.setattr(storage.reports, "take", slow)
    desk = Desk(storage.reports, log=Log("server"))
    sha256, reporter = added(storage, statistics())
    desk.open(sha256, reporter)
    waiting = [desk.report(sha256, identity(number), bytes(4)) for number in range(10)]
    assert taking.wait(SECONDS)
    with pytest.raises(Busy):
        desk.report(sha256, identity(11), bytes(4))
    going_on.set()
    assert [answer(done) for done in waiting] == [None] * 10
    desk.stop()
    with pytest.raises(StateError, match="ends"):
        desk.report(sha256, identity(12), bytes(4))
    assert storage.reports.count(sha256) == 10, "what waited was stored before the end"


def test_many_threads_at_once_lose_nothing(storage: Storage, desk: Desk) -> None:
    """64 threads draw and report; of each id two of them send a report, of which one counts."""
    sha256, reporter = added(storage, model())
    desk.open(sha256, reporter)
    errors: list[BaseException] = []

    def device(number: int) -> None:
        try:
            for turn in range(10):
                sent = honest(desk, sha256, reporter, number)
                assert answer(desk.report(sha256, identity(10 * (number // 2) + turn), sent)) is None
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=device, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert desk.count(sha256) == storage.reports.count(sha256) == 320
    rows = storage.reports.rows(sha256)
    assert len(rows) == 5
    assert {desk.draw(sha256) for _ in range(200)} == set(rows)


def test_r397_a_server_that_starts_while_its_clock_is_ahead_counts_no_report_twice(
    stores: ServerStores, tmp_path: Path
) -> None:
    now = [1000.0]
    storage = stores.open(tmp_path, clock=lambda: now[0])
    sha256, reporter = added(storage, model())
    before = Desk(storage.reports, log=Log("server"))
    before.open(sha256, reporter)
    sent = honest(before, sha256, reporter, 1)
    assert answer(before.report(sha256, identity(1), sent)) is None
    before.stop()
    now[0] += 400 * 86_400.0
    ahead = Desk(storage.reports, log=Log("server"))
    ahead.open(sha256, reporter)
    for number in (2, 1, 1):  # the answer to the first one was lost
        assert answer(ahead.report(sha256, identity(number), sent)) is None
    assert ahead.count(sha256) == storage.reports.count(sha256) == 2
    ahead.stop()
    storage.close()


def test_ids_are_forgotten_once_no_device_sends_them_again(stores: ServerStores, tmp_path: Path) -> None:
    now = [1000.0]
    storage = stores.open(tmp_path, clock=lambda: now[0])
    sha256, reporter = added(storage, model())
    kept, counter = added(storage, statistics())
    storage.reports.begin(sha256, reporter.first_rows())
    row = reporter.first_rows()[0]
    assert storage.reports.take([NewReport(sha256, identity(1), 0, row), NewReport(kept, identity(1), None, bytes(4))])
    now[0] += desk_module.ID_SECONDS - 1
    storage.reports.forget_ids(before=now[0] - desk_module.ID_SECONDS)
    assert storage.reports.has(sha256, identity(1))
    now[0] += 2
    storage.reports.forget_ids(before=now[0] - desk_module.ID_SECONDS)
    assert not storage.reports.has(sha256, identity(1))
    assert storage.reports.has(kept, identity(1)), "a report that is kept is no mere id"
    assert (storage.reports.count(sha256), storage.reports.count(kept)) == (1, 1)
    assert counter.report_bytes == len(storage.reports.all_reports(kept))
    storage.close()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.cohort.__setattr__("minimum", 5), "no cohort"),
        (lambda d: d.broadcast.__setattr__("method", 2), "broadcast"),
        (lambda d: d.privacy.__setattr__("delta", 1e-6), "an epsilon alone"),
        (lambda d: d.privacy.__setattr__("epsilon", 0.0), "epsilon=0"),
        (lambda d: d.privacy.__setattr__("epsilon", 1.0), "at least that of"),
        (lambda d: d.draw_and_discard.__setattr__("most_reports", 2000), "most_reports"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused_when_the_task_is_made(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = model().definition()
    definition.developer_key = KEY.public
    check_definition(definition)
    spoil(definition)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (model(epsilon=2000.0), "at most 10000"),
        (model(features={"x": odp.Number(size=2**15)}, family="multinomial", classes=9, epsilon=0.01), "one message"),
    ],
)
def test_reports_beyond_what_a_device_or_a_message_takes_are_refused(task: odp.DrawAndDiscard, message: str) -> None:
    definition = task.definition()
    definition.developer_key = KEY.public
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


def test_two_servers_take_reports_of_one_task_and_each_learns_of_the_others(
    stores: ServerStores, storage: Storage, desk: Desk, tmp_path: Path
) -> None:
    second = stores.open(tmp_path)
    other = Desk(second.reports, log=Log("server"))
    try:
        sha256, reporter = added(storage, model(instances=1))
        desk.open(sha256, reporter)
        other.open(sha256, reporter)
        reports = [honest(desk, sha256, reporter, seed) for seed in range(6)]
        for number, report in enumerate(reports):
            one, two = (desk, other) if number % 2 else (other, desk)
            assert answer(one.report(sha256, identity(number), report)) is None
            two.reread(sha256)
            # The change of rows is made by the writer's thread, in its turn: this report comes after it.
            assert answer(two.report(sha256, identity(number), report)) is None, "it counts once"
            assert one.draw(sha256) == two.draw(sha256) == report
        assert desk.count(sha256) == other.count(sha256) == 6
        assert desk.summary(sha256, reporter)[0] == 6
    finally:
        other.stop()
        second.close()

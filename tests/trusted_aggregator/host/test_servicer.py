"""The host's order of writes and replies, without a network."""

from __future__ import annotations

import threading

import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto.refusals import KEY_BYTES, refusal_holds
from odp.errors import BudgetExceeded, Refusal, StateError
from odp.transport.sweeping import DAY
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.host import ingest
from trusted_aggregator.host.config import IDLE_DAYS
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import population_key, release_key

SECONDS = 60.0


class Host(StoredHost):
    """A world's enclave behind its real storage, without devices' streams."""

    def submit(self, device):
        request = aggregator_pb2.SubmitRequest(
            task_sha256=self.world.task_sha256, round=0, sealed_contribution=self.world.sealed(device)
        )
        refused = self.service.submit(request).result(SECONDS)
        return None if refused is None else refused.refusal

    def stored(self):
        return list(self.storage.contributions(self.world.task_sha256, 0))


@pytest.fixture
def host(make_world, tmp_path):
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        opened = Host(make_world(minimum=3), state)
        opened.open()
        yield opened
        opened.end()


@pytest.fixture
def gate(host, monkeypatch):
    """Commits of contributions wait until the gate is set."""
    event = threading.Event()
    commit = SqliteStorage._commit

    def slow(storage, contributions):
        event.wait(SECONDS)
        return commit(storage, contributions)

    monkeypatch.setattr(SqliteStorage, "_commit", slow)
    yield event
    event.set()


def _in_thread(call, *arguments):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call(*arguments)))
    thread.start()
    return thread, answers


def _until(condition):
    deadline = threading.Event()
    for _ in range(int(SECONDS * 1000)):
        if condition():
            return
        deadline.wait(0.001)
    raise AssertionError("waited in vain")


def test_the_charge_is_stored_only_after_every_contribution_of_its_set(host, gate):
    submits = [_in_thread(host.submit, device) for device in range(3)]

    def state():
        return host.core.round_state(host.world.task_sha256, 0)

    _until(lambda: state().contributions == 3)
    uncharged = host.storage.record(population_key(host.world.population))
    closing, releases = _in_thread(host.close_round)
    _until(lambda: state().status is Status.CHARGED)
    late, refusals = _in_thread(host.submit, 9)
    closing.join(0.05)
    assert closing.is_alive()
    assert host.storage.record(population_key(host.world.population)) == uncharged
    gate.set()
    closing.join(SECONDS)
    for thread, answers in submits:
        thread.join(SECONDS)
        assert answers == [None]
    late.join(SECONDS)
    assert refusals == [Refusal.ROUND_CLOSED]
    assert len(releases) == 1


def _signed(host, sealed, refused):
    """Whether the device of these bytes leaves them out of its ledger."""
    return refusal_holds(
        refused.signature, refused.refusal, signing_key=host.world.identity.signing.public,
        task_sha256=host.world.task_sha256, round=0, hpke_key=host.world.round_key(), sealed=sealed, masked=b"",
    )  # fmt: skip


def _submit(host, sealed):
    request = aggregator_pb2.SubmitRequest(task_sha256=host.world.task_sha256, round=0, sealed_contribution=sealed)
    return host.service.submit(request).result(SECONDS)


def _stream(host, sealed):
    header = aggregator_pb2.SubmitHeader(task_sha256=host.world.task_sha256, round=0, sealed_key=sealed[:KEY_BYTES])
    return host.service.submit_stream(iter([aggregator_pb2.SubmitStreamRequest(header=header)]), None)


def _masked(host, sealed):
    request = aggregator_pb2.SubmitRequest(
        task_sha256=host.world.task_sha256, round=0, sealed_contribution=sealed, masked_vector=b"v" * 8
    )
    return host.service.submit(request).result(SECONDS)


@pytest.fixture
def closing(host, gate):
    """Closes the round: its set is frozen, and the charge is in force once the gate is set."""
    submits = [_in_thread(host.submit, device) for device in range(3)]
    _until(lambda: host.core.round_state(host.world.task_sha256, 0).contributions == 3)
    thread, _ = _in_thread(host.close_round)
    _until(lambda: host.core.round_state(host.world.task_sha256, 0).status is Status.CHARGED)
    yield thread
    gate.set()
    for each, _ in submits:
        each.join(SECONDS)
    thread.join(SECONDS)


@pytest.mark.parametrize("come", [_submit, _stream, _masked])
def test_r402_what_comes_between_closing_and_charge_is_refused_under_a_signature_once_the_charge_is_in_force(
    host, gate, closing, come
):
    late = [host.world.sealed(device) for device in range(9, 12)]
    answers = [_in_thread(come, host, sealed) for sealed in late]
    closing.join(0.05)
    assert [refused for _, refused in answers] == [[], [], []], "nobody can say yet"
    gate.set()
    for sealed, (thread, answered) in zip(late, answers, strict=True):
        thread.join(SECONDS)
        (refused,) = answered
        assert refused.refusal is Refusal.ROUND_CLOSED
        assert _signed(host, sealed, refused)


def test_r402_where_the_round_stays_open_after_all_the_contribution_counts(host, monkeypatch):
    for device in range(3):
        assert host.submit(device) is None
    frozen, failing = threading.Event(), threading.Event()

    def charge(*arguments, **named):
        frozen.set()
        failing.wait(SECONDS)
        raise BudgetExceeded("too much")

    def close():
        with pytest.raises(BudgetExceeded):
            host.close_round()

    with monkeypatch.context() as patch:
        patch.setattr(Population, "charge", charge)
        closing, _ = _in_thread(close)
        assert frozen.wait(SECONDS)
        late, answers = _in_thread(host.submit, 9)
        closing.join(0.05)
        assert answers == []
        failing.set()
        for thread in (late, closing):
            thread.join(SECONDS)
    assert answers == [None]
    assert len(host.stored()) == 4


def test_r402_few_wait_for_a_charge_and_who_comes_beyond_them_is_answered_at_once(host, closing, monkeypatch):
    monkeypatch.setattr(ingest, "_MOST_HELD", 0)
    refused = _submit(host, host.world.sealed(9))
    assert (refused.refusal, refused.signature) == (Refusal.ROUND_CLOSED, b"")
    assert closing.is_alive()


def test_r402_without_a_change_under_way_nobody_waits_for_one(host):
    for device in range(3):
        assert host.submit(device) is None
    host.close_round()
    host.restart()
    refused = _submit(host, host.world.sealed(9))
    assert (refused.refusal, refused.signature) == (Refusal.ROUND_CLOSED, b""), "a start remembers no set"


def test_a_retry_is_told_that_it_was_counted_only_once_that_is_stored(host, gate):
    first, _ = _in_thread(host.submit, 1)
    _until(lambda: host.core.round_state(host.world.task_sha256, 0).contributions == 1)
    retry, answers = _in_thread(host.submit, 1)
    retry.join(0.05)
    assert answers == []
    gate.set()
    retry.join(SECONDS)
    first.join(SECONDS)
    assert answers == [Refusal.ALREADY_CONTRIBUTED]
    assert len(host.stored()) == 1


def test_after_the_release_the_host_has_erased_the_contributions(host):
    for device in range(3):
        host.submit(device)
    assert len(host.stored()) == 3
    host.close_round()
    assert host.stored() == []


def test_what_a_crash_left_of_a_released_round_is_erased_at_the_next_start(host, monkeypatch):
    for device in range(3):
        host.submit(device)
    with monkeypatch.context() as killed:
        killed.setattr(SqliteStorage, "erase", lambda *arguments: None)
        signed = host.close_round()
    assert len(host.stored()) == 3
    host.end()
    host.begin()
    assert host.stored() == []
    assert host.close_round() == signed


def test_a_release_that_was_stored_but_not_put_in_force_is_given_by_the_next_close(host, monkeypatch):
    """The platform failed in between, and nothing was restarted: the round must not stay closed without a release."""
    for device in range(3):
        host.submit(device)
    commit = host.core.calls.commit

    def failing_after_the_seal(request):
        if host.storage.record(release_key(host.world.task_sha256, 0)) is not None:
            raise StateError("the platform does not answer")
        commit(request)

    with monkeypatch.context() as failing:
        failing.setattr(host.core.calls, "commit", failing_after_the_seal)
        with pytest.raises(StateError, match="does not answer"):
            host.close_round()
    signed = host.close_round()
    assert host.close_round() == signed
    assert host.log.getvalue().count("round_charged") == 1


def test_a_crash_between_charge_and_release_resumes_from_the_files(host, monkeypatch):
    for device in range(4):
        host.submit(device)
    apply = SqliteStorage.apply

    def killed_at_the_release(storage, writes):
        if any(record.key.startswith("release/") for record in writes):
            raise KeyboardInterrupt
        apply(storage, writes)

    with monkeypatch.context() as killed:
        killed.setattr(SqliteStorage, "apply", killed_at_the_release)
        with pytest.raises(KeyboardInterrupt):
            host.close_round()
    assert host.storage.record(release_key(host.world.task_sha256, 0)) is None
    host.end()
    host.begin()
    assert "round_resumed" in host.log.getvalue()
    signed = host.close_round()
    assert host.close_round() == signed
    assert host.log.getvalue().count("round_charged") == 1


def test_a_record_that_cannot_be_stored_stops_the_program(host, monkeypatch):
    def full(storage, writes):
        raise StateError("database x: disk full")

    for device in range(3):
        host.submit(device)
    with monkeypatch.context() as broken:
        broken.setattr(SqliteStorage, "apply", full)
        with pytest.raises(StateError, match="disk full"):
            host.close_round()
    assert [str(error) for error in host.failures] == ["database x: disk full"]
    host.end()
    host.begin()
    host.close_round()


def test_logs_hold_no_contribution_and_no_full_identifier(host):
    for device in range(3):
        host.submit(device)
    host.close_round()
    text = host.log.getvalue()
    assert host.world.task_sha256.hex() not in text
    for device in range(3):
        contribution = host.world.contribution(device)
        assert contribution.contribution_id.hex() not in text
        assert contribution.pseudonym.hex()[:12] not in text


def test_contributions_that_wait_share_one_message_and_one_commit_and_each_gets_its_own_answer(host, gate, monkeypatch):
    batches, commits = [], []
    submit_batch, commit = type(host.service._core).submit_batch, SqliteStorage._commit
    monkeypatch.setattr(
        type(host.service._core),
        "submit_batch",
        lambda core, submits: batches.append(len(submits)) or submit_batch(core, submits),
    )
    monkeypatch.setattr(
        SqliteStorage, "_commit", lambda storage, rows: commits.append(len(rows)) or commit(storage, rows)
    )
    submits = [_in_thread(host.submit, device) for device in (0, 1, 1, 2, 3, 4, 5, 6)]
    _until(lambda: sum(batches) == 8)
    gate.set()
    for thread, _ in submits:
        thread.join(SECONDS)
    answers = [answer for _, found in submits for answer in found]
    assert answers.count(None) == 7
    assert answers.count(Refusal.ALREADY_CONTRIBUTED) == 1
    assert sum(commits) == len(host.stored()) == 7
    assert len(commits) <= 2, "all that came while the first commit ran was stored in the second"


def test_where_the_enclave_is_gone_every_submission_is_told(host, monkeypatch):
    def gone(core, submits):
        raise StateError("the enclave ended by itself")

    monkeypatch.setattr(type(host.service._core), "submit_batch", gone)
    for _ in range(2):
        with pytest.raises(StateError, match="ended by itself"):
            host.submit(1)
    assert host.stored() == []


def test_a_service_that_is_closed_takes_nothing_more(host):
    host.submit(0)
    host.service.close()
    with pytest.raises(StateError, match="stopping"):
        host.submit(1)
    assert len(host.stored()) == 1


def test_a_task_that_came_without_times_of_work_is_forgotten_as_any_other(make_world, tmp_path):
    """As by a hand-over between two rounds; what it would have spent does not keep others out for ever."""
    policy = EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=9.0, population_delta=1e-6)
    world = make_world(minimum=3, policy=policy)
    world.open()
    world.fill(range(3))
    world.learn(world.close())
    other = world.sign(world.definition(minimum=3, epsilon=7.0, name="songs"))
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = Host(world, state)
        with pytest.raises(BudgetExceeded, match="with what its tasks under way will spend"):
            host.core.check_task(other)
        host.wait(1.01 * IDLE_DAYS * DAY)
        host.control.sweep()
        host.core.check_task(other)
        host.end()

"""What devices do after a hand-over made openings of rounds void, and servers that claim so (R371, R398, R399)."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from device_runtime.person.ledger import TaskTerms, spent
from device_runtime.person.limits import Limits
from device_runtime.round.participation import Outcome, Participant
from device_runtime.store.retention import Retention, prune
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.crypto import domains
from odp.crypto.refusals import MOST_VOIDED
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError, Refusal, ServiceUnavailable
from odp.privacy.local_charge import LocalCharge
from odp.signed.task import sign_task, task_sha256
from odp.v1 import aggregator_pb2, common_pb2
from tests.device_runtime.conftest import POLICIES
from tests.device_runtime.round import test_participation as participation
from tests.device_runtime.round.test_participation import Killed, take_part


def charged(world: Any, device: int = 0) -> list[int]:
    with world.store(device) as store:
        return [one.round for one in store.charged()]


def test_r371_what_counted_in_a_void_opening_costs_nothing_and_the_device_contributes_to_the_next(world: Any) -> None:
    world.fill([5])
    assert take_part(world, 0) is Outcome.SENT
    world.void_round()
    assert world.aggregator.counted == {}
    assert take_part(world, 0) is Outcome.SENT
    assert len(world.aggregator.counted) == 1
    assert charged(world) == [0], "once, for the opening that counts"
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == 2
    with world.store(0) as store:
        (line,) = store.ledger()
        assert (line.state, line.recipient) == (State.SENT, world.aggregator.enclave.round_key.public)
        assert [one.outcome for one in store.assignments()] == ["sent"]


def test_an_answer_that_was_lost_with_a_void_opening_costs_nothing(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["lose the answer"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    assert charged(world) == [0]
    world.void_round()
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [0]


def test_r370_a_device_whose_bytes_were_refused_under_a_signature_contributes_to_the_next_opening(world: Any) -> None:
    """It came to the old enclave after the hand-over."""
    world.fill([5])
    world.aggregator.script = [f"refuse {Refusal.ROUND_CLOSED.value}"]
    assert take_part(world, 0) is Outcome.REFUSED
    assert take_part(world, 0) is Outcome.SETTLED, "the same opening"
    assert charged(world) == []
    world.open_again()
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [0]


@pytest.mark.parametrize("lie", ["unsigned", "another enclave", "another round", "another key"])
def test_r371_a_server_that_claims_a_void_opening_gets_no_second_contribution(world: Any, lie: str) -> None:
    world.fill([5])
    take_part(world, 0)
    if lie == "another enclave":
        world.void_round(signing=SigningKey.generate())
    elif lie == "another round":
        world.void_round(round=1)
    else:
        world.void_round()
        (voided,) = world.server.assignment.round_key.voided
        if lie == "unsigned":
            voided.signature = bytes(64)
        else:
            voided.hpke_key = world.aggregator.enclave.hpke.public
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == 1
    assert charged(world) == [0], "it may have been counted"
    assert world.aggregator.enclave.asked <= 2


@pytest.mark.parametrize("died", ["settle", "prepare"])
def test_a_death_at_either_write_leaves_one_charge_for_the_opening_that_counts(
    world: Any, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    world.fill([5])
    take_part(world, 0)
    world.void_round()

    with monkeypatch.context() as patch:
        patch.setattr(Store, died, die)
        with pytest.raises(Killed):
            take_part(world, 0)
    assert charged(world) == ([0] if died == "settle" else [])
    assert len(world.aggregator.submits) == 1
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [0]


def test_a_device_with_a_token_gets_the_same_token_for_the_next_opening(admitting: Any) -> None:
    admitting.fill([5])
    assert take_part(admitting, 0) is Outcome.SENT
    admitting.void_round()
    assert take_part(admitting, 0) is Outcome.SENT
    assert len(admitting.aggregator.counted) == 1


@pytest.fixture
def private(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A world in which each contribution is a report that is private by itself, of which a device may send two."""
    charge = LocalCharge((("vector", 1.0),), 2)
    real = participation.work_of

    def local(world: Any) -> Work:
        work = real(world)
        terms = dataclasses.replace(work.model.terms, local=charge)
        return dataclasses.replace(work, model=dataclasses.replace(work.model, terms=terms))

    monkeypatch.setattr(participation, "work_of", local)
    world.fill([5])
    return world


def newest_report(world: Any) -> bytes:
    """Of the newest contribution that came to the opening of now."""
    info = domains.contribution_info(world.task_id, world.round, world.model_id, POLICIES["aggregator"].sha256)
    opened = world.aggregator.enclave.round_key.open(world.aggregator.submits[-1], info)
    return aggregator_pb2.Contribution.FromString(opened).payload


def change_data(world: Any) -> None:
    """Of device 0: a report that was made now would be another one. The first round of the task reads items alone."""
    with world.store(0) as store, store.transaction():
        store.execute("DELETE FROM ratings WHERE item = (SELECT min(item) FROM ratings)")


@pytest.mark.parametrize("answer", ["answer", "lose the answer", f"refuse {Refusal.ROUND_CLOSED.value}", "lie 3"])
def test_r371_a_report_that_is_private_by_itself_is_sent_again_as_it_is_and_paid_once(
    private: Any, answer: str
) -> None:
    """It costs what left the device, whether or not it counted: another randomisation would cost again."""
    private.aggregator.script = [answer]
    with contextlib.suppress(ServiceUnavailable):
        take_part(private, 0)
    first = newest_report(private)
    change_data(private)
    private.void_round()
    assert take_part(private, 0) is Outcome.SENT
    assert newest_report(private) == first
    assert take_part(private, 0) is Outcome.SETTLED
    assert len(private.aggregator.submits) == 2
    with private.store(0) as store:
        assert len(store.charged(refused=True)) == 1


@pytest.mark.parametrize("died", ["settle", "prepare_again", "sent"])
def test_a_death_at_either_write_sends_the_same_report_once_more(
    private: Any, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    take_part(private, 0)
    first = newest_report(private)
    private.void_round()
    change_data(private)
    with monkeypatch.context() as patch:
        if died == "settle":
            patch.setattr(Store, "settle", die)
        elif died == "prepare_again":
            patch.setattr("device_runtime.round.participation.prepare_again", die)
        else:
            patch.setattr(Participant, "_send", die)
        with pytest.raises(Killed):
            take_part(private, 0)
    assert take_part(private, 0) is Outcome.SENT
    assert newest_report(private) == first
    with private.store(0) as store:
        assert [one.round for one in store.charged(refused=True)] == [0]


@pytest.mark.parametrize("why", ["another model", "an opt-out", "its age", "an erasure", "no signature"])
def test_r371_no_report_that_is_private_by_itself_is_made_for_a_round_twice(private: Any, why: str) -> None:
    """Where the report of before cannot be sent, none is."""
    take_part(private, 0)
    if why == "no signature":
        private.open_again()
    else:
        private.void_round()
    with private.store(0) as store:
        if why == "another model":
            with store.transaction():
                store.execute("UPDATE participations SET model_sha256 = ?", (bytes(32),))
        elif why == "an opt-out":
            store.change_person(lambda person: person.with_opt_out("films", 1.0))
            store.change_person(lambda person: dataclasses.replace(person, opt_outs={}))
        elif why == "its age":
            (line,) = store.ledger()
            for day in (29, 30, 31):
                prune(store, Retention(), now=line.time + day * 86_400.0)
                assert (store.ledger()[0].report is None) == (day == 31)
        elif why == "an erasure":
            store.erase()
    assert take_part(private, 0) is Outcome.SETTLED
    assert len(private.aggregator.submits) == 1
    with private.store(0) as store:
        assert [one.round for one in store.charged(refused=True)] == [0]


def test_a_report_goes_with_the_next_round_and_no_other_contribution_leaves_one(private: Any) -> None:
    take_part(private, 0)
    private.close_round()
    assert take_part(private, 0) is Outcome.SENT
    with private.store(0) as store:
        assert [one.report is None for one in store.ledger()] == [True, False]


def test_what_is_private_in_sums_alone_leaves_no_report(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    with world.store(0) as store:
        (line,) = store.ledger()
        assert line.report is None


def die(*args: Any, **named: Any) -> None:
    raise Killed


def next_round(world: Any) -> None:
    """The round is released, and the next one is open; its key comes with the same void openings."""
    voided = list(world.server.assignment.round_key.voided)
    world.close_round()
    world.open_again()
    world.server.assignment.round_key.voided.extend(voided)


def filled_by_others(world: Any) -> None:
    """Device 0 contributed to an opening that is void now; device 1 fills the round, and the next one is open."""
    world.fill([5, 5])
    assert take_part(world, 0) is Outcome.SENT
    world.void_round()
    assert take_part(world, 1) is Outcome.SENT
    next_round(world)
    assert charged(world) == [0]


def test_r398_a_device_that_was_away_while_others_filled_the_round_takes_its_charge_back_with_the_next_one(
    world: Any,
) -> None:
    filled_by_others(world)
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [1]
    with world.store(0) as store:
        assert [(one.round, one.state) for one in store.ledger()] == [(0, State.REFUSED), (1, State.SENT)]
        assert [one.outcome for one in store.assignments()] == ["refused", "sent"]
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.counted) == 1
    world.open_again()
    assert take_part(world, 0) is Outcome.SETTLED, "without a statement about this round"
    assert charged(world) == [1]


def test_r398_a_charge_for_nothing_does_not_keep_a_device_from_the_round_that_brings_the_word_of_it(world: Any) -> None:
    filled_by_others(world)
    with world.store(0) as store:
        (line,) = store.charged()
    next_one = spent([dataclasses.replace(line, round=1)], delta=1e-5).epsilon
    tight = world.participant(limits=Limits(min_cohort=2, max_total_epsilon=1.01 * next_one))
    assert take_part(world, 0, tight) is Outcome.SENT
    assert charged(world) == [1]


def test_r398_a_device_takes_its_charge_back_though_it_declines_the_task_that_brings_the_word(world: Any) -> None:
    filled_by_others(world)
    with pytest.raises(PrivacyError, match="max_epsilon"):
        take_part(world, 0, world.participant(limits=Limits(min_cohort=2, max_epsilon=0.1)))
    assert charged(world) == []


def line_of_another_task(world: Any, recipient: bytes) -> bytes:
    """A contribution of device 0 to round 2 of another task, sealed to ``recipient``; the task's id."""
    definition = common_pb2.TaskDefinition.FromString(world.task.definition)
    definition.name = "others"
    task = sign_task(definition, world.developer)
    terms = TaskTerms.of(definition, task_sha256(task))
    line = Participation(
        task_sha256=terms.task_sha256, round=2, contribution_id=bytes(32), model_sha256=bytes(32), recipient=recipient,
        epsilon=8.0, delta=1e-6, policy_sha256=bytes(32), image_digest="", time=0.0, sealed=b"s",
    )  # fmt: skip
    with world.store(0) as store:
        store.prepare(line, local_parameters=None, task=task, terms=terms)
        store.settle(line.task_sha256, 2, State.SENT)
    return line.task_sha256


def statement(world: Any, task: bytes, round: int, key: bytes, *, names: bytes | None = None) -> common_pb2.VoidedKey:
    """What the enclave would sign of ``key``, if it is void; ``names`` is the key that a server names with it."""
    signature = world.aggregator.enclave.signing.sign(domains.VOIDED_KEY, domains.voided_key(task, round, key))
    return common_pb2.VoidedKey(hpke_key=key if names is None else names, signature=signature)


def test_r398_a_round_of_another_task_of_the_population_brings_the_word_too(world: Any) -> None:
    world.fill([5])
    task = line_of_another_task(world, b"k" * 32)
    world.server.assignment.round_key.voided.append(statement(world, task, 2, b"k" * 32))
    assert charged(world) == [2]
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [0]


def test_r398_a_device_that_dies_before_it_stores_what_it_takes_back_does_so_at_the_next_start(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled_by_others(world)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "settle", die)
        with pytest.raises(Killed):
            take_part(world, 0)
    assert charged(world) == [0]
    with monkeypatch.context() as patch:
        patch.setattr(Store, "prepare", die)
        with pytest.raises(Killed):
            take_part(world, 0)
    assert charged(world) == []
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [1]


@pytest.mark.parametrize(
    "lie", ["none", "its signature names the counted key", "another round", "another task", "another enclave", "a key"]
)
def test_r399_a_server_makes_no_contribution_free_that_counted(world: Any, lie: str) -> None:
    """The device contributed to both openings of round 0. The statement about the first one is true, and holds."""
    world.fill([5])
    void = world.aggregator.enclave.round_key.public
    take_part(world, 0)
    world.void_round()
    counted = world.aggregator.enclave.round_key.public
    assert take_part(world, 0) is Outcome.SENT
    next_round(world)
    forged = {
        "its signature names the counted key": statement(world, world.task_id, 0, void, names=counted),
        "another round": statement(world, world.task_id, 1, counted),
        "another task": statement(world, bytes(32), 0, counted),
        "another enclave": common_pb2.VoidedKey(
            hpke_key=counted,
            signature=SigningKey.generate().sign(domains.VOIDED_KEY, domains.voided_key(world.task_id, 0, counted)),
        ),
        "a key": common_pb2.VoidedKey(hpke_key=counted, signature=world.server.assignment.round_key.signature),
    }
    if lie in forged:
        world.server.assignment.round_key.voided.insert(0, forged[lie])
    for _ in range(2):
        take_part(world, 0)
        assert charged(world) == [0, 1]
    assert len(world.aggregator.submits) == 3


def test_r399_nothing_calls_a_contribution_to_a_session_back(world: Any) -> None:
    """Its host alone can unmask a sum of sessions, so no enclave knows what was released."""
    world.fill([5])
    line_of_another_task(world, b"")
    world.server.assignment.round_key.voided.add(hpke_key=b"", signature=bytes(64))
    assert take_part(world, 0) is Outcome.SENT
    assert charged(world) == [2, 0]


def test_r399_more_statements_than_an_enclave_signs_are_one_refusal(world: Any) -> None:
    for number in range(MOST_VOIDED + 1):
        world.server.assignment.round_key.voided.add(hpke_key=number.to_bytes(32, "big"), signature=bytes(64))
    with pytest.raises(ConfigurationError, match="at most 256 void openings"):
        participation.work_of(world)

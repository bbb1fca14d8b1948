from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services, Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.verification import FOLDER, Records, record_path
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from device_runtime.tasks.answers import AnswerReader
from device_runtime.tasks.assignment import Work, open_assignment
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges
from odp.crypto import domains
from odp.crypto.hpke import HpkeKey
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import (
    AttestationError,
    ConfigurationError,
    PrivacyError,
    Refusal,
    ServiceError,
    ServiceUnavailable,
)
from odp.privacy.accounting import epsilon
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import sign_manifest, sign_task, task_sha256
from odp.v1 import aggregator_pb2, server_pb2
from tests.device_runtime.conftest import signed_refusal


class Killed(BaseException):
    """Stands for the death of the process."""


def work_of(world: Any) -> Work:
    return open_assignment(world.server.assignment, population="people")


def take_part(world: Any, device: int, participant: Participant | None = None) -> Outcome:
    with world.store(device) as store:
        return (participant or world.participant()).take_part(store, work_of(world), Traffic())


def test_a_device_takes_part_once_and_a_repeated_run_sends_nothing(world: Any) -> None:
    world.fill([5])
    participant = world.participant()
    assert take_part(world, 0, participant) is Outcome.SENT
    assert take_part(world, 0, participant) is Outcome.SETTLED
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == len(world.aggregator.counted) == len(world.distributor.sizes) == 1
    with world.store(0) as store:
        (line,) = store.ledger()
    assert (line.state, line.round, line.epsilon, line.delta) == (State.SENT, 0, 8.0, 1e-6)
    (policy,) = world.reference_values().policy_sha256["aggregator"]
    assert line.policy_sha256.hex() == policy
    assert line.image_digest == world.aggregator.enclave.image
    assert line.report is None
    assert line.sealed is None


def test_the_contribution_is_what_the_algorithm_computes_under_the_devices_ids(world: Any) -> None:
    ratings = world.fill([5])
    take_part(world, 0)
    with world.store(0) as store:
        identity, data = store.identity(), store.ratings()
        parameters = store.local_parameters(world.task_id)
    assert data.items.tolist() == ratings.items.tolist()
    (found,) = world.aggregator.counted.values()
    assert found.contribution_id == domains.contribution_id(identity.secret, world.task_id, 0)
    assert found.pseudonym == domains.pseudonym(identity.secret, world.task_id)
    client = world.algorithm.client()
    work = work_of(world)
    broadcast = world.distributor.broadcast
    slices = Slices(0, data.items, broadcast.keyed.rows[data.items], broadcast.dense)
    payload, local = client.contribute(slices, {ROWS: data}, round=work.round, seed=identity.seed)
    assert found.payload == payload
    assert parameters == (0, local)


@pytest.mark.parametrize("round", [0, 1, 2])
def test_devices_with_no_one_and_five_hundred_items_look_alike_from_outside(world: Any, round: int) -> None:
    world.fill([0, 1, 500])
    world.open_round(round)
    participant = world.participant()
    traffic = []
    for device in range(3):
        with world.store(device) as store:
            traffic.append(Traffic())
            assert participant.take_part(store, work_of(world), traffic[-1]) is Outcome.SENT
    assert len({len(sealed) for sealed in world.aggregator.submits}) == 1
    assert len(set(world.distributor.sizes)) == 1
    assert traffic[0] == traffic[1] == traffic[2]
    assert [len(keys) for keys in world.distributor.keys] == [40, 40, 40]


def test_the_keys_are_the_devices_items_and_padding_repeats_one_of_them(world: Any) -> None:
    ratings = world.fill([3])
    take_part(world, 0)
    (keys,) = world.distributor.keys
    assert sorted(set(keys.tolist())) == ratings.items.tolist()


@pytest.mark.parametrize("role", ["distributor", "aggregator"])
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"image_digests": {}}, "wrong_image"),
        ({"policy_sha256": {}}, "wrong_policy"),
        ({"roots": ()}, "wrong_root"),
        ({"allow_emulated": False}, "emulated_not_allowed"),
    ],
    ids=["image", "policy", "root", "emulated"],
)
def test_evidence_that_is_not_accepted_means_that_nothing_is_sent(
    world: Any, role: str, lie: dict[str, Any], reason: str
) -> None:
    world.fill([5])
    pinned = world.reference_values()
    for name, value in lie.items():
        if isinstance(value, dict):  # of one role alone
            value = {other: kept for other, kept in getattr(pinned, name).items() if other != role}
        pinned = dataclasses.replace(pinned, **{name: value})
    with pytest.raises(AttestationError) as caught:
        take_part(world, 0, world.participant(reference_values=pinned))
    assert caught.value.reason == reason
    assert f"{role} at 127.0.0.1" in str(caught.value) or not isinstance(next(iter(lie.values())), dict)
    assert world.distributor.sizes == []
    assert world.aggregator.submits == []
    with world.store(0) as store:
        assert store.ledger() == ()


def test_one_verification_serves_many_devices_until_it_expires(world: Any) -> None:
    world.fill([5, 5, 5])
    participant = world.participant()
    take_part(world, 0, participant)
    take_part(world, 1, participant)
    assert (world.distributor.enclave.asked, world.aggregator.enclave.asked) == (1, 1)
    participant.enclaves._clock = lambda: time.time() + 3601
    with pytest.raises(AttestationError, match="expired"):
        take_part(world, 2, participant)
    assert len(world.aggregator.submits) == 2


def test_a_declined_task_asks_nobody_for_anything(world: Any) -> None:
    world.fill([5])
    with pytest.raises(PrivacyError, match="max_epsilon=7"):
        take_part(world, 0, world.participant(limits=Limits(max_epsilon=7.0, min_cohort=2)))
    assert world.distributor.enclave.asked == world.aggregator.enclave.asked == 0


def test_the_devices_own_limits_come_before_the_hosts(world: Any) -> None:
    world.fill([5, 5])
    with world.store(0) as store:
        store.set_limits(Limits(max_epsilon=1.0, min_cohort=2))
    with world.store(1) as store:
        store.set_limits(Limits(min_cohort=2))
    with pytest.raises(PrivacyError):
        take_part(world, 0)
    assert take_part(world, 1, world.participant(limits=Limits(max_epsilon=1.0))) is Outcome.SENT


def test_a_lowered_limit_keeps_a_prepared_contribution_from_being_sent(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    with world.store(0) as store:
        store.set_limits(Limits(max_epsilon=0.0))
    with pytest.raises(PrivacyError):
        take_part(world, 0)
    assert len(world.aggregator.submits) == 1


def test_a_submit_without_an_answer_is_repeated_with_the_same_bytes(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["unavailable", "error"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    with pytest.raises(ServiceError, match="no such round"):
        take_part(world, 0)
    with world.store(0) as store:
        store.rate(1, 5.0)  # new data must not become a second contribution
    assert take_part(world, 0) is Outcome.SENT
    assert len(world.aggregator.submits) == 3
    assert len(set(world.aggregator.submits)) == 1
    assert len(world.distributor.sizes) == 1


def test_an_answer_that_was_lost_counts_as_sent_when_the_enclave_says_already_contributed(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["lose the answer"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    assert take_part(world, 0) is Outcome.SENT
    assert len(world.aggregator.counted) == 1
    with world.store(0) as store:
        assert store.ledger()[0].state is State.SENT


@pytest.mark.parametrize("step", ["task", "evidence", "select", "contribute", "record", "prepare", "submit", "settle"])
def test_a_device_that_dies_at_any_step_sends_one_contribution_in_the_end(
    world: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([5])
    participant = world.participant()
    place: tuple[object, str] = {
        "task": (Gate, "task"),
        "evidence": (type(participant.services), "evidence"),
        "select": (type(participant.services), "select"),
        "record": (Records, "keep"),
        "contribute": (type(work_of(world).model.client), "contribute"),
        "prepare": (Store, "prepare"),
        "submit": (type(participant.services), "submit"),
        "settle": (Store, "settle"),
    }[step]
    original = getattr(*place)

    def die_after(*args: Any, **keywords: Any) -> None:
        original(*args, **keywords)
        raise Killed

    def die_before(*args: Any, **keywords: Any) -> None:
        raise Killed

    for death in (die_before, die_after):
        with monkeypatch.context() as patch:
            patch.setattr(*place, death)
            with pytest.raises(Killed):
                take_part(world, 0)
        with world.store(0) as store:  # what may have been counted is charged, at any moment
            assert len(store.charged()) >= len(world.aggregator.counted)
        if death is die_after and step == "settle":
            assert take_part(world, 0) is Outcome.SETTLED
            continue
    if step != "settle":
        assert take_part(world, 0) is Outcome.SENT
    assert len(world.aggregator.counted) == 1
    assert len(set(world.aggregator.submits)) == 1
    with world.store(0) as store:
        (line,) = store.ledger()
        assert [(one.terms.task_sha256, one.round) for one in store.charged()] == [(world.task_id, 0)]
    assert line.state is State.SENT
    assert record_path(world.folder / "devices-state" / FOLDER, line.record).exists()


def test_a_contribution_that_the_aggregator_did_not_count_is_not_charged_after_a_death_either(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([5])
    world.aggregator.script = [f"refuse {Refusal.OUT_OF_BOUNDS.value}"] * 2

    def die(*args: Any, **keywords: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Store, "settle", die)
        with pytest.raises(Killed):
            take_part(world, 0)
    with world.store(0) as store:
        assert len(store.charged()) == 1  # the answer was lost: it may have been counted
    assert take_part(world, 0) is Outcome.REFUSED
    with world.store(0) as store:
        assert store.charged() == []


def test_a_device_seals_once_for_a_round_and_gives_it_up_where_it_comes_back_with_another_key(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["lose the answer"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, 0)
    world.open_again()
    assert take_part(world, 0) is Outcome.SETTLED
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == 1
    with world.store(0) as store:
        (line,) = store.ledger()
        assert len(store.charged()) == 1  # it was counted: nothing says that it was not
    assert (line.state, line.sealed, line.report) == (State.PREPARED, None, None)


def test_a_key_by_an_enclave_that_was_renewed_is_used_after_fresh_evidence_alone(world: Any) -> None:
    world.fill([5, 5, 5])
    participant = world.participant()
    take_part(world, 0, participant)
    world.aggregator.enclave.signing = SigningKey.generate()
    world.open_again()
    assert take_part(world, 1, participant) is Outcome.SENT
    assert world.aggregator.enclave.asked == 2
    world.aggregator.enclave.signing = SigningKey.generate()
    world.aggregator.enclave.image = "sha384:" + "0" * 96
    world.open_again()
    submits = len(world.aggregator.submits)
    with pytest.raises(AttestationError, match="wrong_image"):
        take_part(world, 2, participant)
    assert len(world.aggregator.submits) == submits


def _without_key(world: Any) -> None:
    world.server.assignment.ClearField("round_key")


def _hosts_own_key(world: Any) -> None:
    world.server.assignment.round_key.hpke_key = HpkeKey.generate().public


def _hosts_own_signature(world: Any) -> None:
    world.server.assignment.round_key.signature = bytes(64)


def _key_of_another_round(world: Any) -> None:
    world.round += 1
    world.server.assignment.round_key.CopyFrom(world.round_key())


def _key_of_another_model(world: Any) -> None:
    world.model_id = bytes(32)
    world.server.assignment.round_key.CopyFrom(world.round_key())


def _key_of_another_task(world: Any) -> None:
    world.task_id = bytes(32)
    world.server.assignment.round_key.CopyFrom(world.round_key())


@pytest.mark.parametrize(
    "lie",
    [
        _without_key, _hosts_own_key, _hosts_own_signature, _key_of_another_round, _key_of_another_model,
        _key_of_another_task,
    ],
)  # fmt: skip
def test_a_key_that_the_enclave_did_not_sign_for_this_round_means_that_nothing_is_sent(world: Any, lie: Any) -> None:
    world.fill([5])
    lie(world)
    with pytest.raises(AttestationError, match="wrong_round_key"):
        take_part(world, 0)
    assert world.distributor.sizes == world.aggregator.submits == []
    with world.store(0) as store:
        assert store.charged() == []


CODES = [Refusal.ROUND_CLOSED, Refusal.OUT_OF_BOUNDS, Refusal.WRONG_MODEL, Refusal.MALFORMED]


@pytest.mark.parametrize("refusal", [*CODES, Refusal.TASK_ABANDONED, Refusal.WRONG_ROUND, Refusal.WRONG_TASK])
def test_a_device_whose_counted_contribution_is_called_refused_charges_itself(world: Any, refusal: Refusal) -> None:
    world.fill([5])
    world.aggregator.script = [f"lie {refusal.value}"]
    assert take_part(world, 0) is Outcome.REFUSED
    assert take_part(world, 0) is Outcome.SETTLED
    with world.store(0) as store:
        (line,) = store.ledger()
        assert len(store.charged()) == 1
    assert (line.state, line.refusal, line.sealed) == (State.SENT, refusal, None)


@pytest.mark.parametrize("lie", ["another device", "another round", "another code", "another key", "another enclave"])
def test_a_signature_of_something_else_does_not_refuse(world: Any, lie: str) -> None:
    """The host counts the contribution, and answers with the best signature that it can get."""
    world.fill([5, 5])
    aggregator = world.aggregator
    real, code = aggregator.refused, Refusal.MALFORMED.value

    def lying(refusal: int, request: Any) -> Any:
        assert refusal == 0, "the contribution was counted"
        signed, key, said = aggregator_pb2.SubmitRequest(), aggregator.enclave.round_key.public, code
        signed.CopyFrom(request)
        signer = aggregator.enclave.signing
        if lie == "another device":
            signed.sealed_contribution = bytes(len(request.sealed_contribution))
        elif lie == "another round":
            signed.round += 1
        elif lie == "another code":
            said = Refusal.OUT_OF_BOUNDS.value
        elif lie == "another key":
            key = HpkeKey.generate().public
        else:
            signer = SigningKey.generate()
        answer = signed_refusal(signer, said, signed, key)
        answer.refusal = code
        return answer

    aggregator.refused = lying
    assert take_part(world, 0) is Outcome.REFUSED
    with world.store(0) as store:
        assert len(store.charged()) == 1
    aggregator.refused = real
    aggregator.script = [f"refuse {code}"]
    assert take_part(world, 1) is Outcome.REFUSED
    with world.store(1) as store:
        assert store.charged() == []  # the same words under the right signature


@pytest.mark.parametrize("refusal", CODES)
def test_a_signed_refusal_is_final_costs_nothing_and_leaves_no_bytes_behind(world: Any, refusal: Refusal) -> None:
    world.fill([5])
    world.aggregator.script = [f"refuse {refusal.value}"]
    assert take_part(world, 0) is Outcome.REFUSED
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == 1
    with world.store(0) as store:
        (line,) = store.ledger()
        assert store.charged() == []
    assert (line.state, line.refusal, line.report) == (State.REFUSED, refusal, None)


@pytest.mark.parametrize("signed", [True, False])
def test_the_end_of_a_task_drops_the_bytes_and_keeps_the_charge(world: Any, signed: bool) -> None:
    """The first try was counted, perhaps released; then the task was cancelled.

    Only a signed end erases local parameters: otherwise a lying host could spoil the person's own results.
    """
    world.fill([5])
    world.aggregator.script = ["lose the answer"] * 9
    with pytest.raises(ServiceError):
        take_part(world, 0)
    tries = len(world.aggregator.submits)
    world.aggregator.script = [f"{'refuse' if signed else 'lie'} {Refusal.TASK_ABANDONED.value}"]
    assert take_part(world, 0) is Outcome.REFUSED
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == tries + 1
    with world.store(0) as store:
        (line,) = store.ledger()
        assert len(store.charged()) == (not signed)
        assert (store.local_parameters(world.task_id) is None) == signed
    assert (line.report, line.sealed) == (None, None)


def test_another_model_for_the_same_round_gets_no_second_contribution(world: Any) -> None:
    world.fill([5])
    world.open_round(1)
    assert take_part(world, 0) is Outcome.SENT
    world.open_round(1, broadcast=spoiled(world.distributor.broadcast))
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == len(world.distributor.sizes) == 1


def spoiled(broadcast: Any) -> Any:
    tables = tuple(dataclasses.replace(table, rows=table.rows + table.keyed) for table in broadcast.tables)
    return dataclasses.replace(broadcast, tables=tables)


def test_ratings_outside_the_declared_range_are_clamped_to_it(world: Any) -> None:
    world.fill([5, 5])
    for device, value in enumerate((5.0, 77.25)):
        with world.store(device) as store:
            store.erase()
            store.rate(2, value)
    world.open_round(1)
    assert [take_part(world, device) for device in range(2)] == [Outcome.SENT] * 2
    honest, clamped = (contribution.payload for contribution in world.aggregator.counted.values())
    assert honest == clamped


def test_items_that_the_model_does_not_know_take_no_part(world: Any) -> None:
    world.fill([5])
    with world.store(0) as store:
        store.rate(10_000, 3.0)
    assert take_part(world, 0) is Outcome.SENT


@pytest.mark.parametrize("what", ["rows", "dense", "missing"])
def test_rows_that_are_not_of_the_signed_model_are_refused(world: Any, what: str) -> None:
    def spoil(rows: Any) -> None:
        if what == "rows":
            rows.rows = rows.rows[:-20]
        elif what == "dense":
            rows.dense[0] = bytes(len(rows.dense[0]))
        else:
            del rows.dense[:]

    world.fill([5])
    world.distributor.spoil = spoil
    with pytest.raises(ServiceError, match="unusable rows"):
        take_part(world, 0)
    assert world.aggregator.submits == []


def test_an_assignment_that_the_developer_did_not_sign_is_refused(world: Any) -> None:
    changed = type(world.server.assignment).FromString(world.server.assignment.SerializeToString())
    changed.task.definition += b"\x08"
    with pytest.raises((SignatureError, ConfigurationError)):
        open_assignment(changed, population="people")
    changed = type(changed).FromString(world.server.assignment.SerializeToString())
    changed.model.CopyFrom(
        sign_manifest(manifest_for(world.distributor.broadcast, world.task_id), SigningKey.generate())
    )
    with pytest.raises(SignatureError):
        open_assignment(changed, population="people")


def test_an_assignment_whose_parts_do_not_belong_together_is_refused(world: Any) -> None:
    with pytest.raises(ConfigurationError, match="population"):
        open_assignment(world.server.assignment, population="others")
    for field, value in (("round", 1), ("round", 99), ("distributor_address", "nowhere"), ("aggregator_address", "")):
        changed = type(world.server.assignment).FromString(world.server.assignment.SerializeToString())
        setattr(changed, field, value)
        with pytest.raises(ConfigurationError):
            open_assignment(changed, population="people")
    broadcast = world.distributor.broadcast
    narrow = tuple(dataclasses.replace(table, rows=table.rows[:, :1]) for table in broadcast.tables)
    world.open_round(0, broadcast=dataclasses.replace(broadcast, tables=narrow))
    with pytest.raises(ConfigurationError, match="keyed table"):
        open_assignment(world.server.assignment, population="people")


def test_equal_assignments_are_checked_once(world: Any) -> None:
    reader = AnswerReader("people")

    def opened() -> Any:
        return reader.open(server_pb2.CheckInResponse(assignment=world.server.assignment))

    assert opened() is opened()
    world.open_round(1)
    assert opened().round == 1


def test_tasks_of_one_device_add_up_to_the_persons_total(world: Any, task: Any) -> None:
    world.fill([5])
    assert take_part(world, 0) is Outcome.SENT
    world.task = sign_task(dataclasses.replace(task, name="second").definition(), world.developer)
    world.task_id = task_sha256(world.task)
    world.open_round(0)
    one, two = spent_on(counts_of(task)), spent_on(counts_of(task) * 2)
    assert one < two < 2 * one  # composed, not added up
    with pytest.raises(PrivacyError, match=f"total epsilon={two:g} is above max_total_epsilon"):
        take_part(world, 0, world.participant(limits=Limits(min_cohort=2, max_total_epsilon=0.5 * (one + two))))
    assert take_part(world, 0, world.participant(limits=Limits(min_cohort=2, max_total_epsilon=two))) is Outcome.SENT


def counts_of(task: Any) -> list[Any]:
    """The events of the first round."""
    return list(round_charges(algorithm_for(task.definition()).query(0), None))


def spent_on(events: list[Any]) -> float:
    return epsilon(events, delta=Limits().max_delta)


def test_the_server_learns_the_population_and_nothing_else(world: Any) -> None:
    services = world.services()
    services.check_in("people", Traffic())
    assert world.server.requests == [b"\x0a\x06people"]


def test_a_service_with_another_certificate_authority_is_not_spoken_to(world: Any, tmp_path: Path) -> None:
    from odp._system.files.state_folder import StateFolder
    from odp.transport.tls import development_identity

    with StateFolder.open(tmp_path / "other", "server") as state:
        services = Services(world.address, development_identity(state).ca_pem, pinned=PinnedAddresses())
    try:
        with pytest.raises(ServiceUnavailable):
            services.check_in("people", Traffic())
    finally:
        services.close()
    assert world.server.requests == []

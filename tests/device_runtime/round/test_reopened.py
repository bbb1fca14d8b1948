"""Rounds that are open again after a hand-over made an earlier opening void, and servers that claim so (R371)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from device_runtime.round.participation import Outcome
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.crypto.signing import SigningKey
from odp.errors import Refusal, ServiceUnavailable
from odp.privacy.local_charge import LocalCharge
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

    def die(*args: Any, **named: Any) -> None:
        raise Killed

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


def test_a_report_that_is_private_by_itself_is_not_made_twice(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs what left the device, whether or not it counted: a second one for the same round would cost again."""
    world.fill([5])
    take_part(world, 0)
    world.void_round()
    charge = LocalCharge((("vector", 1.0),), 1)
    real = participation.work_of

    def local(world: Any) -> Work:
        work = real(world)
        terms = dataclasses.replace(work.model.terms, local=charge)
        return dataclasses.replace(work, model=dataclasses.replace(work.model, terms=terms))

    monkeypatch.setattr(participation, "work_of", local)
    assert take_part(world, 0) is Outcome.SETTLED
    assert take_part(world, 0) is Outcome.SETTLED
    assert len(world.aggregator.submits) == 1
    assert charged(world) == [], "of releases, there was none"

"""Hand-overs between two versions of an aggregator's enclave, and hosts that want the budget twice (R270 to R274)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from in_process import InProcess

from odp.crypto.signing import SignatureError
from odp.errors import (
    AttestationError,
    BudgetExceeded,
    ConfigurationError,
    OdpError,
    PrivacyError,
    StateError,
    TransparencyError,
)
from odp.privacy.ledger_entry import Budget
from odp.privacy.ledger_state import LedgerHead
from odp.signed.charter import approve, found
from odp.trust.enclave.platform import EmulatedCounter, EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import common_pb2
from tests.hand_overs import NEW, OLD, OTHER, STRANGER, Endorsers, Upgrade, upgradable
from trusted_aggregator.state.records import ledger_state_key

Make = Callable[..., Any]


class _Killed(Exception):
    """All processes die."""


def _spent(core: InProcess, world: Any) -> float:
    signed, ledger = core.ledger(world.task_sha256), core.state.populations[world.population].ledger
    assert signed is not None
    assert LedgerHead.decode(signed[0]) == ledger.head
    return ledger.epsilon_of_population(delta=world.policy.population_delta)


def _charged(make_world: Make, *, open: bool = True) -> tuple[Any, Endorsers]:
    """One round is released, another is open and empty."""
    world, endorsers = upgradable(make_world)
    world.open()
    world.fill(range(4))
    world.learn(world.close())
    if open:
        world.open(1)
    return world, endorsers


def _charges_nothing(world: Any, round: int = 1) -> None:
    """Whatever its host tries, the old enclave gives no release, charges none, and founds no other population."""
    another = approve(found("another", owners=[world.developer.public]), world.developer)
    for attempt in (
        lambda: world.open(round),
        lambda: world.charge(round),
        lambda: world.settle(world.core.set_charter(world.other_owner(world.developer))),
        lambda: world.settle(world.abandon()),
        lambda: world.settle(world.core.set_charter(another)),
    ):
        # Not a refusal for good: the server tries again, and finds the successor.
        with pytest.raises(StateError, match="handed over"):
            attempt()


def test_a_budget_goes_on_where_it_was_after_an_upgrade(make_world: Make) -> None:
    world, endorsers = _charged(make_world, open=False)
    before, ledger_id = (
        _spent(world.core, world),
        world.core.state.populations[world.population].record.ledger_id,
    )
    signed = world.release()
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    core = upgrade.run()
    assert _spent(core, world) == before > 0
    assert core.state.populations[world.population].record.ledger_id == ledger_id
    world = upgrade.move(core)
    # The release of the round before has the same bytes; who signs is the enclave that hands it out.
    again = common_pb2.SignedRelease.FromString(world.release())
    assert again.release == common_pb2.SignedRelease.FromString(signed).release
    world.open(1)
    world.fill(range(4), 1)
    world.close(1)
    assert _spent(core, world) > before
    assert _spent(upgrade.restart(), world) == _spent(core, world), "after a restart, too"


@pytest.mark.parametrize("every", [1, 3])
def test_a_ledger_whose_sum_was_sealed_goes_on_under_the_successors_own_key(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """What the entries come to is sealed now and then; of a later start, only the entries behind that are read."""
    monkeypatch.setattr("trusted_aggregator.state.ledger_writes.STATE_EVERY", every)
    world, endorsers = _charged(make_world, open=False)
    for round in (1, 2):
        world.open(round)
        world.fill(range(4), round)
        world.learn(world.close(round))
    key = ledger_state_key(world.population)
    before, old = _spent(world.core, world), world.records[key]
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    core = upgrade.run()
    assert upgrade.stored[key] != old
    assert _spent(core, world) == _spent(upgrade.restart(), world) == before


def test_what_is_left_of_the_budget_is_all_that_the_successor_can_spend(make_world: Make) -> None:
    world, endorsers = upgradable(make_world, policy={"population_epsilon": 10.0, "population_delta": 1e-6})
    _run_task(world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    world = upgrade.move(upgrade.run())
    spent = _spent(world.core, world)
    assert spent == pytest.approx(8.0, rel=0.1)
    more = world.sign(world.definition(minimum=3, epsilon=8.0, name="more"))
    world.adopt(more)
    with pytest.raises(BudgetExceeded, match="was not started"):
        world.open()
    fresh, _ = upgradable(make_world, policy={"population_epsilon": 10.0, "population_delta": 1e-6})
    fresh.open()  # a ledger that started at zero would pay for as much again


def _left(world: Any) -> float:
    budget = Budget(world.policy.population_epsilon, world.policy.population_delta)
    ledger = world.core.state.populations[world.population].ledger
    left: float = ledger.remaining("", task_budget=budget, population_budget=budget).population_epsilon
    return left


def _run_task(world: Any) -> None:
    for round in range(3):
        world.open(round)
        world.fill(range(4), round)
        world.learn(world.close(round))


def test_of_epsilon_20_a_task_took_8_before_the_upgrade_and_12_are_left_after_it(make_world: Make) -> None:
    world, endorsers = upgradable(make_world, policy={"population_epsilon": 20.0, "population_delta": 1e-6})
    _run_task(world)
    left = _left(world)
    assert left == pytest.approx(12.0, abs=0.1)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    world = upgrade.move(upgrade.run())
    assert _left(world) == left
    world.adopt(world.sign(world.definition(minimum=3, epsilon=20.0, name="too-much")))
    with pytest.raises(BudgetExceeded, match="was not started"):
        world.open()
    world.adopt(world.sign(world.definition(minimum=3, epsilon=12.0, name="the-rest")))
    _run_task(world)
    assert 0.0 <= _left(world) < left


STEPS = (
    "asked", "prepared", "the successor is named on the disk", "the successor is named in force", "the key was given",
    "the key was taken", "the records were read", "the records are on the new disk", "the records are in force",
)  # fmt: skip


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("died", STEPS)
@pytest.mark.slow
def test_a_death_of_all_programs_at_any_step_loses_and_doubles_nothing(
    make_world: Make, died: str, again: bool
) -> None:
    world, endorsers = _charged(make_world)
    before = _spent(world.core, world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)

    def kill(step: str) -> None:
        if step == died:
            raise _Killed

    for _ in range(1 + again):
        with pytest.raises(_Killed):
            upgrade.run(kill)
        if upgrade.stored:
            break
        upgrade.launch()
        world.restart()
    core = upgrade.restart() if upgrade.stored else upgrade.run()
    assert _spent(core, world) == before
    with pytest.raises(StateError, match="handed over"):
        world.restart()
    world = upgrade.move(core)
    world.open(1)
    world.fill(range(4), 1)
    world.close(1)
    assert world.charges() == 2


@pytest.mark.parametrize("call", range(1, 7))
def test_a_death_between_two_moves_of_the_counters_loses_and_doubles_nothing(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The old enclave moves two counters, the new one finds them there, and moves both again."""
    world, endorsers = _charged(make_world)
    before = _spent(world.core, world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    advance, calls = EmulatedCounter.advance, itertools.count(1)

    def dying(counter: EmulatedCounter, *, expected: int, to: int) -> None:
        if next(calls) == call:
            raise _Killed
        advance(counter, expected=expected, to=to)

    monkeypatch.setattr(EmulatedCounter, "advance", dying)
    with pytest.raises(_Killed):
        upgrade.run()
    monkeypatch.undo()
    if upgrade.stored:
        core = upgrade.restart()
    else:
        upgrade.launch()
        world.restart()
        core = upgrade.run()
    assert _spent(core, world) == before
    with pytest.raises(StateError, match="handed over"):
        world.restart()


@pytest.mark.parametrize("by", [0, 1], ids=["nobody", "one of two"])
def test_a_successor_that_too_few_endorsed_gets_nothing(make_world: Make, by: int) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy, by=endorsers.endorsers[:by])
    with pytest.raises(TransparencyError, match="not_endorsed"):
        Upgrade(world, endorsers).run()
    world.fill(range(4), 1)
    world.close(1)


def test_a_successor_whose_endorsement_was_withdrawn_gets_nothing(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    withdrawals = endorsers.endorse(NEW, world.policy)
    endorsers.log(withdrawals[1])
    with pytest.raises(TransparencyError, match="not_endorsed"):
        Upgrade(world, endorsers).run()


def test_a_host_cannot_show_another_log_an_old_one_or_a_part_of_it(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    withdrawals = endorsers.endorse(NEW, world.policy)
    before = endorsers.excerpt(now=endorsers.clock() - 2 * 86400)
    endorsers.log(withdrawals[0])
    upgrade = Upgrade(world, endorsers)
    request = upgrade.request()
    shortened = type(request)()
    shortened.CopyFrom(request)
    shortened.log.leaves = request.log.leaves[:-32]
    old = type(request)()
    old.CopyFrom(request)
    old.log.CopyFrom(before)
    strange = type(request)()
    strange.CopyFrom(request)
    others = Endorsers()
    others.endorse(NEW, world.policy)
    strange.log.CopyFrom(others.excerpt())
    for forged, reason in ((shortened, "inconsistent"), (old, "stale"), (strange, "wrong_log_key")):
        with pytest.raises(TransparencyError, match=reason):
            world.core.begin_hand_over(forged)


def test_an_enclave_of_a_policy_without_endorsers_hands_over_nothing(make_world: Make) -> None:
    world = make_world(minimum=3)
    endorsers = Endorsers()
    endorsers.endorse(NEW, world.policy)
    with pytest.raises(ConfigurationError, match="names no log"):
        Upgrade(world, endorsers).run()


def test_a_successor_under_another_policy_or_on_another_chip_gets_nothing(make_world: Make, tmp_path: Any) -> None:
    world, endorsers = _charged(make_world)
    laxer = EnclavePolicy(role="aggregator", minimum_cohort=1, upgrade=endorsers.policy, founders=world.policy.founders)
    endorsers.endorse(NEW, laxer)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    upgrade.sealed_keys = None
    upgrade.launch(laxer)
    with pytest.raises(AttestationError, match="wrong_policy"):
        upgrade.run()
    here, world.platform = world.platform, EmulatedPlatform.open(tmp_path / "chip")
    elsewhere = Upgrade(world, endorsers)
    world.platform = here
    with pytest.raises(AttestationError, match="not by the chip"):
        elsewhere.run()


def test_evidence_over_another_nonce_gets_nothing(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    request = upgrade.request()
    world.core.draw_nonce()
    with pytest.raises(AttestationError, match="wrong_nonce"):
        world.core.begin_hand_over(request)


def test_the_key_is_not_given_before_the_successor_is_named_in_force(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    request = upgrade.request()
    with pytest.raises(PrivacyError, match="not handed over"):
        world.core.finish_hand_over(request)
    world.core.begin_hand_over(request)
    with pytest.raises(PrivacyError, match="not handed over"):
        world.core.finish_hand_over(request)


def test_the_old_enclave_charges_nothing_afterwards_and_neither_does_a_copy_of_it(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    before = dict(world.records)
    copy = world.core
    world.restart()
    Upgrade(world, endorsers).run()
    _charges_nothing(world)
    world.core = copy
    with pytest.raises(OdpError, match=r"rolled back|not open"):
        world.charge(1)
    for records in (before, dict(world.records)):
        with pytest.raises(StateError, match=r"rolled back|handed over"):
            world.restart(records=records)


def test_between_the_naming_and_the_taking_nobody_charges(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    world.settle(world.core.begin_hand_over(upgrade.request()))
    _charges_nothing(world)
    world.restart()
    _charges_nothing(world)


def test_a_second_successor_is_refused_though_it_is_endorsed(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    for image in (NEW, OTHER):
        endorsers.endorse(image, world.policy)
    first = Upgrade(world, endorsers)
    first.run()
    second = Upgrade(world, endorsers, image=OTHER)
    with pytest.raises(PrivacyError, match="handed over"):
        second.run()
    assert first.package is not None
    # The package of the first, replayed to the second: it is sealed to the first, over the nonce of the first.
    second.taking.draw_nonce()
    with pytest.raises(OdpError):
        second.taking.accept(first.package, endorsers.excerpt())


@pytest.mark.parametrize("died", STEPS[2:])
def test_r282_a_successor_that_never_takes_over_is_replaced_and_gets_nothing_afterwards(
    make_world: Make, died: str
) -> None:
    """A version that cannot start, or that was withdrawn, must not take the budget with it."""
    world, endorsers = _charged(make_world)
    before = _spent(world.core, world)
    for image in (NEW, OTHER):
        endorsers.endorse(image, world.policy)
    first, second = Upgrade(world, endorsers), Upgrade(world, endorsers, image=OTHER)

    def kill(step: str) -> None:
        if step == died:
            raise _Killed

    with pytest.raises(_Killed):
        first.run(kill)
    if died == STEPS[-1]:
        with pytest.raises(PrivacyError, match="handed over"):
            second.run()
        assert _spent(first.restart(), world) == before
        return
    world.restart()
    assert _spent(second.run(), world) == before
    _charges_nothing(world)
    if first.stored:
        with pytest.raises(StateError, match="rolled back"):
            first.restart()
    first.launch()
    with pytest.raises(PrivacyError, match="handed over"):
        first.run()
    assert _spent(second.restart(), world) == before


def test_r282_a_successor_that_has_the_key_gets_nothing_once_another_is_named(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    before = _spent(world.core, world)
    for image in (NEW, OTHER):
        endorsers.endorse(image, world.policy)
    first, second = Upgrade(world, endorsers), Upgrade(world, endorsers, image=OTHER)

    def stop(step: str) -> None:
        if step == "the key was taken":
            raise _Killed

    with pytest.raises(_Killed):
        first.run(stop)
    named = dict(world.records)
    with pytest.raises(_Killed):
        second.run(stop)
    with pytest.raises(PrivacyError, match="was not handed over to this enclave"):
        first.adopt(world.records)
    with pytest.raises(StateError, match="handed over"):
        first.adopt(named)
    assert _spent(second.adopt(world.records), world) == before


def test_of_two_processes_of_the_successor_one_goes_on(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    one, two = Upgrade(world, endorsers), Upgrade(world, endorsers)

    def stop(step: str) -> None:
        if step == "the records are on the new disk":
            raise _Killed

    for each in (one, two):
        with pytest.raises(_Killed):
            each.run(stop)
    one.restart()
    with pytest.raises(StateError, match="rolled back"):
        two.restart()


def test_a_package_of_a_stranger_or_a_changed_one_is_not_taken(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    upgrade = Upgrade(world, endorsers)
    request = upgrade.request()
    world.settle(world.core.begin_hand_over(request))
    package = world.core.finish_hand_over(request)
    changed = type(package)()
    changed.CopyFrom(package)
    changed.sealed = package.sealed[:-1] + bytes([package.sealed[-1] ^ 1])
    with pytest.raises(SignatureError):
        upgrade.taking.accept(changed, request.log)
    changed.CopyFrom(package)
    changed.hand_over.statement += b"\x2a\x00"
    with pytest.raises(SignatureError):
        upgrade.taking.accept(changed, request.log)
    # An enclave of the same chip and policy, of code that nobody endorsed, states an empty ledger.
    forger = Upgrade(world, endorsers, image=STRANGER)
    forged = type(package)()
    forged.CopyFrom(package)
    forged.hand_over.evidence.CopyFrom(forger.evidence(upgrade.taking.draw_nonce()))
    with pytest.raises(TransparencyError, match="not_endorsed"):
        upgrade.taking.accept(forged, request.log)


def test_rounds_with_contributions_hold_a_hand_over_up_and_are_not_harmed(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    world.fill(range(2), 1)
    assert world.core.begin_hand_over(Upgrade(world, endorsers).request()) == ()
    world.fill(range(2, 4), 1)
    world.close(1)
    assert world.charges() == 2


def test_no_key_to_contributions_goes_to_the_successor(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    endorsers.endorse(NEW, world.policy)
    sealed = world.sealed(7, 1)
    upgrade = Upgrade(world, endorsers)
    upgrade.run()
    assert not [key for key in upgrade.stored if key.startswith(("round/", "noise/"))]
    assert world.core.submit(world.task_sha256, 1, sealed) is not None
    assert world.core.state.keys.sealer(world.task_sha256) is None, "the round's key is erased"


def test_the_code_that_runs_is_no_successor_of_itself(make_world: Make) -> None:
    world, endorsers = _charged(make_world)
    with pytest.raises(ConfigurationError, match="same code"):
        Upgrade(world, endorsers, image=OLD).run()

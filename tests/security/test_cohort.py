"""Small and false cohorts: the minimum is the enclave's, and below it nothing leaves (R21); beyond it, noise (N2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from odp.errors import PrivacyError, Refusal
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import common_pb2

Make = Callable[..., Any]


def _fill_with_one_device(world: Any, count: int) -> list[Refusal | None]:
    """One device that pretends to be ``count``: another id each time."""
    return [world.submit(world.sealed(7, contribution_id=bytes([number]) * 32)) for number in range(count)]


def _replay(world: Any, count: int) -> list[Refusal | None]:
    sealed = world.sealed(7)
    return [world.submit(sealed) for _ in range(count)]


def _seal_anew(world: Any, count: int) -> list[Refusal | None]:
    return [world.submit(world.sealed(7)) for _ in range(count)]


def _one_id_many_pseudonyms(world: Any, count: int) -> list[Refusal | None]:
    same = world.contribution(7).contribution_id
    return [world.submit(world.sealed(100 + number, contribution_id=same)) for number in range(count)]


FALSE_COHORTS = {
    "R21 one device under many ids": _fill_with_one_device,
    "R21 one contribution replayed": _replay,
    "R21 one contribution sealed anew": _seal_anew,
    "R21 many pseudonyms under one id": _one_id_many_pseudonyms,
}


@pytest.mark.parametrize("attack", FALSE_COHORTS.values(), ids=FALSE_COHORTS.keys())
def test_one_device_is_never_more_than_one_of_the_minimum(
    small: Any, attack: Callable[[Any, int], list[Refusal | None]]
) -> None:
    small.fill([1])
    answers = attack(small, 9)
    assert answers == [None] + [Refusal.ALREADY_CONTRIBUTED] * 8
    with pytest.raises(PrivacyError, match="2 contributions and needs at least 3"):
        small.charge()
    with pytest.raises(PrivacyError, match="no release in force"):
        small.release()
    assert small.charges() == 0


@pytest.mark.parametrize(("task", "policy"), [(3, 3), (5, 3), (5, 5)])
def test_r21_all_but_one_of_the_minimum_is_too_few_and_a_refused_one_does_not_count(
    make_world: Make, task: int, policy: int
) -> None:
    world = make_world(minimum=task, policy=EnclavePolicy(role="aggregator", minimum_cohort=policy))
    world.open()
    world.fill(range(task - 1))
    assert world.submit(world.sealed(99, payload=bytes([1, 0, 0, 0]) * 4)) is Refusal.OUT_OF_BOUNDS
    assert world.submit(bytes(40)) is Refusal.MALFORMED
    for _ in range(3):  # asking again changes nothing, nor does a restart
        with pytest.raises(PrivacyError, match=f"{task - 1} contributions and needs at least {task}"):
            world.charge()
        world.restart()
    assert world.charges() == 0
    world.fill([500])
    assert world.close()


@pytest.mark.parametrize("minimum", [1, 2, 99])
def test_r21_no_task_can_ask_for_less_than_the_policy(make_world: Make, minimum: int) -> None:
    world = make_world(minimum=minimum, policy=EnclavePolicy(role="aggregator"))
    with pytest.raises(PrivacyError, match="at least 100"):
        world.open()


@pytest.mark.slow
def test_n2_a_server_whose_own_devices_fill_the_cohort_still_sees_its_victim_under_the_charged_noise(
    make_world: Make,
) -> None:
    """Chi-square of what is left of releases when everything the attacker knows is taken away: false alarms 1e-6."""
    left = []
    for _ in range(40):
        world = make_world(minimum=3)
        world.open()
        world.fill([0])  # the victim
        world.fill(range(1, 4))  # the attacker's
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(world.close()).release)
        known = world.algorithm.query(0).new_sum()
        known.add([world.payload(device) for device in range(4)])
        (tensor,) = release.tensors
        noise = np.frombuffer(tensor.integers, "<i8") - known.totals()["counts"]
        left.append(noise * tensor.step / release.charges[0].noise_std)
    values = np.concatenate(left)
    low, high = stats.chi2.ppf([0.5e-6, 1 - 0.5e-6], df=len(values))
    assert low < float((values**2).sum()) < high

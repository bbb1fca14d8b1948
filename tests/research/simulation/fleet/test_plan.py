from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from device_runtime import Conditions
from odp.errors import ConfigurationError
from odp.research.simulation.fleet.plan import DAY, Plan, RandomBytes
from odp.research.simulation.fleet.scenario import Clocks, Data, Faults, Network, Scenario, Training

SCENARIO = Scenario(
    data=Data(source="x"),
    task=Training(minimum_cohort=1),
    faults=Faults(drop_outs=0.2, crashes=0.05, malicious=0.02),
    network=Network(latency_ms=(20.0, 400.0), kilobits_per_second=(500.0, 50_000.0), lost_answers=0.1),
    clocks=Clocks(skew_seconds=100.0, jumps=0.1),
)


@settings(max_examples=40, deadline=None)
@given(
    devices=st.integers(40, 300),
    seed=st.integers(0, 2**32),
    drop_outs=st.floats(0.0, 0.5),
    crashes=st.floats(0.0, 0.2),
    malicious=st.floats(0.0, 0.2),
)
def test_every_round_has_the_same_number_of_contributions(
    devices: int, seed: int, drop_outs: float, crashes: float, malicious: float
) -> None:
    faults = Faults(drop_outs=drop_outs, crashes=crashes, malicious=malicious)
    plan = Plan(dataclasses.replace(SCENARIO, faults=faults), devices=devices, rounds=3, seed=seed)
    for round in range(3):
        acts = [plan.act(device, round) for device in range(devices)]
        assert sum(act.counted for act in acts) == plan.goal
        assert sum(act.drop_out is not None for act in acts) == np.rint(devices * drop_outs)
        assert sum(act.crash is not None for act in acts) == np.rint(devices * crashes)
        assert {device for device, act in enumerate(acts) if act.behaviour} == set(plan.malicious)


def test_a_plan_is_a_function_of_scenario_devices_and_seed() -> None:
    def everything(seed: int) -> list[object]:
        plan = Plan(SCENARIO, devices=50, rounds=2, seed=seed)
        return [(plan.act(device, round), plan.character(device)) for device in range(50) for round in range(2)]

    assert everything(3) == everything(3)
    assert everything(3) != everything(4)


def test_faults_hit_other_devices_in_the_next_round_but_malice_stays() -> None:
    plan = Plan(SCENARIO, devices=200, rounds=2, seed=1)
    gone = [{device for device in range(200) if plan.act(device, round).drop_out} for round in range(2)]
    assert gone[0] != gone[1]
    for round in range(2):
        behaviours = {device: plan.act(device, round).behaviour for device in plan.malicious}
        assert behaviours == plan.malicious


def test_too_few_contributions_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"minimum_cohort=100 of 100 devices .* but 78 would"):
        Plan(SCENARIO, devices=100, rounds=1, seed=1, minimum=100)


def test_every_device_meets_its_conditions_at_some_hour_of_each_day() -> None:
    conditions = Conditions(charging=True, battery_at_least=1.0, unmetered=True, idle=True, thermal_at_most="nominal")
    plan = Plan(dataclasses.replace(SCENARIO, conditions=conditions), devices=60, rounds=1, seed=2)
    for device in range(60):
        readings = [plan.sensors(device, DAY * 7 + 1800.0 * half) for half in range(48)]
        met = [one.is_charging and one.is_idle and one.charge == 1.0 and one.is_unmetered for one in readings]
        assert 5 <= sum(map(bool, met)) <= 40


def test_identities_repeat_and_differ_between_devices_and_seeds() -> None:
    plan, other = (Plan(SCENARIO, devices=50, rounds=1, seed=seed) for seed in (1, 2))
    made = [plan.random_bytes(0)(32), plan.random_bytes(1)(32), other.random_bytes(0)(32)]
    assert len(set(made)) == 3
    assert plan.random_bytes(0)(32) == made[0]
    source = RandomBytes("x")
    assert source(8) + source(8) == RandomBytes("x")(16)

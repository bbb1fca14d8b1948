"""Schedules of cohorts and of noise, and a given noise: what they write, cost and refuse."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import odp
from odp.algorithms.cohorts import draw_of, goal_of
from odp.algorithms.federated.config import PlannedRounds, planned_blocks
from odp.algorithms.federated.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges, sampling_of
from odp.crypto import SigningKey
from odp.errors import BudgetExceeded, ConfigurationError
from odp.privacy import composition
from odp.privacy.accounting import epsilon
from odp.privacy.events import Event, GaussianRelease, SampledRound
from odp.signed.task import sign_task
from odp.v1 import common_pb2

DELTA = 1e-5
COHORT = odp.Cohort(minimum=10, goal=400)
SAMPLED = odp.Cohort(minimum=10, goal=400, sampling="enclave_poisson", most_contributions=1000)
DEVELOPER = SigningKey.generate()


def task_of(*, cohort: odp.Cohort = COHORT, budget: float = 4.0, kind: type = odp.DPFedAvg, **choices: Any) -> odp.Task:
    return odp.Task(
        name="kinds",
        model=odp.Glm("multinomial", features=4, classes=3),
        data=odp.Examples({"x": odp.Tensor((4,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=budget, delta=DELTA),
        training=kind(**choices),
        cohort=cohort,
    )


def charges_of(definition: common_pb2.TaskDefinition) -> list[Event]:
    algorithm = algorithm_for(definition)
    rounds = range(len(algorithm.planned_releases()))
    return [event for one in rounds for event in round_charges(algorithm.query(one), sampling_of(definition, one))]


def library_epsilon(events: list[Event], *, interval: float = 1e-4) -> float:
    """By dp-accounting alone, from multipliers and rates, round after round."""
    accountant = PLDAccountant(value_discretization_interval=interval)
    for event, times in Counter(events).items():
        release = event.releases[0] if isinstance(event, SampledRound) else event
        assert isinstance(release, GaussianRelease)
        one: dp_event.DpEvent = dp_event.GaussianDpEvent(release.noise_std / release.sensitivity)
        if isinstance(event, SampledRound):
            one = dp_event.PoissonSampledDpEvent(event.sampling.probability, one)
        accountant.compose(one, times)
    return accountant.get_epsilon(DELTA)


def test_blocks_of_two_schedules_end_where_either_has_an_end() -> None:
    assert planned_blocks([(2, 2.0), (3, 1.0)], [(4, 10), (1, 20)]) == (
        PlannedRounds(2, 2.0, 10), PlannedRounds(2, 1.0, 10), PlannedRounds(1, 1.0, 20),
    )  # fmt: skip
    assert planned_blocks([(2, 2.0), (3, 1.0)], [(2, 10), (3, 20)]) == (
        PlannedRounds(2, 2.0, 10), PlannedRounds(3, 1.0, 20),
    )  # fmt: skip


def test_each_round_closes_at_its_goal_which_is_its_divisor() -> None:
    training = {"rounds": 5, "cohort_schedule": [(2, 100), (3, 400)], "noise_schedule": [(4, 2.0), (1, 1.0)]}
    definition = task_of(**training).definition()
    sign_task(definition, DEVELOPER)
    terms = Terms.of(definition)
    assert [goal_of(definition.cohort, round) for round in range(5)] == [100, 100, 400, 400, 400]
    assert [terms.block_of(round).cohort for round in range(5)] == [100, 100, 400, 400, 400]
    assert [block.rounds for block in terms.blocks] == [2, 2, 1]
    assert [algorithm_for(definition).query(round).maximum for round in (0, 4)] == [200, 800]
    noise = [terms.block_of(round).grid.noise_std for round in range(5)]
    assert noise[0] == noise[3] == pytest.approx(2.0 * noise[4])
    assert all(draw_of(definition.cohort, round) is None for round in range(5))
    with pytest.raises(ConfigurationError, match="round=5"):
        goal_of(definition.cohort, 5)


def test_full_rounds_of_a_schedule_cost_the_budget_by_the_library_too() -> None:
    events = charges_of(task_of(rounds=5, cohort_schedule=[(2, 100), (3, 400)]).definition())
    assert 3.99 < epsilon(events, delta=DELTA) <= 4.0
    assert library_epsilon(events) == pytest.approx(epsilon(events, delta=DELTA), abs=2e-3)


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.slow
def test_each_sampled_round_is_charged_at_its_own_rate_and_the_library_agrees() -> None:
    definition = task_of(cohort=SAMPLED, rounds=6, cohort_schedule=[(4, 20), (2, 100)]).definition()
    sign_task(definition, DEVELOPER)
    draws = [sampling_of(definition, round) for round in range(6)]
    assert [draw.probability for draw in draws if draw is not None] == [0.05] * 4 + [0.25] * 2
    assert [goal_of(definition.cohort, round) for round in range(6)] == [400] * 6
    terms = Terms.of(definition)
    assert [terms.block_of(round).cohort for round in range(6)] == [20.0] * 4 + [100.0] * 2
    events = charges_of(definition)
    spent = epsilon(events, delta=DELTA)
    assert 3.95 < spent <= 4.0
    assert library_epsilon(events, interval=composition.COARSE_INTERVAL) == pytest.approx(spent, rel=5e-3)
    # At the rate of either block alone, the charge would be another one.
    rates = [
        [SampledRound(event.releases, draw) for event in events if isinstance(event, SampledRound)]
        for draw in (draws[0], draws[5])
        if draw is not None
    ]
    low, high = (epsilon(charged, delta=DELTA) for charged in rates)
    assert low < spent - 0.1 < spent + 0.1 < high


def test_noise_that_is_given_is_charged_as_it_is_and_needs_no_more_than_the_budget() -> None:
    events = charges_of(task_of(rounds=10, noise_multiplier=5.0, noise_schedule=[(5, 2.0), (5, 1.0)]).definition())
    ratios = [event.noise_std / event.sensitivity for event in events if isinstance(event, GaussianRelease)]
    assert ratios == pytest.approx([10.0] * 5 + [5.0] * 5)
    assert epsilon(events, delta=DELTA) == pytest.approx(library_epsilon(events), abs=2e-3)
    assert epsilon(events, delta=DELTA) < 4.0


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.parametrize(
    ("cohort", "choices"),
    [
        (COHORT, {"noise_multiplier": 5.0}),
        (COHORT, {"noise_multiplier": 5.0, "upload_bits": 8, "clip_quantile": 0.5, "diagnostics": True}),
        (COHORT, {"noise_multiplier": 2.0, "noise_schedule": [(90, 4.0), (910, 1.0)]}),
        (SAMPLED, {"noise_multiplier": 1.0, "cohort_schedule": [(300, 10), (700, 200)]}),
    ],
    ids=["constant", "eight-bits", "noise-schedule", "sampled-cohorts"],
)
@pytest.mark.slow
def test_rounds_above_the_budget_are_refused_with_the_most_that_fit(
    cohort: odp.Cohort, choices: dict[str, Any]
) -> None:
    with pytest.raises(BudgetExceeded, match=r"the first \d+ rounds are within it") as refused:
        task_of(cohort=cohort, rounds=1000, **choices)
    fits = int(str(refused.value).split("the first ")[1].split(" ")[0])
    assert 0 < fits < 1000
    assert f"take rounds={fits}," in str(refused.value)

    def cut(schedule: list[tuple[int, Any]], rounds: int) -> list[tuple[int, Any]]:
        ends = itertools.accumulate((length for length, _ in schedule), initial=0)
        pairs = [(min(length, rounds - start), value) for (length, value), start in zip(schedule, ends, strict=False)]
        return [(length, value) for length, value in pairs if length > 0]

    for rounds in (fits, fits + 1):
        shorter = {name: cut(value, rounds) if "schedule" in name else value for name, value in choices.items()}
        if rounds == fits:
            assert epsilon(charges_of(task_of(cohort=cohort, rounds=rounds, **shorter).definition()), delta=DELTA) <= 4
        else:
            with pytest.raises(BudgetExceeded, match=f"the first {fits} rounds"):
                task_of(cohort=cohort, rounds=rounds, **shorter)


def test_noise_of_shares_that_is_given_is_within_the_budget_or_refused() -> None:
    cohort = odp.Cohort(minimum=10, goal=40, aggregation="secagg+", corrupt_fraction=0.0, dropout_fraction=0.3)
    definition = task_of(cohort=cohort, rounds=3, noise_multiplier=6.0, cohort_schedule=[(2, 10), (1, 40)]).definition()
    sign_task(definition, DEVELOPER)
    assert [algorithm_for(definition).query(round).maximum for round in range(3)] == [10, 10, 40]
    with pytest.raises(BudgetExceeded, match="rounds are within it"):
        task_of(cohort=cohort, rounds=300, noise_multiplier=6.0)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cohort_schedule": [(2, 100)]}, "2 rounds of cohort_schedule to be rounds=5"),
        ({"cohort_schedule": [(5, 100, 3)]}, "pairs"),
        ({"cohort_schedule": []}, "cohort_schedule=0"),
        ({"cohort_schedule": [(5, 0)]}, "goal=0"),
        ({"cohort_schedule": [(4, 100), (1, 9)]}, "got 9.* minimum=10"),
        ({"cohort_schedule": [(4, 100), (1, 401)]}, "got 401.* goal=400"),
        ({"cohort_schedule": [(5, 100)], "divisor": 7.0}, "divisor=7"),
        ({"noise_multiplier": 0.01}, "noise_multiplier=0.01"),
        ({"noise_multiplier": 0.2, "noise_schedule": [(4, 1.0), (1, 0.1)]}, "noise_multiplier_of_schedule"),
        ({"diagnostics": 1}, "diagnostics=1"),
    ],
)
def test_schedules_that_cannot_run_are_refused_by_name(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        task_of(rounds=5, **choices)


def test_a_rate_belongs_to_the_cohort_or_to_its_schedule() -> None:
    rate = odp.Cohort(
        minimum=10, goal=400, sampling="enclave_poisson", most_contributions=1000, sampling_probability=0.5
    )
    with pytest.raises(ConfigurationError, match=r"no sampling_probability=0\.5"):
        task_of(cohort=rate, rounds=5, cohort_schedule=[(5, 100)])
    with pytest.raises(ConfigurationError, match="sampling_probability to be given"):
        task_of(cohort=SAMPLED, rounds=5)
    with pytest.raises(ConfigurationError, match="below goal=400"):
        task_of(cohort=SAMPLED, rounds=5, cohort_schedule=[(5, 400)])


@pytest.mark.parametrize(
    "choices", [{"cohort_schedule": [(5, 100)]}, {"noise_multiplier": 5.0}, {"diagnostics": True}], ids=str
)
def test_a_stream_refuses_them_by_name(choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"no {next(iter(choices))}="):
        task_of(kind=odp.DPFTRL, rounds=5, **choices)


def handmade(change: str) -> common_pb2.TaskDefinition:
    definition = task_of(rounds=5, cohort_schedule=[(2, 100), (3, 400)]).definition()
    schedule = definition.cohort.schedule
    match change:
        case "too few rounds":
            schedule[1].rounds = 2
        case "below the minimum":
            schedule[0].goal = 9
        case "above the goal":
            schedule[0].goal = 401
        case "a draw without sampling":
            schedule[0].probability = 0.5
        case "no divisor":
            definition.fedavg.blocks[0].cohort = 0.0
        case "no schedule":
            del schedule[:]
        case "sampling without a rate":
            definition.cohort.enclave_poisson.most_contributions = 1000
        case "a spread that is not paid":
            definition.fedavg.spread.weight = 0.1
        case "a stream":
            definition.CopyFrom(task_of(kind=odp.DPFTRL, rounds=5).definition())
            definition.cohort.schedule.add(rounds=5, goal=100)
        case "a question":
            asked = {"kinds": odp.Histogram(bins=4)}
            privacy = odp.UserLevelDP(epsilon=4.0, delta=DELTA)
            definition.CopyFrom(
                odp.Statistics(name="kinds", queries=asked, privacy=privacy, cohort=COHORT).definition()
            )
            definition.cohort.schedule.add(rounds=1, goal=100)
    return definition


@pytest.mark.parametrize(
    "change",
    [
        "too few rounds", "below the minimum", "above the goal", "a draw without sampling", "no divisor", "no schedule",
        "sampling without a rate", "a spread that is not paid", "a stream", "a question",
    ],
)  # fmt: skip
def test_a_definition_made_by_hand_is_refused_by_whoever_checks_it(change: str) -> None:
    with pytest.raises(ConfigurationError):
        sign_task(handmade(change), DEVELOPER)

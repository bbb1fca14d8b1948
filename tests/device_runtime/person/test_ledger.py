from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import odp
from device_runtime.person.ledger import (
    MONTH_SECONDS,
    Answered,
    Charged,
    TaskTerms,
    since,
    spent,
    terms_from_store,
    with_answers,
)
from device_runtime.person.limits import Limits
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import DistributedRelease, GaussianRelease, SampledRound, Sampling, StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.v1 import common_pb2

DELTA = 1e-5
MADE = st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 1e9))


def release(std: float, name: str = "counts") -> GaussianRelease:
    return GaussianRelease(name, 1.0, std, 100)


def terms(number: int, *stds: float, **changes: Any) -> TaskTerms:
    values: dict[str, Any] = {
        "task_sha256": bytes([number]) * 32, "name": f"task{number}", "population": "people", "developer": b"d" * 32,
        "tables": ("ratings",), "epsilon": 8.0, "delta": 1e-6, "minimum_cohort": 100,
        "rounds": tuple((release(std),) for std in stds),
    }  # fmt: skip
    return TaskTerms(**{**values, **changes})


def sampled(number: int) -> TaskTerms:
    draw = Sampling(probability=0.5, population_bound=1000, cap=900)
    return terms(number, rounds=((SampledRound((release(1.0),), draw),),) * 4, epsilon=2.5, delta=1e-6)


def test_nothing_contributed_costs_nothing() -> None:
    assert spent([], delta=DELTA).epsilon == 0.0


@given(st.lists(MADE, min_size=1, max_size=12, unique_by=lambda one: one[:2]))
def test_epsilon_is_that_of_the_events_of_all_rounds_between_a_tasks_first_and_last(
    made: list[tuple[int, int, float]],
) -> None:
    tasks = [terms(number, 2.0 + number, 3.0, 5.0, 4.0 + number) for number in range(4)]
    found = spent([Charged(tasks[task], round, time) for task, round, time in made], delta=DELTA)
    events: list[Any] = []
    for number, task in enumerate(tasks):
        rounds = [round for one, round, _ in made if one == number]
        for round in range(min(rounds, default=0), max(rounds, default=-1) + 1):
            events += task.rounds[round]
    assert found.epsilon == pytest.approx(accounting.epsilon(events, delta=DELTA), rel=1e-12)
    assert found.delta == DELTA


def test_a_missed_round_in_between_is_charged_as_for_someone_in_all_of_them() -> None:
    task = terms(1, 5.0, 1.0, 5.0)
    both_ends = spent([Charged(task, 0, 0.0), Charged(task, 2, 1.0)], delta=DELTA)
    assert both_ends == spent([Charged(task, round, 0.0) for round in range(3)], delta=DELTA)


def test_any_part_of_a_stream_costs_all_of_it_once() -> None:
    stream = StreamRelease(
        name="update", sensitivity=1.0, noise_std=4.0, coordinates=300, rounds=3, most=2, separation=1,
        matrix_sha256=b"m" * 32,
    )  # fmt: skip
    task = terms(1, rounds=((stream,), (CoveredRelease(stream, 1),), (CoveredRelease(stream, 2),)))
    whole = accounting.epsilon([stream], delta=DELTA)
    for rounds in ([0], [1], [2], [1, 2], [0, 1, 2]):
        found = spent([Charged(task, round, 0.0) for round in rounds], delta=DELTA)
        assert found.epsilon == pytest.approx(whole, rel=1e-12)


def test_a_task_with_random_cohorts_costs_what_it_states_once_and_its_delta_on_top() -> None:
    gaussian = Charged(terms(1, 3.0), 0, 0.0)
    alone = spent([gaussian], delta=DELTA)
    for rounds in ([0], [0, 1, 3]):
        found = spent([gaussian, *(Charged(sampled(2), round, 0.0) for round in rounds)], delta=DELTA)
        assert found.epsilon == pytest.approx(alone.epsilon + 2.5, rel=1e-15)
        assert found.delta == pytest.approx(DELTA + 1e-6, rel=1e-15)


def test_a_device_adds_up_as_the_page_says() -> None:
    """The table of docs/accounting.md, line by line; what it says is rounded up."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "accounting.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (?:to|and) [^|]*\|[^|]*\| ([0-9.]+) \| ([0-9.e-]+) \|$", page, re.MULTILINE)
    own = [
        terms(1, rounds=tuple((release(1 / 0.3),) for _ in range(5))),
        terms(2, rounds=((release(1 / 0.4),),)),
        sampled(3),
    ]
    made = [Charged(own[0], 0, 0.0), Charged(own[0], 2, 0.0), Charged(own[1], 0, 0.0), Charged(own[2], 1, 0.0)]
    answer = Answered(service="music", app="player", choices=3, epsilon=0.25, time=0.0)
    found = [spent(made[: number + 1], delta=DELTA) for number in range(4)]
    found.append(with_answers(found[-1], [answer]))
    assert len(lines) == len(found)
    for (epsilon, delta), one in zip(lines, found, strict=True):
        assert 0 <= float(epsilon) - one.epsilon < 1e-6
        assert float(delta) == pytest.approx(one.delta, rel=1e-12)
    (alone, together) = re.findall(r"Task B alone would cost ε = ([0-9.]+), so .* would give ([0-9.]+)", page)[0]
    only_b = spent(made[2:3], delta=DELTA).epsilon
    assert 0 <= float(alone) - only_b < 1e-6
    assert 0 <= float(together) - (found[1].epsilon + only_b) < 1e-6
    limits = Limits(max_total_epsilon=found[2].epsilon, max_total_epsilon_30_days=100.0, min_cohort=0)
    limits.check(own[1], round=0, past=made[:2])
    with pytest.raises(PrivacyError, match="total epsilon"):
        dataclasses.replace(limits, max_total_epsilon=0.999 * found[2].epsilon).check(own[1], round=0, past=made[:2])


def test_noise_on_more_numbers_than_delta_bears_is_infinite_and_not_free() -> None:
    huge = terms(1, rounds=((GaussianRelease("all", 1.0, 5.0, 2**44),),))
    assert spent([Charged(huge, 0, 0.0)], delta=DELTA).epsilon == math.inf


def test_the_last_thirty_days_are_those_and_whatever_lies_ahead() -> None:
    task = terms(1, 1.0)
    times = [0.0, 1.0, MONTH_SECONDS, 5 * MONTH_SECONDS]
    found = since([Charged(task, 0, time) for time in times], now=MONTH_SECONDS)
    assert [one.time for one in found] == times[1:]


@pytest.mark.parametrize("sampling", ["full", "enclave_poisson"])
def test_the_terms_of_a_task_are_the_charges_of_its_enclave_and_come_back_from_the_store(
    task: odp.Task, sampling: str
) -> None:
    definition = task.definition()
    if sampling == "enclave_poisson":
        definition.cohort.enclave_poisson.CopyFrom(
            common_pb2.EnclavePoisson(probability=0.5, most_contributions=100, cap=90)
        )
    made = TaskTerms.of(definition, b"i" * 32)
    assert made.stated is (sampling == "enclave_poisson")
    assert len(made.rounds) == len(algorithm_for(definition).planned_releases())
    assert terms_from_store(b"i" * 32, definition.SerializeToString(), made.charges_json()) == made
    if not made.stated:  # all rounds together are within what the task promises
        everything = [Charged(made, round, 0.0) for round in range(len(made.rounds))]
        assert 0.99 * made.epsilon < spent(everything, delta=made.delta).epsilon <= made.epsilon


def shared(std: float) -> DistributedRelease:
    return DistributedRelease("hours", 1.0, std, 24, sharers=90, step=std / 4000.0, graph_delta=2.0**-38)


def test_noise_in_shares_is_computed_on_the_device_as_in_the_ledger() -> None:
    """Its own closed form and the aggregator's say the same, bit for bit, also beside Gaussian rounds."""
    task = terms(1, rounds=((shared(5.0),),))
    both = [Charged(task, 0, 0.0), Charged(terms(2, 10.0), 0, 0.0)]
    assert not task.stated
    assert spent(both[:1], delta=DELTA).epsilon == accounting.epsilon([shared(5.0)], delta=DELTA)
    assert spent(both, delta=DELTA).epsilon == accounting.epsilon([shared(5.0), release(10.0)], delta=DELTA)
    assert spent(both, delta=DELTA).delta == DELTA
    assert terms_from_store(task.task_sha256, _definition(), task.charges_json()).rounds == task.rounds


def _definition() -> bytes:
    return _secagg_task().definition().SerializeToString()


def _secagg_task() -> odp.Statistics:
    return odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=24)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=300, aggregation="secagg+"),
    )


def test_a_task_with_shares_costs_what_it_states() -> None:
    task = TaskTerms.of(_secagg_task().definition(), b"t" * 32)
    ((event,),) = task.rounds
    assert isinstance(event, DistributedRelease)
    found = spent([Charged(task, 0, 0.0)], delta=1e-6).epsilon
    assert 0.999 < found <= 1.0


def test_a_store_that_named_another_adjacency_is_read_as_what_holds_for_its_charges() -> None:
    """Earlier versions named add_remove_user for all of them; a device that lost its ledger for it would spend anew."""
    draw = SampledRound((release(9.0), release(4.0, "sums")), Sampling(0.5, 100, 98))
    task = terms(1, rounds=((release(5.0), shared(5.0)), (draw,)))
    written = task.charges_json()
    assert written.count("zero_out_user") == 5
    before = written.replace("zero_out_user", "add_remove_user")
    assert terms_from_store(task.task_sha256, _definition(), before).rounds == task.rounds
    for damaged in ("[[3]]", '[[{"mechanism": "gaussian"}]]', '[[{"releases": 3}]]'):
        with pytest.raises((ConfigurationError, PrivacyError, TypeError)):
            terms_from_store(task.task_sha256, _definition(), damaged)

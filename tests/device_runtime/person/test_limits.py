from __future__ import annotations

import math
from typing import Any

import pytest

from device_runtime.person.ledger import MONTH_SECONDS, Charged, TaskTerms, spent
from device_runtime.person.limits import Limits
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.events import GaussianRelease, SampledRound, Sampling


def terms(**changes: Any) -> TaskTerms:
    values: dict[str, Any] = {
        "task_sha256": b"t" * 32, "name": "films", "population": "people", "developer": b"d" * 32,
        "tables": ("ratings",), "epsilon": 8.0, "delta": 1e-6, "minimum_cohort": 100,
        "rounds": ((GaussianRelease("counts", 1.0, 2.0, 10),), (GaussianRelease("biases", 1.0, 1.0, 10),)),
    }  # fmt: skip
    return TaskTerms(**{**values, **changes})


def other(number: int, **changes: Any) -> TaskTerms:
    return terms(task_sha256=bytes([number]) * 32, name=f"other{number}", **changes)


def test_the_default_limits_allow_a_task_at_epsilon_eight() -> None:
    Limits().check(terms(), round=0)
    Limits().check(terms(), round=0, past=[Charged(other(1), 1, 0.0)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 10.5}, r"epsilon=10.5 is above max_epsilon=10"),
        ({"epsilon": math.inf}, r"epsilon=inf is above max_epsilon=10"),
        ({"epsilon": math.nan}, r"epsilon=nan is above max_epsilon=10"),
        ({"delta": 1e-4}, r"delta=0.0001 is above max_delta=1e-05"),
        ({"minimum_cohort": 99}, r"minimum=99 is below min_cohort=100"),
        ({"population": "others"}, r"population='others' is not among the allowed people"),
        ({"tables": ("ratings", "places")}, r"table='places' is not among the allowed ratings, events"),
    ],
)
def test_a_task_beyond_a_limit_is_declined_in_one_line_that_names_it(changes: dict[str, Any], message: str) -> None:
    limits = Limits(populations=("people",), tables=("ratings", "events"))
    with pytest.raises(PrivacyError, match=message) as caught:
        limits.check(terms(**changes), round=0)
    assert "\n" not in str(caught.value)
    assert "'films'" in str(caught.value)


def test_r348_a_task_that_takes_longer_than_its_person_allows_is_declined() -> None:
    Limits(max_computing_seconds=16.0).check(terms(computing_seconds=16.0), round=0)
    with pytest.raises(PrivacyError, match=r"the time of a contribution=64 is above max_computing_seconds=16"):
        Limits(max_computing_seconds=16.0).check(terms(computing_seconds=64.0), round=0)


PAST = [Charged(other(1), 1, 1000.0), Charged(other(2, developer=b"e" * 32), 1, 1000.0)]


@pytest.mark.parametrize(
    ("limit", "counted"),
    [
        ("max_total_epsilon", PAST),
        ("max_total_epsilon_30_days", PAST),
        ("max_developer_epsilon", PAST[:1]),
        ("max_developer_epsilon_30_days", PAST[:1]),
    ],
)
def test_a_limit_holds_for_what_was_contributed_together_with_what_is_asked(limit: str, counted: list[Charged]) -> None:
    now = 2000.0
    together = spent([*counted, Charged(terms(), 0, now)], delta=1e-5).epsilon
    Limits(**{limit: together}).check(terms(), round=0, past=PAST, now=now)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match=f"is above {limit}="):
        Limits(**{limit: 0.999 * together}).check(terms(), round=0, past=PAST, now=now)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["max_total_epsilon_30_days", "max_developer_epsilon_30_days"])
def test_after_thirty_days_a_contribution_no_longer_counts_for_the_month(limit: str) -> None:
    alone = spent([Charged(terms(), 0, 0.0)], delta=1e-5).epsilon
    limits = Limits(**{limit: alone})  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match=limit):
        limits.check(terms(), round=0, past=PAST, now=1000.0 + MONTH_SECONDS - 1.0)
    limits.check(terms(), round=0, past=PAST, now=1000.0 + MONTH_SECONDS)
    with pytest.raises(PrivacyError, match=limit):  # a clock that went back frees nothing
        limits.check(terms(), round=0, past=PAST, now=0.0)


def test_deltas_that_tasks_with_random_cohorts_state_add_up_to_a_limit() -> None:
    draw = Sampling(probability=0.5, population_bound=1000, cap=900)
    sampled = ((SampledRound((GaussianRelease("counts", 1.0, 9.0, 10),), draw),),)
    past = [Charged(other(number, rounds=sampled, epsilon=0.1, delta=9e-6), 0, 0.0) for number in range(10)]
    Limits().check(terms(), round=0, past=past)
    with pytest.raises(PrivacyError, match=r"total delta=0.000109 is above max_total_delta=0.0001"):
        Limits().check(other(99, rounds=sampled, epsilon=0.1, delta=9e-6), round=0, past=past)


def test_a_limit_of_zero_opts_out_of_everything() -> None:
    for limit in ("max_epsilon", "max_delta", "max_total_epsilon", "max_developer_epsilon_30_days", "max_total_delta"):
        with pytest.raises(PrivacyError, match=limit):
            Limits(**{limit: 0.0}).check(terms(epsilon=1e-9, delta=1e-12), round=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_epsilon": -1.0},
        {"max_delta": math.nan},
        {"max_total_epsilon_30_days": math.inf},
        {"min_cohort": 1.5},
        {"populations": ("A b",)},
        {"tables": ("A b",)},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**wrong)  # type: ignore[arg-type]

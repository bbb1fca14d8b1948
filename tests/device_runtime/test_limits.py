from __future__ import annotations

import math

import pytest

from device_runtime.limits import Limits
from odp.errors import ConfigurationError, PrivacyError
from odp.v1 import common_pb2


def definition(**changes: object) -> common_pb2.TaskDefinition:
    made = common_pb2.TaskDefinition(name="films", population="people")
    made.privacy.epsilon = 8.0
    made.privacy.delta = 1e-6
    made.cohort.minimum = 100
    for path, value in changes.items():
        message, _, field = path.rpartition("__")
        setattr(getattr(made, message) if message else made, field, value)
    return made


def test_the_default_limits_allow_a_task_at_epsilon_eight() -> None:
    Limits().check(definition())
    Limits().check(definition(), spent_elsewhere=12.0)


@pytest.mark.parametrize(
    ("changes", "spent", "message"),
    [
        ({"privacy__epsilon": 10.5}, 0.0, r"epsilon=10.5 is above max_epsilon=10"),
        ({"privacy__epsilon": math.inf}, 0.0, r"epsilon=inf is above max_epsilon=10"),
        ({"privacy__epsilon": math.nan}, 0.0, r"epsilon=nan is above max_epsilon=10"),
        ({"privacy__delta": 1e-4}, 0.0, r"delta=0.0001 is above max_delta=1e-05"),
        ({"cohort__minimum": 99}, 0.0, r"minimum=99 is below min_cohort=100"),
        ({}, 12.5, r"total epsilon=20.5 is above max_total_epsilon=20"),
        ({"population": "others"}, 0.0, r"population='others' is not among the allowed people"),
    ],
)
def test_a_task_beyond_a_limit_is_declined_in_one_line_that_names_it(
    changes: dict[str, object], spent: float, message: str
) -> None:
    limits = Limits(populations=("people",))
    with pytest.raises(PrivacyError, match=message) as caught:
        limits.check(definition(**changes), spent_elsewhere=spent)
    assert "\n" not in str(caught.value)
    assert "'films'" in str(caught.value)


def test_a_limit_of_zero_opts_out_of_everything() -> None:
    with pytest.raises(PrivacyError):
        Limits(max_epsilon=0.0).check(definition(privacy__epsilon=1e-9))


@pytest.mark.parametrize(
    "wrong", [{"max_epsilon": -1.0}, {"max_delta": math.nan}, {"min_cohort": 1.5}, {"populations": ("A b",)}]
)
def test_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**wrong)  # type: ignore[arg-type]

"""Argument checks: what is refused, and how the line reads."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from odp import _validate
from odp.errors import ConfigurationError

_HUGE = 10**400


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 1j, _HUGE, [1.0]])
@pytest.mark.parametrize("check", [_validate.finite, _validate.positive])
def test_what_is_no_finite_number_is_refused_by_name(check, value: object) -> None:
    with pytest.raises(ConfigurationError, match="Expected sigma="):
        check(sigma=value)


@pytest.mark.parametrize("value", [0, 0.0, -1e-300])
def test_a_positive_number_is_above_zero(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected sigma=.* to be > 0"):
        _validate.positive(good=1.0, sigma=value)


@pytest.mark.parametrize("value", [0, 11, 5.0, True, "5", None, _HUGE, np.float64(5)])
def test_a_whole_number_is_an_int_within_its_range(value: object) -> None:
    _validate.integer(low=1, high=10, first=1, last=10)
    with pytest.raises(ConfigurationError, match=r"Expected rank=.* to be a whole number from 1 to 10"):
        _validate.integer(low=1, high=10, rank=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, _HUGE, -_HUGE])
def test_a_range_includes_its_ends_and_nothing_else(value: float) -> None:
    _validate.within(low=0.0, high=1.0, zero=0.0, one=1)
    with pytest.raises(ConfigurationError, match="Expected share="):
        _validate.within(low=0.0, high=1.0, share=value)


@pytest.mark.parametrize("name", ["", "A", "a b", "a\n", ".a", "-a", "é", "a" * 65, "a/b", None, 5])
def test_a_name_is_of_few_letters(name: object) -> None:
    _validate.identifier(first="a", second="0.b_c-d", longest="a" * 64)
    with pytest.raises(ConfigurationError, match="Expected name="):
        _validate.identifier(name=name)  # type: ignore[arg-type]


def test_a_wrong_choice_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"weighting='adaptve' to be one of adaptive, uniform; did you mean"):
        _validate.one_of(("adaptive", "uniform"), weighting="adaptve")
    with pytest.raises(ConfigurationError, match=r"to be one of adaptive, uniform$"):
        _validate.one_of(("adaptive", "uniform"), weighting="zzz")


def test_an_unknown_keyword_names_the_nearest_one() -> None:
    @_validate.strict_keywords
    @dataclasses.dataclass(frozen=True)
    class Thing:
        epsilon: float
        delta: float = 1e-6

    assert Thing(1.0) == Thing(epsilon=1.0)
    assert dataclasses.replace(Thing(1.0), delta=0.5).delta == 0.5
    with pytest.raises(ConfigurationError, match=r"Unknown key 'epsilom' in Thing\(..\); did you mean 'epsilon'"):
        Thing(epsilom=1.0)
    with pytest.raises(TypeError, match="missing 1 required"):
        Thing()

"""From a configuration to the numbers of a task: every charge adds up to the budget."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.privacy.accounting import mu_for
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]


@settings(max_examples=40, deadline=None)
@given(
    epsilon=st.floats(0.2, 39.0),
    rank=st.integers(0, 8),
    steps=st.integers(1, 4),
    count_share=st.floats(0.01, 0.4),
    bias_share=st.floats(0.1, 0.5),
    gram_share=st.floats(0.1, 0.9),
    row_clip=st.floats(0.1, 30.0),
)
def test_the_planned_releases_use_exactly_the_budget(
    define: Define,
    epsilon: float,
    rank: int,
    steps: int,
    count_share: float,
    bias_share: float,
    gram_share: float,
    row_clip: float,
) -> None:
    definition = define(
        rank=rank,
        epsilon=epsilon,
        steps=steps,
        count_share=count_share,
        bias_share=bias_share,
        gram_share=gram_share,
        row_clip=row_clip,
    )
    releases = [release for round in algorithm_for(definition).planned_releases() for release in round]
    total = math.sqrt(sum((release.sensitivity / release.noise_std) ** 2 for release in releases))
    draws = sum(release.coordinates for release in releases)
    assert total == pytest.approx(mu_for(epsilon=epsilon, delta=1e-6, coordinates=draws), rel=1e-9)
    (counts,) = algorithm_for(definition).planned_releases()[0]
    assert (counts.sensitivity / counts.noise_std) ** 2 == pytest.approx(count_share * total**2)


def test_an_infinite_epsilon_is_the_only_way_to_ask_for_no_noise(define: Define) -> None:
    silent = define(epsilon=math.inf)
    assert all(release.noise_std == 0.0 for round in algorithm_for(silent).planned_releases() for release in round)
    for field in ("count_noise_std", "bias_mass_noise", "bias_sum_noise", "gram_noise", "target_noise"):
        definition = define()
        setattr(definition.dpam, field, 0.0)
        with pytest.raises(ConfigurationError, match=f"{field}=0"):
            Terms.of(definition)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bias_target_clip", 0.0),
        ("factor_target_clip", math.nan),
        ("bias_vector_clip", 0.0),
        ("bias_vector_clip", 4.1),
        ("factor_vector_clip", math.nan),
        ("factor_vector_clip", 4.1),
        ("row_clip", -1.0),
        ("weight_exponent", 1.5),
        ("user_bias_ridge", 0.0),
        ("kernel_variance", -0.1),
        ("kernel_variance", 11.0),
        ("item_ridge", -0.1),
        ("steps", 0),
        ("slices_per_device", 3),
        ("slices_per_device", 31),
        ("weighting", 0),
        ("centre", math.inf),
    ],
)
def test_a_definition_with_a_number_out_of_range_is_refused(define: Define, field: str, value: float) -> None:
    definition = define(rank=3)
    setattr(definition.dpam, field, value)
    with pytest.raises(ConfigurationError, match=field):
        Terms.of(definition)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": -1},
        {"row_clip": 0.0},
        {"weighting": "tail"},
        {"weight_exponent": -0.1},
        {"count_share": 0.0},
        {"count_share": 0.5, "bias_share": 0.5},
        {"start_seed": -1},
        {"slices_per_device": 0},
        {"centre": math.nan},
    ],
)
def test_a_configuration_out_of_range_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        DPAM(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [-math.inf, -1.0, 0.0, math.nan])
def test_a_definition_without_a_positive_epsilon_is_refused(define: Define, epsilon: float) -> None:
    definition = define(epsilon=math.inf)
    definition.privacy.epsilon = epsilon
    with pytest.raises(ConfigurationError, match="epsilon="):
        Terms.of(definition)


def test_clips_follow_the_declared_range(define: Define) -> None:
    narrow, wide = define(), define()
    wide.data.low, wide.data.high = -10.0, 10.0
    wide.dpam.CopyFrom(DPAM(steps=2).resolve(wide.model, wide.data, wide.privacy))
    for training, span in ((narrow.dpam, 4.0), (wide.dpam, 20.0)):
        assert training.bias_target_clip == training.factor_target_clip == pytest.approx(span)
        assert training.bias_vector_clip == training.factor_vector_clip == pytest.approx(0.15 * span)
    tight = define(bias_target_clip=0.5)
    assert (tight.dpam.bias_vector_clip, tight.dpam.factor_vector_clip) == pytest.approx((0.5, 0.6))
    silent = define(epsilon=math.inf)
    assert silent.dpam.bias_vector_clip == silent.dpam.bias_target_clip == pytest.approx(4.0)
    assert wide.dpam.centre == pytest.approx(2.5)


def test_a_task_without_dpam_training_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="to be dpam"):
        Terms.of(common_pb2.TaskDefinition(name="other"))


def test_a_rank_that_has_random_columns_needs_steps(define: Define) -> None:
    assert Terms.of(define(rank=2, steps=0)).rounds == 2
    with pytest.raises(ConfigurationError, match="steps=0"):
        define(rank=3, steps=0)


def test_noise_beyond_the_sampler_is_refused_with_a_way_out(define: Define) -> None:
    with pytest.raises(ConfigurationError, match="raise epsilon or choose steps=0"):
        define(rank=2, epsilon=0.001)


def test_the_recommended_rank_never_falls_as_the_budget_or_the_population_grows() -> None:
    previous = 0
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 39.0, math.inf):
        rank, dpam = DPAM.recommended(epsilon=epsilon, delta=1e-6, n_users=6040, n_items=3706)
        assert rank >= previous
        assert (dpam.step == "gradient") == (epsilon < math.inf)
        previous = rank
    populations = (100, 10**4, 10**6, 10**8)
    ranks = [DPAM.recommended(epsilon=2.0, delta=1e-9, n_users=users, n_items=3706)[0] for users in populations]
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]

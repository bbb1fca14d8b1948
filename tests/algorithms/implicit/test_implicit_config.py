"""Choices for implicit feedback: what is refused, what public numbers recommend."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from odp.algorithms.implicit.config import ImplicitDPAM
from odp.algorithms.implicit.terms import Terms
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("count_share", 0.0),
        ("count_share", 1.0),
        ("row_clip", 0.0),
        ("head_items", 0),
        ("weighting", "x"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ImplicitDPAM(**{name: value})  # type: ignore[arg-type]


def test_the_noise_of_every_step_is_the_same_and_follows_from_the_shares(define_implicit: Define) -> None:
    dpam = define_implicit(count_share=0.2, steps=4).dpam
    # mu^2 goes as 1 / noise^2; counts and right-hand sides have the sensitivity sqrt(K), in units of clips.
    assert (dpam.target_noise / dpam.count_noise_std) ** 2 == pytest.approx(0.2 / (0.8 / 4))
    silent = define_implicit(epsilon=math.inf).dpam
    assert silent.count_noise_std == silent.target_noise == 0.0


def test_more_noise_than_can_be_sampled_is_refused(define_implicit: Define) -> None:
    with pytest.raises(ConfigurationError, match="raise epsilon"):
        define_implicit(epsilon=1e-6, steps=64)


def test_a_definition_with_groups_that_its_features_do_not_have_is_refused(define_implicit: Define) -> None:
    definition = define_implicit()
    Terms.of(definition)
    definition.model.item_feature_groups.extend([3, 4])
    with pytest.raises(ConfigurationError, match=r"add up to item_features_width=0"):
        Terms.of(definition)
    definition.model.item_features_width = 7
    with pytest.raises(ConfigurationError, match="item_features_sha256 of 32 bytes"):
        Terms.of(definition)
    definition.model.item_features_sha256 = bytes(32)
    assert Terms.of(definition).item_feature_groups == (3, 4)


def test_where_tastes_are_not_heard_popularity_is_recommended_unless_features_may_tell_them() -> None:
    sizes = {"epsilon": 1.0, "delta": 1e-6, "n_users": 1892, "n_items": 17632}
    rank, training = ImplicitDPAM.recommended(**sizes)
    assert (rank, training.steps) == (1, 1)
    assert training.count_share > 0.9
    assert ImplicitDPAM.recommended(**sizes, with_features=True)[0] > 1
    assert ImplicitDPAM.recommended(**{**sizes, "n_users": 30_000})[0] > 1


def test_with_a_start_fewer_steps_are_recommended_and_a_head_of_what_it_tells() -> None:
    for epsilon in (0.1, 1.0, 8.0):
        sizes = {"epsilon": epsilon, "delta": 1e-6, "n_users": 30000, "n_items": 40000}
        for told, head in ((361, 361), (40000, 10000), (3, None)):
            rank, training = ImplicitDPAM.recommended(**sizes, with_features=True, start_items=told)
            assert training.steps == 4
            assert training.head_items == (head or rank)
    with pytest.raises(ConfigurationError, match="start_items=7"):
        ImplicitDPAM.recommended(epsilon=1.0, delta=1e-6, n_users=30, n_items=6, start_items=7)


def test_a_larger_budget_is_recommended_a_rank_that_is_no_smaller() -> None:
    ranks = [
        ImplicitDPAM.recommended(epsilon=epsilon, delta=1e-6, n_users=30000, n_items=40000)[0]
        for epsilon in (0.5, 2.0, 8.0, 32.0, math.inf)
    ]
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]

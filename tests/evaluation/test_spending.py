"""Shares of mu^2 add up, and ε so far ends at the ledger's ε."""

from __future__ import annotations

import math

import pytest

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.datasets import synthetic_movielens
from odp.evaluation.comparison import spending
from odp.privacy.accounting import epsilon
from odp.research.simulation.presets import preset_task


def test_shares_add_up_to_one_and_epsilon_to_the_whole() -> None:
    ratings = synthetic_movielens(n_users=2000, n_items=30, ratings_per_user=12)
    task = preset_task("auto", ratings, epsilon=8.0, delta=1e-5)
    algorithm = algorithm_for(task.definition())
    charges = [charges_of(algorithm.query(number)) for number in range(len(algorithm.planned_releases()))]
    spent = spending(charges, delta=1e-5)
    assert [(entry.round, entry.name) for entry in spent[:3]] == [(0, "masses"), (0, "devices"), (1, "gradients")]
    assert math.fsum(entry.share for entry in spent) == pytest.approx(1.0)
    assert spent[0].share == pytest.approx(task.training.count_share)
    so_far = [entry.epsilon_so_far for entry in spent]
    assert so_far == sorted(so_far)
    assert so_far[-1] == epsilon([event for events in charges for event in events], delta=1e-5)


def test_nothing_released_is_nothing_spent() -> None:
    assert spending([], delta=1e-5) == spending([(), ()], delta=1e-5) == ()

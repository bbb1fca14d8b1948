"""Two towers on ratings: no example reads its own label, and training without noise beats the persons' own means."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

import odp
from odp.datasets.splitting import random_split
from odp.research.reproductions.movielens_towers import compare, examples_of

TOWERS = importlib.util.find_spec("keras") is not None


def _ratings() -> odp.data.Ratings:
    return odp.data.synthetic_movielens(n_users=30, n_items=25, ratings_per_user=9, seed=3)


def _features(items: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(items, 3)).astype(np.float32)


def _by_hand(
    history: odp.data.Ratings, user: int, item: int, value: float, features: np.ndarray
) -> tuple[np.ndarray, float]:
    """What the other ratings of a person say, and what is left of the rating."""
    items, values = history.user(user)
    others = items != item
    centre = (history.low + history.high) / 2.0
    mean = (values[others] - centre).sum() / (others.sum() + 2.0)
    about = ((values[others] - centre - mean)[:, None] * features[items[others]]).sum(axis=0)
    return about / np.sqrt(others.sum() + 5.0), value - centre - mean


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_example_is_made_of_the_other_ratings_of_its_person(part: str) -> None:
    split = random_split(_ratings(), seed=1)
    ratings, features = getattr(split, part), _features(split.train.n_items)
    examples, means = examples_of(split.train, ratings, features)
    assert len(examples.targets) == ratings.n_ratings > 10
    assert means.shape == (ratings.n_ratings,)
    for row, (user, item, value) in enumerate(zip(ratings.users(), ratings.items, ratings.values, strict=True)):
        about, left = _by_hand(split.train, int(user), int(item), float(value), features)
        np.testing.assert_allclose(examples.features[row, :-1], about, atol=1e-5)
        assert examples.features[row, -1] == item
        assert examples.targets[row] == pytest.approx(left, abs=1e-5)


# A published comparison, which no promise of ours rests on; the command below runs it with one round.
@pytest.mark.proof
@pytest.mark.slow
def test_the_towers_learn_more_than_the_means_of_persons() -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'odp-platform[keras]'")
    ratings = odp.data.synthetic_movielens(n_users=300, n_items=30, ratings_per_user=20, seed=3)
    found = compare(
        random_split(ratings, seed=1), epsilon=20, delta=1e-4, rounds=10, examples=20, baseline=True
    )  # fmt: skip
    assert found.without_noise is not None
    assert found.without_noise < found.own_mean - 0.01
    assert found.towers > found.without_noise
    assert 0 < found.dpam < 2
    assert set(found.to_json()) >= {"towers", "dpam", "dpam_with_features"}


def test_the_command_prints_the_comparison() -> None:
    from typer.testing import CliRunner

    from odp.cli.main import app

    options = ["--data", "synthetic:n_users=300,n_items=40,ratings_per_user=10", "--rounds", "1", "--delta", "1e-4"]
    result = CliRunner().invoke(app, ["reproduce", "two-tower", *options, "--json"])
    if not TOWERS:
        assert "pip install 'odp-platform[keras]'" in str(result.exception)
        return
    assert result.exit_code == 0, result.output
    assert "DPAM with public item features" in result.output
    assert 0.0 < json.loads(result.stdout.splitlines()[-1])["towers"] < 10.0

"""What a generalised linear model computes."""

from __future__ import annotations

import numpy as np
import pytest

from odp.errors import ConfigurationError
from odp.models.glm import Family, Glm

_SHAPES = [Glm("linear", 5), Glm("logistic", 5), Glm("multinomial", 5, 4), Glm("poisson", 5)]


def _targets(shape: Glm, generator: np.random.Generator, count: int) -> np.ndarray:
    most = {Family.LINEAR: 3, Family.LOGISTIC: 2, Family.MULTINOMIAL: shape.classes, Family.POISSON: 6}
    return generator.integers(0, most[Family(shape.family)], count).astype(np.float32)


@pytest.mark.parametrize("shape", _SHAPES, ids=lambda shape: shape.family.value)
def test_residuals_are_the_gradient_of_the_loss(shape: Glm) -> None:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(6, 5)).astype(np.float32)
    targets = _targets(shape, generator, 6)
    vector = generator.normal(size=shape.size) * 0.5
    residuals = shape.residuals(shape.predictors(vector, features), targets)
    inner = np.concatenate([(residuals.T @ features).ravel(), residuals.sum(axis=0)])
    step = 1e-5
    for place in range(shape.size):
        moved = np.zeros(shape.size)
        moved[place] = step
        up, down = (shape.losses(vector + sign * moved, features, targets).sum() for sign in (1, -1))
        assert (up - down) / (2 * step) == pytest.approx(inner[place], rel=1e-4, abs=1e-4)


def test_means_of_extreme_predictors_are_finite() -> None:
    extreme = np.array([[-1e30, 1e30, 0.0]], dtype=np.float32)
    assert np.array_equal(Glm("multinomial", 1, 3).means(extreme), [[0.0, 1.0, 0.0]])
    assert Glm("logistic", 1).means(extreme.T)[:, 0].tolist() == [0.0, 1.0, 0.5]
    assert np.isfinite(Glm("poisson", 1).means(extreme.T)).all()


@pytest.mark.parametrize(
    ("shape", "targets", "usable"),
    [
        (_SHAPES[0], [0.5, -3.0, np.nan, np.inf], [True, True, False, False]),
        (_SHAPES[1], [0.0, 1.0, 2.0, 0.5], [True, True, False, False]),
        (_SHAPES[2], [0.0, 3.0, 4.0, 1.5], [True, True, False, False]),
        (_SHAPES[3], [0.0, 7.0, -1.0, np.nan], [True, True, False, False]),
    ],
    ids=lambda value: getattr(value, "family", None) and value.family.value,
)
def test_examples_that_the_family_does_not_know_are_not_usable(
    shape: Glm, targets: list[float], usable: list[bool]
) -> None:
    features = np.zeros((4, 5), dtype=np.float32)
    assert shape.usable(features, np.array(targets, dtype=np.float32)).tolist() == usable
    features[0, 2] = np.nan
    assert not shape.usable(features, np.array(targets, dtype=np.float32))[0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("logit", 3), "family"),
        (("linear", 0), "features"),
        (("multinomial", 3), "classes"),
        (("linear", 3, 2), "classes"),
    ],
)
def test_a_shape_out_of_range_is_refused_by_name(arguments: tuple[str, int], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Glm(*arguments)


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="24 parameters"):
        _SHAPES[2].split(np.zeros(23, dtype=np.float32))

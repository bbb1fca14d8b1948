"""Noise for released sums, integers with an exactly known distribution; and reports that are private by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from odp.privacy.mechanisms.categorical import UnaryEncoding
    from odp.privacy.mechanisms.discrete_gaussian import DiscreteGaussian, NoiseSource, OperatingSystemNoise
    from odp.privacy.mechanisms.local_means import GaussianMean, LaplaceMean
    from odp.privacy.mechanisms.random_source import RandomSource
    from odp.privacy.mechanisms.randomized_response import RandomizedResponse
    from odp.privacy.mechanisms.rounded_gaussian import ADDED_DELTA, GaussianNoise, IntegerNoise, RoundedGaussian
    from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP
    from odp.privacy.mechanisms.separated import SeparatedVector

__all__ = [
    "ADDED_DELTA",
    "DiscreteGaussian",
    "GaussianMean",
    "GaussianNoise",
    "GridScalar",
    "IntegerNoise",
    "LaplaceMean",
    "NoiseSource",
    "OperatingSystemNoise",
    "RandomSource",
    "RandomizedResponse",
    "RoundedGaussian",
    "ScalarDP",
    "ScalarRelDP",
    "SeparatedVector",
    "UnaryEncoding",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ADDED_DELTA": "odp.privacy.mechanisms.rounded_gaussian",
        "DiscreteGaussian": "odp.privacy.mechanisms.discrete_gaussian",
        "GaussianMean": "odp.privacy.mechanisms.local_means",
        "GaussianNoise": "odp.privacy.mechanisms.rounded_gaussian",
        "GridScalar": "odp.privacy.mechanisms.scalar",
        "IntegerNoise": "odp.privacy.mechanisms.rounded_gaussian",
        "LaplaceMean": "odp.privacy.mechanisms.local_means",
        "NoiseSource": "odp.privacy.mechanisms.discrete_gaussian",
        "OperatingSystemNoise": "odp.privacy.mechanisms.discrete_gaussian",
        "RandomSource": "odp.privacy.mechanisms.random_source",
        "RandomizedResponse": "odp.privacy.mechanisms.randomized_response",
        "RoundedGaussian": "odp.privacy.mechanisms.rounded_gaussian",
        "ScalarDP": "odp.privacy.mechanisms.scalar",
        "ScalarRelDP": "odp.privacy.mechanisms.scalar",
        "SeparatedVector": "odp.privacy.mechanisms.separated",
        "UnaryEncoding": "odp.privacy.mechanisms.categorical",
    },
)

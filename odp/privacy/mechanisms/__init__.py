"""Noise for released sums, integers with an exactly known distribution; and reports that are private by themselves."""

from odp.privacy.mechanisms.categorical import UnaryEncoding
from odp.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from odp.privacy.mechanisms.local_means import GaussianMean, LaplaceMean
from odp.privacy.mechanisms.noise_source import NoiseSource, OperatingSystemNoise
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

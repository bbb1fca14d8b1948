"""Noise for released sums: integers with an exactly known distribution."""

from odp.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from odp.privacy.mechanisms.noise_source import NoiseSource, OperatingSystemNoise
from odp.privacy.mechanisms.rounded_gaussian import ADDED_DELTA, GaussianNoise, IntegerNoise, RoundedGaussian

__all__ = [
    "ADDED_DELTA",
    "DiscreteGaussian",
    "GaussianNoise",
    "IntegerNoise",
    "NoiseSource",
    "OperatingSystemNoise",
    "RoundedGaussian",
]

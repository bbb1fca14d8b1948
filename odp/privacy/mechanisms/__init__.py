"""Noise that is added to released sums: integers of an exactly known law."""

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

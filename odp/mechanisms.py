"""Reports that are private by themselves, and what is known about many of them together."""

from __future__ import annotations

from odp.privacy.mechanisms.categorical import UnaryEncoding
from odp.privacy.mechanisms.local_means import GaussianMean, LaplaceMean
from odp.privacy.mechanisms.privunit import PrivUnit
from odp.privacy.mechanisms.privunit_infinity import PrivUnitInfinity
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.randomized_response import RandomizedResponse
from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP
from odp.privacy.mechanisms.separated import SeparatedVector
from odp.privacy.reconstruction import ReconstructionCertificate, dictionary_breach, projection_breach
from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_binary, amplified_epsilon_k_rr

__all__ = [
    "GaussianMean",
    "GridScalar",
    "LaplaceMean",
    "PrivUnit",
    "PrivUnitInfinity",
    "RandomSource",
    "RandomizedResponse",
    "ReconstructionCertificate",
    "ScalarDP",
    "ScalarRelDP",
    "SeparatedVector",
    "UnaryEncoding",
    "amplified_epsilon",
    "amplified_epsilon_binary",
    "amplified_epsilon_k_rr",
    "dictionary_breach",
    "projection_breach",
]

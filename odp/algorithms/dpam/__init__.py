"""Differentially private alternating minimization: matrix factorization whose user side never leaves the devices."""

from odp.algorithms.dpam.config import DPAM

__all__ = ["DPAM"]

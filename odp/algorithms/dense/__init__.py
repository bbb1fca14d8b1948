"""Dense contributions: one vector of fixed-point integers per user, L2-bounded, summed exactly modulo 2^32."""

from odp.algorithms.dense.grid import Entries, Grid, Steps, encode, quantise
from odp.algorithms.dense.query import DenseQuery, DenseSum

__all__ = ["DenseQuery", "DenseSum", "Entries", "Grid", "Steps", "encode", "quantise"]

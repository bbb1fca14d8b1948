"""Federated analytics: histograms and means over the devices' own tables, in one round with one joint charge."""

from odp.algorithms.statistics.config import Histogram, Mean

__all__ = ["Histogram", "Mean"]

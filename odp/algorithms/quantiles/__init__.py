"""Quantiles of a local column, by noisy counts over a declared grid, with intervals for the noise."""

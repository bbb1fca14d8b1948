"""Measurements of the platform against goals: ``python -m benchmarks list``."""

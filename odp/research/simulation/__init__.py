"""Simulated populations: the algorithm's four computations in one process."""

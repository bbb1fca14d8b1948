"""Numerics without a domain: array types, threads, vector code, and sorting at addresses that no data decide."""

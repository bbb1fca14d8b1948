"""Numerics without a domain: array types, threads, vector code, and sorting with data-independent memory accesses."""

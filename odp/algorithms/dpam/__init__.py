"""Differentially private alternating minimization: matrix factorization whose user side never leaves the devices."""

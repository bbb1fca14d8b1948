"""DP-SGD on an item table from implicit feedback: a private optimiser of the objective of iALS. ``odp.DPSGD``."""

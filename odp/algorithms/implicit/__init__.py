"""DPAM for implicit feedback: private subspace iteration over all pairs, whose steps are combined.

``odp.algorithms.registry`` hands out the parts; developers use ``odp.ImplicitDPAM``.
"""

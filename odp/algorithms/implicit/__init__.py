"""DPAM for implicit feedback: the same alternation with the iALS objective, whose Gramian covers unobserved pairs.

``odp.algorithms.registry`` hands out the parts; developers use ``odp.ImplicitDPAM``.
"""

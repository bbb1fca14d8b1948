"""Where the computation of a simulation runs: on this machine, or on a Ray cluster.

The sums of a round are exact integers, and what a user contributes follows from the user's data and seed alone. So
their sum is the same to the bit wherever users are summed, in whatever parts and order.
"""

"""The declared query of a round of DP-FedAvg.

=============  =========  =============================================  ===========  =============
release        shape      sum over users of                              sensitivity  noise std
=============  =========  =============================================  ===========  =============
``update``     [size]     difference of the parameters / clip norm       1            noise_std
=============  =========  =============================================  ===========  =============

A user's contribution is at most 1 long in L2, in integers on the grid, whatever its device trained on; the empty
contribution is zero. So a sum moves by at most 1, exactly, and the clip norm is no number of the query.

Source: McMahan et al. 2018, "Learning differentially private recurrent language models", algorithm 1, with fixed
denominators.
"""

from __future__ import annotations

from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.fedavg.terms import RELEASE


class UpdateQuery(DenseQuery):
    """``odp.algorithms.seam.SampledQuery`` of one round."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(RELEASE, grid)
        self.empty_payload = bytes(grid.payload_bytes)

"""The declared query of a round of DP-FTRL: one place of the task's stream.

=============  =======  ======================================  =========================  =============  ==============
release        shape    row t of C G, G the sums over users of  sensitivity (all rounds)   noise std      grid
=============  =======  ======================================  =========================  =============  ==============
``update``     [size]   difference of the parameters / clip     sens(C)                    noise_std      step / 2^bits
=============  =======  ======================================  =========================  =============  ==============

A contribution keeps the bound 1 in L2, in integers, as in all federated training. One user moves all releases of the
stream together by at most sens(C), the maximum over the rounds that the participation allows (``Stream``). The charge
of the whole stream comes with round 0.

Source: Denisov et al. 2022; Choquette-Choo et al. 2023, theorem 2.1.
"""

from __future__ import annotations

from odp.algorithms.declared import StreamSum
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dpftrl.stream import StreamOfTask, require_ring
from odp.algorithms.federated.terms import RELEASE
from odp.privacy.matrix.encoding import Encoder

_WRAPPED_LIMIT = 2**31


class StreamedQuery(DenseQuery):
    """``odp.algorithms.seam.StreamQuery`` of the round ``place``."""

    def __init__(self, of_task: StreamOfTask, place: int) -> None:
        super().__init__(RELEASE, of_task.grid)
        stream, event = of_task.stream, of_task.event
        self._stream = stream
        self.allowed = stream.allowed
        self.releases = (StreamSum(RELEASE, (stream.size,), stream.encoded_step, event, place),)

    def encoder(self, *, wrapped: bool = False, state: bytes | None = None) -> Encoder:
        """As ``StreamQuery.encoder``."""
        limit = self.grid.maximum * self.grid.units
        if wrapped:
            require_ring(self._stream, self.grid)
            limit = _WRAPPED_LIMIT
        return self._stream.matrix.encoder(self._stream.size, limit=limit, state=state)

"""The enclave's part of a simulated stream: exact sums are encoded with the same integers; and who comes to a round."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.seam import Algorithm, Query, StreamQuery
from odp.numerics.arrays import Int64Array
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.matrix.sensitivity import Participation


class SimulatedStream:
    """The past sums of a simulation; without a stream, sums stay as they are.

    Args:
      query: of any round.
      state: as ``to_bytes`` gave it; empty before the first round.
    """

    def __init__(self, query: Query, state: bytes = b"") -> None:
        self._encoder: Encoder | None = None
        if isinstance(query, StreamQuery):
            self._encoder = query.encoder(state=state or None)

    def encoded(self, totals: Mapping[str, Int64Array]) -> Mapping[str, Int64Array]:
        """What the round releases of its exact sums, before noise."""
        if self._encoder is None:
            return totals
        return {name: self._encoder.step(total) for name, total in totals.items()}

    def to_bytes(self) -> bytes:
        """The state."""
        return b"" if self._encoder is None else self._encoder.to_bytes()


def participation_of(algorithm: Algorithm) -> Participation | None:
    """How users come to the rounds of a task; None where each is in every round.

    Where a device sends few reports in its life, it comes at equal distances.
    """
    query = algorithm.query(0)
    if isinstance(query, StreamQuery):
        return query.allowed
    if algorithm.local_charge is None:
        return None
    rounds = len(algorithm.planned_releases())
    most = min(algorithm.local_charge.most, rounds)
    return Participation(rounds=rounds, most=most, separation=rounds // most)

"""Every set of rounds that a participation allows: the oracle of sensitivities and records."""

from __future__ import annotations

from collections.abc import Iterator

from odp.privacy.matrix import Participation


def patterns(allowed: Participation) -> Iterator[tuple[int, ...]]:
    """Every allowed set of rounds, the empty one first: for brute force with few rounds."""

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield chosen
        if len(chosen) < allowed.most:
            first = chosen[-1] + allowed.separation if chosen else 0
            for place in range(first, allowed.rounds):
                yield from extend((*chosen, place))

    return extend(())

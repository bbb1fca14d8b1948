"""How fast one aggregator takes contributions, small and dense ones, beside bare gRPC in the same run.

These are figures of the benchmarks ``aggregator`` and ``dense``, which have more of them, of fewer contributions.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import aggregator, dense
from benchmarks.aggregator import Plan
from benchmarks.harness import Figure

_SMALL = (aggregator.OVER_BARE, f"{aggregator.COST}: host", f"{aggregator.COST}: enclave")
_DENSE = (dense.OVER_BARE,)


def run(quick: bool) -> list[Figure]:
    """Both ratios, and the processor time of a small contribution at the host and in the enclave."""
    plan = Plan(1_200, 400, 400, full=False) if quick else Plan(20_000, 1_000, 5_000, full=False)
    small = _named(aggregator.ingest(plan), _SMALL)
    large = _named(dense.ingest(*((20, 2) if quick else (40, 3))), _DENSE)
    return [*small, *(replace(figure, name=f"dense: {figure.name}") for figure in large)]


def _named(figures: list[Figure], names: tuple[str, ...]) -> list[Figure]:
    return [figure for figure in figures if figure.name in names]

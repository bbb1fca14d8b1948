"""The part about ingest shows what two other benchmarks measure, by their names."""

from __future__ import annotations

import pytest

from benchmarks import aggregator, dense
from benchmarks.aggregator import Plan
from benchmarks.harness import Figure
from benchmarks.scale import ingest


def test_the_ratios_and_the_processor_times_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = aggregator._Server("127.0.0.1:1", b"", {})
    real.rate, real.seconds, real.messages = 300.0, 1.0, 1000
    real.used = {"host": 0.2, "platform": 0.0, "enclave": 0.1}
    faster, slower = (aggregator._Server("127.0.0.1:1", b"", {}) for _ in range(2))
    faster.rate, slower.rate = 600.0, 500.0

    def small(plan: Plan) -> list[Figure]:
        return [
            *aggregator._rates(real, faster, "asyncio", slower, "32 threads"),
            *aggregator._costs(real, 1000, faster),
        ]

    def large(contributions: int, times: int) -> list[Figure]:
        return [Figure("masked", 1.0, ""), Figure(dense.OVER_BARE, 0.6, "ratio", ">= 0.5")]

    monkeypatch.setattr(aggregator, "ingest", small)
    monkeypatch.setattr(dense, "ingest", large)
    shown = {figure.name: (figure.value, figure.goal is not None) for figure in ingest.run(quick=True)}
    assert shown == {
        "contributions over the faster bare gRPC server": (0.5, True),
        "processor time per contribution: host": (200.0, False),
        "processor time per contribution: enclave": (100.0, False),
        "dense: ingest over bare stream": (0.6, True),
    }

"""The benchmark of isolated calls measures what it says it does."""

from __future__ import annotations

import sys

import pytest

from benchmarks import isolated


# A whole run of a benchmark: no promise rests on one.
@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="services need Linux")
def test_its_figures_are_positive_and_ordered() -> None:
    found = {figure.name: figure.value for figure in isolated.figures(quick=True)}
    assert len(found) == 5
    assert 0 < found["call, p50"] <= found["call, p99"]
    assert 0 < found["call without pauses, p50"] <= found["call without pauses, p99"]
    # A start holds at least one whole call.
    assert found["cold start, to the first answer"] * 1000 > found["call, p50"]

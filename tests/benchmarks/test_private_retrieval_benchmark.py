"""The private queries that the benchmark times give the table's rows."""

from __future__ import annotations

import pytest

from benchmarks import private_retrieval
from benchmarks.private_retrieval import retrieval
from benchmarks.scanning import Shape, table
from odp.crypto import pir


def test_private_retrieval_has_goals_at_full_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_retrieval, "MEMORY_BYTES", 2**16)
    shape = Shape(300, 16)
    for full in (True, False):
        figures = retrieval(table(shape), shape, keys=5, repeats=1, full=full)
        assert len({figure.name for figure in figures}) == len(figures) == 10
        assert sum(figure.goal is not None for figure in figures) == (2 if full else 0)
        assert all(figure.value > 0 for figure in figures)


def test_a_benchmark_of_wrong_rows_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(Shape(300, 16))
    recover = pir.recover
    monkeypatch.setattr(pir, "recover", lambda secret, reply: recover(secret, reply) ^ 1)
    with pytest.raises(RuntimeError, match="other rows"):
        retrieval(rows, Shape(300, 16), keys=5, repeats=1, full=False)

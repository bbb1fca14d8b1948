"""The chart of error and ε by round in a terminal: what stands where, at every width."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from odp.cli.demo_rounds import ProgressChart


def _lines(chart: ProgressChart, *, width: int = 100, encoding: str = "utf-8") -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width, highlight=False).print(chart)
    stream.flush()
    stream.seek(0)
    return stream.read().splitlines()


def _chart(**changes: object) -> ProgressChart:
    values: dict[str, object] = {
        "errors": [0.95, 0.85, 0.8], "epsilon": [0.0, 4.0, 8.0], "budget": 8.0, "references": {"item mean": 0.9},
    }  # fmt: skip
    return ProgressChart(**{**values, **changes})  # type: ignore[arg-type]


def test_a_smaller_error_stands_further_left_and_a_bar_grows_with_what_was_spent() -> None:
    _head, *rows, _reference = _lines(_chart())
    places = [row.index("●") for row in rows]
    assert places == sorted(places, reverse=True)
    assert len(set(places)) == 3
    bars = [row.count("█") for row in rows]
    whole = bars[2]
    assert bars == [0, whole / 2, whole] or bars == [0, round(whole / 2), whole]
    assert rows[2].count("░") == 0
    assert [row.split()[0] for row in rows] == ["before", "round", "round"]
    assert [value in row for value, row in zip(("0.9500", "0.8500", "0.8000"), rows, strict=True)] == [True] * 3


def test_a_reference_is_a_line_at_its_error_between_the_points() -> None:
    _head, before, first, last, reference = _lines(_chart())
    place = reference.index("◇")
    assert first.index("●") < place < before.index("●")
    assert all(row[place] == "│" for row in (before, first, last))
    assert reference.rstrip().endswith("0.9000    item mean")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = _lines(_chart(), width=width)
    assert len(lines) == 5, "none is folded"
    assert max(map(len, lines)) <= width


def test_an_unknown_error_has_a_dash_and_no_point() -> None:
    rows = _lines(_chart(errors=[0.95, math.nan, 0.8]))
    assert "●" not in rows[2]
    assert " - " in rows[2]


def test_without_a_budget_there_are_no_bars() -> None:
    text = "\n".join(_lines(_chart(budget=math.inf, epsilon=[0.0, math.inf, math.inf])))
    assert "█" not in text
    assert "spent" not in text


def test_equal_errors_and_a_terminal_without_unicode_are_drawn() -> None:
    lines = _lines(_chart(errors=[0.9, 0.9, 0.9]), encoding="ascii")
    assert all("o" in row[10:] for row in lines[1:4])
    assert "epsilon spent of 8" in lines[0]
    assert "#" in lines[3]

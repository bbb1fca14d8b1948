"""Words and charts of the person's page promise what the definition does, and no more."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.view.history import history_chart
from device_runtime.view.meaning import explained, percent, sureness, verdict


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(0.0, "50 %"), (1.0, "73 %"), (4.0, "98.2 %"), (8.0, "99.97 %"), (12.0, "practically certain")],
)
def test_the_bound_is_that_of_the_definition(epsilon: float, said: str) -> None:
    assert sureness(epsilon) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-12)
    assert percent(sureness(epsilon)) == said


def test_an_infinite_epsilon_bounds_nothing() -> None:
    assert percent(sureness(None)) == percent(sureness(math.inf)) == "certain"
    assert "without a bound" in verdict(None, 2)


@given(st.floats(0, 60))
def test_no_number_looks_like_certainty_or_like_less_than_it_is(epsilon: float) -> None:
    said = percent(sureness(epsilon))
    if not said.endswith("%"):
        assert epsilon > 9
        return
    shown = float(said.split()[0]) / 100
    assert shown < 1
    left = 1 - sureness(epsilon)
    assert abs((1 - shown) - left) <= 0.17 * left


def test_the_verdict_counts_and_bounds() -> None:
    assert verdict(0.0, 0) == "Nothing made with your data has left this device."
    assert "took part once" in verdict(1.0, 1)
    assert "took part 1,200 times" in verdict(4.0, 1200)
    assert "at most 98.2 % sure" in verdict(4.0, 3)
    assert [row[0] for row in explained()] == ["1", "4", "8"]


def test_the_chart_is_a_picture_with_words_below_the_limit() -> None:
    chart = ElementTree.fromstring(history_chart([1.5, 3.0, 4.25], 8.0, first="2026-01-01", last="2026-02-01"))
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "ε after each of 3 contributions rises to 4.25; your limit is 8"
    texts = [one.text for one in chart.iter("text")]
    assert texts == ["ε 4.25", "2026-01-01", "2026-02-01", "your limit 8"]
    (limit,) = (one for one in chart.iter("line") if one.get("class") == "limit")
    line = next(one for one in chart.iter("path") if one.get("class") == "line")
    heights = [float(part.split("H")[0]) for part in line.get("d", "").split("V")[1:]]
    assert heights == sorted(heights, reverse=True)
    assert float(limit.get("y1", "nan")) < heights[-1]


def test_a_chart_without_finite_values_is_left_out() -> None:
    assert history_chart([None, math.inf], 8.0, first="a", last="b") == ""
    assert "your limit" not in " ".join(
        text.text or ""
        for text in ElementTree.fromstring(history_chart([0.01], 20.0, first="a", last="a")).iter("text")
    )

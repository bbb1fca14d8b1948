"""Words and charts of the person's page promise what the definition does, and no more."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from device_runtime.view.meaning import explained, history_chart, percent, sureness, verdict


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(0.0, "50 %"), (1.0, "74 %"), (4.0, "98.3 %"), (8.0, "99.97 %"), (12.0, "practically certain")],
)
def test_the_bound_is_that_of_the_definition(epsilon: float, said: str) -> None:
    assert sureness(epsilon) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-12)
    assert percent(sureness(epsilon)) == said


def test_an_infinite_epsilon_bounds_nothing() -> None:
    assert percent(sureness(None)) == percent(sureness(math.inf)) == "certain"
    assert "no bound" in verdict(None, 1e-6, {"contribution": 2})


@given(st.floats(0, 60))
def test_no_number_looks_like_certainty_or_like_less_than_it_is(epsilon: float) -> None:
    said = percent(sureness(epsilon))
    if not said.endswith("%"):
        assert epsilon > 9
        return
    shown = float(said.split()[0]) / 100
    assert sureness(epsilon) - 1e-11 <= shown < 1
    left = 1 - sureness(epsilon)
    assert abs((1 - shown) - left) <= 0.33 * left


def test_the_verdict_counts_and_bounds() -> None:
    assert verdict(0.0, 0.0, {"contribution": 0}) == "Nothing made with your data has left this device."
    said = verdict(4.0, 1e-6, {"contribution": 1, "refused contribution": 0, "noisy answer": 1200})
    assert "left the device: 1 contribution and 1,200 noisy answers. " in said
    assert "at most 98.3 % sure" in said
    assert said.endswith("but for a chance of about 1 in 1,000,000.")
    assert [row[0] for row in explained()] == ["1", "4", "8"]


@pytest.mark.parametrize("left", [{"refused contribution": 1}, {"noisy answer": 3}, {}])
def test_what_left_is_never_called_nothing(left: dict[str, int]) -> None:
    assert "Nothing" not in verdict(0.9, 0.0, left)


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


def test_a_chart_with_an_infinite_value_is_left_out() -> None:
    assert history_chart([None, math.inf], 8.0, first="a", last="b") == ""
    assert history_chart([1.0, 2.0, None], 8.0, first="a", last="b") == "", "what has no bound has no height"
    assert "your limit" not in " ".join(
        text.text or ""
        for text in ElementTree.fromstring(history_chart([0.01], 20.0, first="a", last="a")).iter("text")
    )

"""Pictures in the house style: the same bytes every time, legible in light and dark, labels in place of legends."""

from __future__ import annotations

import functools
import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from contrast import contrast
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError, DataError
from odp.pictures import charts, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = {
    "global_mean": 1.1,
    "user_mean": 0.96,
    "dp_item_mean": 0.955,
    "dp_item_user_bias": 0.95,
    "als_ceiling": 0.8,
}
COURSE = charts.Course([0, 1, 2, 3], [None, 0.95, 0.87, 0.86], [1.0, 2.0, 3.0, 4.0])
CHARTS: dict[str, Callable[[float], Figure]] = {
    "methods": lambda width: charts.methods(
        {"this model": 0.86, **BASELINES}, metric="test RMSE", lower_is_better=True, width=width
    ),
    "by round": lambda width: charts.by_round(
        COURSE, name="this model", metric="test RMSE", levels=BASELINES, budget=4.0, width=width
    ),
    "without noise": lambda width: charts.by_round(
        charts.Course([0, 1], [0.9, 0.8], [None, None]), name="this model", metric="RMSE", levels={}, budget=None,
        width=width,
    ),
    "groups": lambda width: charts.groups(
        ["1–2", "3–9", "10"], [0.9, None, 0.8], group="ratings", metric="RMSE", reference=[1.0, 1.0, 0.9],
        reference_name="user mean", width=width,
    ),
    "runs": lambda width: charts.runs(
        {"a": COURSE, "b": charts.Course([0, 1], [0.99, 0.98], [1.0, 2.0])}, metric="test RMSE", width=width
    ),
}  # fmt: skip
SHOWN = [(name, width) for name in CHARTS for width in (charts.NARROW, charts.WIDE)]


@functools.cache
def drawn(name: str, width: float) -> str:
    """A chart as tests look at it, drawn once for all of them."""
    return style.svg(CHARTS[name](width), title="a < b", name="first", text="in numbers")


@pytest.mark.parametrize(("name", "width"), SHOWN)
@pytest.mark.slow
def test_a_chart_is_the_same_text_every_time_and_names_what_it_shows(name: str, width: float) -> None:
    found = drawn(name, width)
    assert found == style.svg(CHARTS[name](width), title="a < b", name="first", text="in numbers")
    root = ET.fromstring(found)
    assert (root.tag, root.get("role"), root.get("aria-label")) == ("svg", "img", "a < b. in numbers")
    assert root[0].tag == "title"
    assert root[0].text == "a < b"
    assert root.findall(".//text")
    assert not re.search(r"https?:|<metadata|<script|@import|20\d\d-\d\d", found)


@pytest.mark.parametrize(("name", "width"), SHOWN)
@pytest.mark.slow
def test_a_chart_takes_all_its_colours_from_the_page(name: str, width: float) -> None:
    found = drawn(name, width)
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", found.replace("#first-", ""))
    used = set(re.findall(r"var\(--odp-(\w+)\)", found))
    assert "muted" in used
    assert used <= {field.name for field in fields(style.Theme)}
    for name in used:
        assert f"--odp-{name}:" in style.css()


def test_pictures_of_one_page_share_no_id() -> None:
    ids = [
        re.findall(r'\bid="([^"]+)"', style.svg(CHARTS["runs"](charts.WIDE), title="t", name=name))
        for name in ("a", "b")
    ]
    assert ids[0]
    assert len(set(ids[0])) == len(ids[0])
    assert not set(ids[0]) & set(ids[1])
    with pytest.raises(ConfigurationError, match="letters"):
        style.svg(CHARTS["runs"](charts.WIDE), title="t", name='a" b')


@pytest.mark.parametrize(("name", "width"), SHOWN)
@pytest.mark.slow
def test_labels_stand_beside_lines_and_overlap_nowhere(name: str, width: float) -> None:
    figure = CHARTS[name](width)
    assert all(panel.get_legend() is None for panel in figure.axes)
    style.settle(figure)
    figure.draw_without_rendering()
    for panel in figure.axes:
        boxes = [text.get_window_extent() for text in panel.texts if text.get_label() == "direct label"]
        for one, other in itertools.combinations(boxes, 2):
            assert min(one.y1, other.y1) - max(one.y0, other.y0) < 1.0, (name, one, other)
        assert all(box.x1 <= figure.bbox.x1 + 1 for box in boxes)


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK])
def test_text_and_lines_are_legible(theme: style.Theme) -> None:
    for role in ("ink", "muted", "accent", "strong", "plain", "faint"):
        assert contrast(getattr(theme, role), theme.paper) >= 4.5, role
    assert contrast(theme.soft, theme.paper) > 1.9
    assert len({getattr(theme, field.name) for field in fields(theme)}) == len(fields(theme))


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#ffffff", "#777777") == pytest.approx(4.48, abs=0.005)


#: Machado, Oliveira and Fernandes 2009, severity 1: linear red, green, blue as people without a kind of cone see them.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def seen(colour: str, matrix: list[list[float]]) -> np.ndarray:
    """CIE L*a*b* of a colour through a matrix."""
    raw = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(raw <= 0.04045, raw / 12.92, ((raw + 0.055) / 1.055) ** 2.4)
    turned = np.clip(np.array(matrix) @ linear, 0.0, 1.0)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ turned / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK])
@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_accent_differs_from_all_greys_for_people_who_see_colours_otherwise(kind: str, theme: style.Theme) -> None:
    """A difference of 2.3 is just seen, see Mahy et al. 1994; these are four times as far apart."""
    accent = seen(theme.accent, BLINDNESS[kind])
    for role in ("ink", "strong", "plain", "faint", "muted"):
        assert np.linalg.norm(accent - seen(getattr(theme, role), BLINDNESS[kind])) > 9.2, role


def test_a_method_looks_the_same_by_each_of_its_names() -> None:
    from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS

    assert style.look("als_ceiling") == style.look("ALS, all data in one place")
    assert style.look("dp_item_user_bias") == style.look("DP item mean + user bias")
    looks = {}
    for method in (*RATING_METHODS, *RANKING_METHODS):
        looks[method.name] = style.look(method.name)
    assert [name for name, found in looks.items() if found.ours] == ["DPAM"]
    rated = [style.look(method.name) for method in RATING_METHODS]
    assert len({str(found.dashes) + found.colour for found in rated}) == len(rated)
    assert len({found.marker for found in rated}) == len(rated)


@given(st.lists(st.floats(-50, 150), max_size=12), st.floats(0.1, 20))
def test_labels_are_spread_in_order_and_within_bounds(wanted: list[float], gap: float) -> None:
    found = style.spread(wanted, gap, low=0.0, high=100.0)
    order = np.argsort(wanted, kind="stable")
    assert np.all(np.diff(found[order]) >= gap - 1e-6)
    if (len(wanted) - 1) * gap <= 100.0:
        assert np.all((found >= -1e-6) & (found <= 100.0 + 1e-6))


def test_labels_with_room_stay_where_they_are() -> None:
    assert style.spread([10.0, 30.0, 20.0], 5.0, low=0.0, high=50.0).tolist() == [10.0, 30.0, 20.0]


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.slow
def test_files_are_the_same_bytes_every_time(tmp_path: Path, ending: str, theme: str) -> None:
    found = []
    for number in range(2):
        path = tmp_path / f"{number}" / f"chart.{ending}"
        path.parent.mkdir()
        style.save(CHARTS["runs"](charts.WIDE), path, theme=theme)  # type: ignore[arg-type]
        found.append(path.read_bytes())
    assert found[0] == found[1]
    assert found[0].startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[ending])


@pytest.mark.slow
def test_a_file_of_svg_has_both_themes_and_a_dark_picture_is_dark(tmp_path: Path) -> None:
    from matplotlib.image import imread

    style.save(CHARTS["methods"](charts.WIDE), tmp_path / "chart.svg")
    root = ET.parse(tmp_path / "chart.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert style.LIGHT.accent in text
    assert style.DARK.accent in text
    assert "prefers-color-scheme:dark" in text
    style.save(CHARTS["by round"](charts.WIDE), tmp_path / "dark.png", theme="dark")
    pixels = imread(tmp_path / "dark.png")[..., :3]
    paper = [int(style.DARK.paper[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    assert np.allclose(np.median(pixels, axis=(0, 1)), paper, atol=0.01)
    accent = [int(style.LIGHT.accent[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    assert not np.any(np.all(np.abs(pixels - accent) < 0.01, axis=2))


def test_a_file_of_another_kind_and_one_without_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("chart.txt", "chart", "none/chart.png", "none/chart.svg"):
        with pytest.raises(DataError, match="cannot draw"):
            style.save(CHARTS["runs"](charts.WIDE), tmp_path / name)


def test_names_of_people_are_drawn_as_they_are(tmp_path: Path) -> None:
    name = "a $x^2$ & <b> \x07 é 漢"
    runs = {name: COURSE, "$": COURSE}
    found = style.svg(charts.runs(runs, metric="RMSE $ and $"), title=name)
    text = "".join(ET.fromstring(found).itertext())
    assert "a $x^2$ & <b> \N{REPLACEMENT CHARACTER} é 漢" in text
    assert "RMSE $ and $" in text
    style.save(charts.runs(runs, metric="RMSE"), tmp_path / "chart.svg", title=name)
    ET.parse(tmp_path / "chart.svg")

"""Pictures of answers: each the same bytes every time, in the house's colours, without a legend."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import broadcast_figure
from odp.algorithms.draw_and_discard.model import LocalModel
from odp.algorithms.estimates import Estimate
from odp.algorithms.federated.diagnostics import UpdateDiagnostics, UpdateFigures
from odp.algorithms.heavy_hitters.results import WordResults
from odp.algorithms.model_evaluation import curves as evaluation
from odp.algorithms.model_evaluation.curves import Calibration, Group, Histograms, Measured
from odp.algorithms.quantiles.results import QuantileResults
from odp.algorithms.statistics import results as statistics
from odp.algorithms.statistics.results import HistogramResult, MeanResult
from odp.errors import DataError
from odp.evaluation.baselines import Baselines
from odp.evaluation.comparison import draw_progress
from odp.pictures import style
from odp.research.simulation.comparing import Comparison, draw_comparison
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS, RECALL, RMSE

WORDS = WordResults({"tea": 90.0, "$ & <b>": 40.0}, 5.0, 200, 1.0, 1e-6)
QUANTILES = QuantileResults(np.array([5.0, 20.0, 9.0]), 2.0, np.array([0.0, 1.0, 2.0, 3.0]), (0.25, 0.5), 34, 1.0, 1e-6)
COUNTS = HistogramResult(np.array([30.0, -2.0, 9.0]), 3.0, None, "users")
VALUES = HistogramResult(np.array([30.0, 5.0]), np.array([3.0, 4.0]), np.array([0.0, 1.0, 5.0]), "records")
MEAN = MeanResult(3.0, 20.0, 1.0, 0.0, 60.0)
MODEL = LocalModel(
    SimpleNamespace(  # type: ignore[arg-type]
        features=SimpleNamespace(names=("age", "hour"), class_names=()), classes=1, model_epsilon=1.0
    ),
    np.array([0.5, -1.5]), 40, 0.1,
)  # fmt: skip
ROUND = UpdateFigures(
    clip_norm=1.0, update_scale=0.2, update_scale_std=0.05, client_variance=0.1, client_variance_std=0.02,
    share_within_clip=None,
)  # fmt: skip
UPDATES = UpdateDiagnostics("films", (ROUND, dataclasses.replace(ROUND, update_scale=0.1)), 50, 4.0, 1e-6)


def near(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


MODELS = {
    name: Measured(
        near(100.0), {"accuracy": near(0.9 - step), "auc": near(0.8 - step)},
        Calibration((Group(0.0, 0.5, 0.3, near(0.35), 0.5), Group(0.5, 1.0, 0.7, near(0.6 - step), 0.5)), near(0.1)),
    )
    for name, step in (("new", 0.0), ("old", 0.1))
}  # fmt: skip
CURVES = {name: Histograms(np.array([1.0, 5.0, 9.0]), np.array([9.0, 4.0, step]), 0.5) for name, step in
          (("new", 1.0), ("old", 3.0))}  # fmt: skip


def comparison(path: Path, *, ranked: bool) -> None:
    methods, metric = (RANKING_METHODS, RECALL) if ranked else (RATING_METHODS, RMSE)
    scores = {
        method.name: {metric.name: [[0.5 + 0.05 * place + 0.01 * seed for seed in range(2)] for _ in range(3)]}
        for place, method in enumerate(methods)
    }
    draw_comparison(
        path,
        Comparison("films", "auto", (metric,), (1.0, 8.0, math.inf), 1e-6, (1, 2), methods, scores, 1.0),
    )


PICTURES: dict[str, Callable[[Path], Any]] = {
    "words": lambda path: WORDS.draw(path),
    "words beside exact ones": lambda path: WORDS.draw(path, exact=WORDS),
    "no word": lambda path: WordResults({}, 5.0, 200, 1.0, 1e-6).draw(path),
    "quantiles": lambda path: QUANTILES.draw(path, exact=QUANTILES),
    "statistics": lambda path: statistics.draw(
        {"hours": COUNTS, "length": VALUES, "mean": MEAN}, path, title="t", exact={"hours": COUNTS, "mean": MEAN},
        confidence=0.95,
    ),
    "local model": lambda path: MODEL.draw(path, exact=MODEL),
    "updates": lambda path: UPDATES.draw(path),
    "curves of models": lambda path: evaluation.draw(
        evaluation.Drawn(MODELS, CURVES), path, exact=evaluation.Drawn(MODELS, CURVES)
    ),
    "metrics of models": lambda path: evaluation.draw(
        evaluation.Drawn(MODELS, {}), path, exact=evaluation.Drawn(MODELS, {})
    ),
    "comparison of errors": lambda path: comparison(path, ranked=False),
    "comparison of rankings": lambda path: comparison(path, ranked=True),
    "progress": lambda path: draw_progress(
        path, rmse=[math.nan, 0.9, 0.8], epsilon=[0.0, 1.0, 2.0], budget=2.0,
        baselines=Baselines(
            **dict.fromkeys((field.name for field in fields(Baselines)), 0.9)
        ),
    ),
    "broadcast": lambda path: broadcast_figure.draw(
        {"bytes": {"enclave": {"a": 10.0, "b": 20.0}, "all": {"a": 30.0, "b": 90.0}}}, path
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.slow
def test_a_picture_is_the_same_bytes_every_time_and_follows_the_theme(name: str, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        path = tmp_path / str(number) / "picture.svg"
        path.parent.mkdir()
        PICTURES[name](path)
        found.append(path.read_bytes())
    assert found[0] == found[1]
    text = found[0].decode()
    drawn = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    # Every colour is a role of the theme, so that none stays light on a dark page.
    assert not re.findall(r"(?:fill|stroke): ?(#[0-9a-fA-F]{3,8}|black|white)\b", drawn)
    assert not re.search(r'id="[^"]*legend', text)
    uses = {field.name for field in fields(style.Theme) if f"var(--odp-{field.name})" in drawn}
    assert ("accent" in uses or "soft" in uses) == (name != "no word"), "the accent is where a value is"
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label")


# All are drawn above; the endings are matplotlib's, whatever is drawn.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.proof if number else []) for number, name in enumerate(PICTURES)]
)
def test_a_picture_is_drawn_as_png_and_pdf_and_nothing_else(name: str, tmp_path: Path) -> None:
    for ending, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        PICTURES[name](tmp_path / f"picture.{ending}")
        assert (tmp_path / f"picture.{ending}").read_bytes().startswith(start)
    with pytest.raises(DataError, match=r"\.png, \.svg or \.pdf"):
        PICTURES[name](tmp_path / "picture.txt")


def test_released_values_are_told_from_exact_ones_in_words(tmp_path: Path) -> None:
    for with_exact in (False, True):
        path = tmp_path / f"{with_exact}.svg"
        WORDS.draw(path, exact=WORDS if with_exact else None)
        text = "".join(ET.parse(path).getroot().itertext())
        assert "released, with noise, and its 95 % interval" in text
        assert ("never released" in text) == with_exact
        assert "tea" in text
        assert "$ & <b>" in text

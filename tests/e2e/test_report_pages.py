"""Pages of `odp report` in a real Chromium: they fit a phone and a wide screen, in light and dark, and load nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contrast import contrast
from e2e.browser import Browser, catching

from odp.datasets import random_split, synthetic_movielens
from odp.evaluation.baselines import Baselines, baseline_outcomes
from odp.pictures.style import DARK, LIGHT
from odp.research.simulation.engine import simulate
from odp.research.simulation.presets import preset_task
from odp.research.simulation.record import plain, run_record
from odp.research.simulation.report import render_html
from odp.research.simulation.report_of_runs import render_runs

WIDTHS = (390, 1100, 1600)
#: The colours of each text that is drawn on the page and in its charts, and its size in pixels of the screen.
_TEXTS = """
return [...document.querySelectorAll('main *')].filter(one => one.checkVisibility()
  && [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim())).map(one => {
    const style = getComputedStyle(one), svg = one.closest('svg');
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return [svg ? style.fill : style.color, parseFloat(style.fontSize) * scale, one.textContent.trim()];
  });
"""


def record(epsilon: float) -> dict[str, Any]:
    data = synthetic_movielens(n_users=300, n_items=30, ratings_per_user=12, seed=3)
    split, task = random_split(data, seed=1), preset_task("auto", data, epsilon=epsilon, delta=1e-4)
    run = simulate(task, split, seed=1)
    from odp.algorithms.dpam.experiment import diagnose

    found: dict[str, Any] = plain(
        run_record(
            kind="simulation", task=task, split=split, rounds=[entry.to_json() for entry in run.rounds],
            charges=run.charges, metrics=run.metrics, seed=1,
            baselines=vars(Baselines.of(baseline_outcomes(task, split, seed=1))),
            diagnostics=diagnose(task, split, run.model), notes=["a note"],
        )
    )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, records = tmp_path_factory.mktemp("pages"), {"wide": record(20.0), "tight": record(2.0)}
    texts = {"run": render_html(records["wide"]), "runs": render_runs(records)}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with catching() as catcher:
        found = Browser(tmp_path_factory.mktemp("browser"), catcher)
        yield found
        found.close()


def shown(browser: Browser, page: Path, *, width: int, theme: str) -> Any:
    driver = browser.driver
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    driver.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    return driver


def colour(css: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", css)[:3])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", ["run", "runs"])
def test_a_page_fits_its_screen_and_every_text_is_legible(
    browser: Browser, pages: dict[str, Path], page: str, theme: str, width: int
) -> None:
    driver = shown(browser, pages[page], width=width, theme=theme)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    paper = colour(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert paper == {"light": LIGHT, "dark": DARK}[theme].paper
    texts = driver.execute_script(_TEXTS)
    assert len(texts) > 40
    for fill, size, text in texts:
        assert contrast(colour(fill), paper) >= 4.5, (text, fill)
        assert size >= 9.0, (text, size)
    charts = driver.execute_script(
        "return [...document.querySelectorAll('svg')].filter(one => one.checkVisibility())"
        ".map(one => [one.getBoundingClientRect().left, one.getBoundingClientRect().right])"
    )
    assert len(charts) == {"run": 7, "runs": 1}[page]
    assert all(left >= 0 and right <= width for left, right in charts)


def test_labels_of_charts_do_not_leave_them_in_the_fonts_of_a_browser(browser: Browser, pages: dict[str, Path]) -> None:
    for width in WIDTHS:
        driver = shown(browser, pages["run"], width=width, theme="light")
        beyond = driver.execute_script(
            "return [...document.querySelectorAll('svg')].filter(one => one.checkVisibility()).flatMap(svg => {"
            "const box = svg.getBoundingClientRect(); return [...svg.querySelectorAll('text')].filter(text => {"
            "const own = text.getBoundingClientRect(); return own.right > box.right + 2 || own.left < box.left - 2;"
            "}).map(text => text.textContent)})"
        )
        assert beyond == [], width


def test_a_page_asks_no_host_for_anything(browser: Browser, pages: dict[str, Path]) -> None:
    driver = shown(browser, pages["run"], width=1100, theme="light")
    loaded = driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert loaded == []

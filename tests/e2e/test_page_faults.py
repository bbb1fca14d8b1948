"""Every page that ODP writes or serves has no fault in a real browser: phone, laptop and screen, light and dark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.page_faults import WIDTHS, Pages
from typer.testing import CliRunner

import odp
from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.view.pages import STYLE, around, front, inner, problem
from device_runtime.view.privacy_page import DeviceControls
from device_runtime.view.source import ResultPage
from odp.cli.main import app

pytestmark = [pytest.mark.slow, pytest.mark.processes]
NOW = 1_800_000_000.0
SMALL = "synthetic:n_users=200,n_items=30,ratings_per_user=12"


# Texts meet where it is narrow: CI judges their contrast there, and `make proof` at every width.
@pytest.fixture(
    scope="module", params=[WIDTHS[:1], pytest.param(WIDTHS, marks=pytest.mark.proof)], ids=["phone", "all"]
)
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    pages = Pages(tmp_path_factory.mktemp("browser"), contrast_widths=request.param)
    yield pages
    pages.close()


def lived(page: Any) -> Any:
    """The page of a device that contributed, to an enclave and by itself."""
    sent = [
        {
            "time": NOW - 86400.0 * (5 - place), "name": "films", "round": place, "developer": "ab" * 32,
            "policy_sha256": "cd" * 32, "local_trust": place == 2, "refusal": "", "state": "sent", "charged": True,
            "so_far": {"epsilon": 1.5 * (place + 1), "delta": 1e-6},
        }
        for place in range(5)
    ]  # fmt: skip
    spent = {"total": {"epsilon": 7.5, "delta": 1e-6}, "30_days": {"epsilon": 7.5, "delta": 1e-6}}
    return dataclasses.replace(page, overview=page.overview | {"contributions": sent, "spent": spent})


def test_the_persons_page(pages: Pages, tmp_path: Path) -> None:
    with Store.open_or_create(tmp_path / "0.sqlite") as store:
        store.fill(np.array([1, 2]), np.array([3.0, 4.0]), filled_from=b"test")
    controls = DeviceControls(tmp_path / "0.sqlite", Gate(), name="device 0", clock=lambda: NOW)
    (tmp_path / "style.css").write_text(STYLE, encoding="utf-8")
    for name, page in (("new", controls.page()), ("lived", lived(controls.page()))):
        file = tmp_path / f"{name}.html"
        file.write_text(front(page, [], NOW), encoding="utf-8")
        assert pages.faults(file.as_uri()) == []
    result = ResultPage(id="ab", service="films", title="Tonight", time=NOW - 120, html="")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "ab.html").write_text(around(result, "inner.html", NOW), encoding="utf-8")
    (tmp_path / "results" / "inner.html").write_text(inner("<h1>Tonight</h1><p>Heat</p>"), encoding="utf-8")
    for name in ("results/ab.html", "results/inner.html"):
        assert pages.faults((tmp_path / name).as_uri()) == []
    (tmp_path / "problem.html").write_text(problem("there is no such page", back=True), encoding="utf-8")
    assert pages.faults((tmp_path / "problem.html").as_uri()) == []


def test_the_report_of_a_run(pages: Pages, tmp_path: Path) -> None:
    for arguments in (
        ["simulate", "--data", SMALL, "--delta", "1e-4", "--output", str(tmp_path / "run")],
        ["report", str(tmp_path / "run")],
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.stderr
    assert pages.faults((tmp_path / "run" / "report.html").as_uri()) == []


def test_the_page_of_a_comparison(pages: Pages, tmp_path: Path) -> None:
    found = odp.compare(SMALL, epsilons=(2, 8), delta=1e-4, seeds=1)
    assert pages.faults(Path(found.report(tmp_path / "comparison.html")).absolute().as_uri()) == []


def test_a_fault_is_found(pages: Pages, tmp_path: Path) -> None:
    bad = '<html><body><img src="x.png"><p style="color:#eee;background:#fff;width:2000px">pale</p></body></html>'
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    found = " ".join(pages.faults((tmp_path / "bad.html").as_uri()))
    for part in ("image-alt", "color-contrast", "html-has-lang", "wider than the window", "390 dark"):
        assert part in found


# All pages of the site have one theme, which CI judges on the first of them. A reference page has up to 8,000
# elements, of which a browser takes a minute to judge the colours.
@pytest.mark.parametrize(
    "name",
    [
        "index.html",
        pytest.param("tutorials/your-own-data.html", marks=pytest.mark.proof),
        pytest.param("reference/questions.html", marks=pytest.mark.proof),
        pytest.param("device-in-an-app.html", marks=pytest.mark.proof),
        pytest.param("reference/tasks.html", marks=pytest.mark.proof),
    ],
)  # fmt: skip
def test_the_docs_site(pages: Pages, name: str) -> None:
    page = Path(__file__).resolve().parents[2] / "site" / name
    if not page.is_file():
        pytest.skip("the docs site is not built: `make docs` builds it, and CI does before its tests")
    assert pages.faults(page.as_uri()) == []

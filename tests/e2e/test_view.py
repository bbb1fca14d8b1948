"""Nothing leaves a rendered page: hostile pages in a real Chromium, beside the same pages without the view's walls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from e2e.browser import Browser, Catcher, catching, chromium
from e2e.hostile_pages import BY_LOG, BY_PACKETS, NOT_WITHOUT_WINDOW, clicked_routes, leaving_routes, quiet_routes

from device_runtime.view import ResultPage, server, start_view
from device_runtime.view.privacy_page import PrivacyPage

pytestmark = pytest.mark.processes

_NO_SPENDING = {"epsilon": 0.0, "delta": 1e-6}
_IN_THE_FRAME = (300, 400)


class _Controls:
    def page(self) -> PrivacyPage:
        limits = {"max_total_epsilon": 4.0, "max_total_epsilon_30_days": 4.0, "max_developer_epsilon": 4.0}
        found = {
            "examples": 3, "read": [], "contributions": [], "limits": limits, "limits_set_by": "host",
            "spent": {"total": _NO_SPENDING, "30_days": _NO_SPENDING},
            "paused_since": None, "opted_out_since": None, "opt_outs": {},
        }  # fmt: skip
        return PrivacyPage(name="device 0", overview=found, reasons=())

    def decide(self, what: str, form: Mapping[str, str]) -> bool:
        return False


class _Results:
    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = {
            id: ResultPage(id=id, service="films", title=f"page {id}", time=0.0, html=html)
            for id, html in pages.items()
        }

    def results(self) -> list[ResultPage]:
        return list(self._pages.values())

    def result(self, id: str) -> ResultPage | None:
        return self._pages.get(id)


def _pages(prefix: str, catcher: Catcher) -> tuple[dict[str, str], dict[str, str]]:
    """(pages to open, pages to click on)."""
    quiet = "<p>hello</p>" + "".join(quiet_routes(prefix, catcher.udp_port).values())
    return {"quiet": quiet, **leaving_routes(prefix)}, clicked_routes(prefix)


@pytest.fixture
def bare() -> Iterator[tuple[str, dict[str, str]]]:
    """A server that shows pages as they are: its address, and the pages by path."""
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path.strip("/"), "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}", pages
    found.shutdown()
    found.server_close()


def _visit_all(browser: Browser, opened: Mapping[str, str], clicked: Mapping[str, str]) -> None:
    for url in opened.values():
        browser.open(url)
    for url in clicked.values():
        browser.open(url)
        browser.click(*_IN_THE_FRAME)


def _tried(folder: Path, bare: tuple[str, dict[str, str]]) -> tuple[set[str], set[str], int]:
    """(routes by which a rendered page tried to reach the attacker, those whose request arrived, packets).

    Then the same pages without the view, in the same browser: a route that it does not take at all would prove nothing.
    While those are on their way the view's pages are open still, so that they have the longer time to get out.
    """
    address, pages = bare
    events: list[str] = []
    with catching() as catcher:
        opened, clicked = _pages("view", catcher)
        view = start_view(
            controls=_Controls(),
            results=_Results({**opened, **clicked}),
            record=lambda result, type, values: events.append(type),
        )
        hints = [f"{prefix}-dnsprefetch" for prefix in ("view", "bare")]
        browser = Browser(folder, catcher, only_resolved=hints)
        try:
            _visit_all(
                browser,
                {name: f"{view.url}results/{name}" for name in opened},
                {name: f"{view.url}results/{name}" for name in clicked},
            )
            packets = catcher.packets
            opened, clicked = _pages("bare", catcher)
            pages.update({**opened, **clicked})
            _visit_all(
                browser, {name: f"{address}/{name}" for name in opened}, {name: f"{address}/{name}" for name in clicked}
            )
            routes = {*quiet_routes("bare", 1), *leaving_routes("bare"), *clicked_routes("bare")}
            expected = routes - {BY_PACKETS} - NOT_WITHOUT_WINDOW
            assert not catcher.wait_for({f"bare-{route}" for route in expected - BY_LOG})
        finally:
            browser.close()
            view.stop()
        seen = browser.tried() | catcher.seen
        assert expected <= {name.removeprefix("bare-") for name in seen}
        assert catcher.packets > packets
    assert not events
    tried, arrived = (
        {name.removeprefix("view-") for name in names if name.startswith("view-")} for names in (seen, catcher.seen)
    )
    return tried, arrived, packets


@pytest.mark.slow
def test_nothing_leaves_a_rendered_page(tmp_path: Path, bare: tuple[str, dict[str, str]]) -> None:
    chromium()
    assert _tried(tmp_path, bare) == (set(), set(), 0)


@pytest.mark.slow
def test_the_policies_hold_by_themselves_but_for_connections_ahead(
    tmp_path: Path, bare: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sanitizer off, frame and policy let no request out; names are resolved and connections made ahead."""
    chromium()
    monkeypatch.setattr(server, "sanitized", lambda html: html)
    tried, arrived, packets = _tried(tmp_path, bare)
    assert tried >= BY_LOG
    assert (arrived, packets) == (set(), 0)


def test_an_event_is_recorded_and_the_page_stays(tmp_path: Path) -> None:
    chromium()
    events: list[tuple[str, dict[str, str]]] = []
    recorded = threading.Event()

    def record(result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        events.append((type, dict(values)))
        recorded.set()

    page = '<a href="event/like?item=12&mood=good" style="display:block;font-size:300px">MMMM</a>'
    view = start_view(
        controls=_Controls(),
        results=_Results({"one": page}),
        record=record,
    )
    with catching() as catcher:
        browser = Browser(tmp_path, catcher)
        try:
            browser.open(f"{view.url}results/one")
            browser.click(*_IN_THE_FRAME)
            assert recorded.wait(20)
            assert browser.driver.current_url == f"{view.url}results/one"
        finally:
            browser.close()
            view.stop()
    assert events == [("like", {"item": "12", "mood": "good"})]

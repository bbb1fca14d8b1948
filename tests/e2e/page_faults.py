"""What a real Chromium finds wrong with a page at three widths, light and dark: axe-core's rules, scrolls, requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from e2e.browser import chromium

WIDTHS = (390, 1100, 1600)
THEMES = ("light", "dark")
_AXE = """
const done = arguments[arguments.length - 1];
const rules = {"color-contrast": {enabled: arguments[0]}};
axe.run(document, {resultTypes: ["violations"], rules}).then(
    found => done(found.violations.map(
        one => one.id + ": " + one.help + " at " + one.nodes.map(node => node.target).join(" "))),
    error => done(["axe-core failed: " + error]));
"""
_SCROLLS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
_ASKED = "return performance.getEntriesByType('resource').map(one => one.name)"


class Pages:
    """A headless browser that looks at pages.

    The contrast of texts takes longer than all other rules. It is judged at ``contrast_widths``, in both themes.
    """

    def __init__(self, folder: Path, *, contrast_widths: Sequence[int] = WIDTHS[:1]) -> None:
        self._contrast_widths = contrast_widths
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        browser, driver = chromium()
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
        ):
            options.add_argument(argument)
        self._driver: Any = webdriver.Chrome(options=options, service=Service(executable_path=driver))
        self._axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")

    def faults(self, url: str) -> list[str]:
        """One line per fault, with the width and the theme in which it shows."""
        found = []
        for theme in THEMES:
            for width in WIDTHS:
                found += [f"{width} {theme}: {fault}" for fault in self._look(url, width, theme)]
        return found

    def screenshot(self, url: str, file: Path, *, width: int, theme: str) -> None:
        """Writes what the whole page looks like."""
        self._show(url, width, theme)
        height = self._driver.execute_script("return document.documentElement.scrollHeight")
        self._size(width, min(int(height), 6000))
        self._driver.save_screenshot(str(file))

    def close(self) -> None:
        self._driver.quit()

    def _size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def _show(self, url: str, width: int, theme: str) -> None:
        self._size(width, 900)
        wanted = [{"name": "prefers-color-scheme", "value": theme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        self._driver.get(url)

    def _look(self, url: str, width: int, theme: str) -> list[str]:
        self._driver.get_log("browser")
        self._show(url, width, theme)
        faults = [f"the browser says {json.dumps(one['message'])}" for one in self._driver.get_log("browser")]
        wider = self._driver.execute_script(_SCROLLS)
        if wider > 0:
            faults.append(f"the page is {wider} pixels wider than the window")
        own = url.partition("://")[0], url.split("/")[2]
        others = [
            one for one in self._driver.execute_script(_ASKED) if (one.partition("://")[0], one.split("/")[2]) != own
        ]
        faults += [f"it asks {one}" for one in others if not one.startswith("data:")]
        judged = width in self._contrast_widths
        if not judged and theme != THEMES[0]:
            return faults  # a theme changes colours alone, and the other one had all rules but that of colours
        self._driver.execute_script(self._axe)
        return faults + list(self._driver.execute_async_script(_AXE, judged))

"""Pictures of pages as a person sees them, by a headless Chromium; needs its driver and selenium."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


class Camera:
    """A browser that takes pictures; a context manager."""

    def __enter__(self) -> Camera:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
            options.add_argument(argument)
        self._driver: Any = webdriver.Chrome(
            options=options, service=Service(executable_path=shutil.which("chromedriver"))
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.quit()

    def take(self, url: str, file: Path, *, width: int, height: int | None = None, dark: bool = False) -> None:
        """Writes what a window of ``width`` by ``height`` pixels shows; without a height, the whole page."""
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        self._size(width, height or 800)
        self._driver.get(url)
        if height is None:
            self._size(width, int(self._driver.execute_script("return document.documentElement.scrollHeight")))
        self._driver.save_screenshot(str(file))

    def _size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

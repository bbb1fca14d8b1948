"""Pictures of the device's pages for the documentation: `python tools/device_screenshots.py URL FILE.png`.

Needs Chromium, its driver and selenium. `odp device view` and `examples/music_player.py` print the URLs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_SIZE = (1000, 800)


def main() -> None:
    """Loads the page in a window of a fixed size and writes what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("--width", type=int, default=_SIZE[0])
    parser.add_argument("--height", type=int, default=_SIZE[1])
    parser.add_argument("--dark", action="store_true", help="as somebody who prefers dark pages sees it")
    given = parser.parse_args()
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
    try:
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if given.dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        size = {"width": given.width, "height": given.height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(given.url)
        driver.save_screenshot(str(given.file))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()

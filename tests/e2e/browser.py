"""A real headless Chromium whose every name leads to a listener of the test, and a log of what it tried."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Every host below it is the attacker's; its first label says by which route the browser got there.
DOMAIN = "leak.example"
_LOCAL = "leak.localhost"
_HOST = re.compile(rb"([a-z0-9-]+)\.leak\.(?:example|localhost)")


def chromium() -> tuple[str, str]:
    """Paths of browser and driver; skips the test where a machine has none, and fails it in CI."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has to have chromium and chromium-driver: .ci/run installs them")
        pytest.skip("chromium and chromedriver are not installed")
    return browser, driver


class Catcher:
    """Takes every TCP connection and UDP packet; ``seen`` are the attacker's host names that arrived in them."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.packets = 0
        self._news = threading.Event()
        catcher = self

        class Taker(socketserver.StreamRequestHandler):
            timeout = 5

            def handle(self) -> None:
                try:
                    data = self.connection.recv(4096)
                except OSError:
                    return  # connected ahead, and nothing came
                catcher.seen.update(found.decode() for found in _HOST.findall(data))
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Taker)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self.udp_port = self._udp.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._packets, daemon=True).start()

    def _packets(self) -> None:
        while self._udp.recvfrom(4096)[0] != b"stop":
            self.packets += 1

    def wait_for(self, names: set[str], *, seconds: float = 30.0) -> set[str]:
        """Waits until all of ``names`` were seen; answers those that were not."""
        end = time.monotonic() + seconds
        while not names <= self.seen and time.monotonic() < end:
            self._news.wait(0.1)
        return names - self.seen

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"stop", ("127.0.0.1", self.udp_port))


@contextmanager
def catching() -> Iterator[Catcher]:
    """A catcher that is closed at the end."""
    catcher = Catcher()
    try:
        yield catcher
    finally:
        catcher.close()


class Browser:
    """Chromium under test. ``tried()`` may be asked once it is closed: its network log is complete only then."""

    def __init__(self, folder: Path, catcher: Catcher, *, only_resolved: Sequence[str] = ()) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        browser, driver = chromium()
        self._log = folder / "net-log.json"
        # Resolving a number leaves no trace; a name of this machine does, and asks no name server.
        names = ", ".join(f"MAP {name}.{DOMAIN} {name}.{_LOCAL}" for name in only_resolved)
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in (
            "--headless=new",
            "--no-sandbox",  # that of its processes, which root cannot have; what is tested here is not in it
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--window-size=1000,1250",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={self._log}",
            "--net-log-capture-mode=Everything",
            f"--host-resolver-rules={names}, MAP *.{DOMAIN} 127.0.0.1:{catcher.port}",
        ):
            options.add_argument(argument)
        self.driver: Any = webdriver.Chrome(options=options, service=Service(executable_path=driver))

    def open(self, url: str) -> None:
        """Loads a page in a tab of its own and waits for its frames; earlier tabs go on with what they were at."""
        self.driver.switch_to.new_window("tab")
        self.driver.get(url)

    def click(self, x: int, y: int) -> None:
        """As a person's mouse does, in whatever frame lies there: no script is needed in it."""
        # A frame that was not drawn yet is not there to be clicked on.
        self.driver.execute_async_script(
            "let done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.driver.execute_cdp_cmd(
                "Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            )

    def close(self) -> None:
        self.driver.quit()

    def tried(self) -> set[str]:
        """The attacker's host names anywhere in the browser's own network log: resolved, connected to or asked for."""
        # The rules that lead the names to the catcher stand in the log's constants, beside the events.
        events = json.dumps(json.loads(self._log.read_bytes())["events"]).encode()
        return {found.decode() for found in _HOST.findall(events)}

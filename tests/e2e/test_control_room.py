"""The control room in a real Chromium: no fault at any width, by keyboard alone, live, and under attack."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard.rooms import FakeSource, State, signed_in, status, text
from e2e.page_faults import WIDTHS, Pages

from odp.dashboard import serving
from odp.dashboard.poller import Poller
from odp.dashboard.serving import ControlRoom, Place
from odp.dashboard.site import MOST_STREAMS

pytestmark = [pytest.mark.slow, pytest.mark.processes]
SECONDS = 30.0
BAD = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">"


class Room:
    """A served control room over a source that the test changes."""

    def __init__(self) -> None:
        self.source = FakeSource()
        self.served = ControlRoom(
            Poller(self.source, interval=0.05), Place(), token="token", server="127.0.0.1:7200", may_change=True
        )
        self.origin = self.served.origin
        self.port = int(self.origin.rpartition(":")[2])
        #: The folder of the pages, once somebody has signed in.
        self.home = ""


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.served.stop()


# As in test_page_faults.py.
@pytest.fixture(
    scope="module", params=[WIDTHS[:1], pytest.param(WIDTHS, marks=pytest.mark.proof)], ids=["phone", "all"]
)
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    pages = Pages(tmp_path_factory.mktemp("browser"), contrast_widths=request.param)
    yield pages
    pages.close()


@pytest.fixture
def browser(pages: Pages, room: Room) -> Any:
    """A browser that is signed in."""
    pages._driver.delete_all_cookies()
    pages._driver.get(room.served.url)
    until(lambda: "token=" not in pages._driver.current_url)
    room.home = pages._driver.current_url.rstrip("/")
    # The poller may not have asked the server yet.
    until(lambda: pages._driver.execute_script("return document.querySelector('input[name=task]') !== null"))
    return pages._driver


def until(true: Any) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def main_text(driver: Any) -> str:
    return str(driver.execute_script("return document.querySelector('main').innerText"))


def test_no_page_has_a_fault(pages: Pages, room: Room, browser: Any) -> None:
    ids = room.source.ids
    for path in ("/", f"/tasks/{ids[0]}", f"/compare?task={ids[0]}&task={ids[2]}", "/log", "/submit"):
        assert pages.faults(room.home + path) == [], path
    assert pages.faults(room.origin + "/sign-in") == []


def test_the_page_lives_and_keeps_focus_and_ticks(room: Room, browser: Any) -> None:
    browser.execute_script(
        "document.querySelector('input[name=task]').checked = true;document.querySelector('.card a').focus();"
    )
    for _ in range(3):
        room.source.add_device()
    until(lambda: "415 of 1,000" in main_text(browser))
    assert browser.execute_script("return document.querySelector('input[name=task]').checked")
    assert browser.execute_script("return document.activeElement.textContent") == "films"
    room.source.down = "no answer from the server"
    until(lambda: "no answer from the server" in main_text(browser))
    room.source.down = ""
    until(lambda: "no answer from the server" not in main_text(browser))


def test_everything_is_done_by_keyboard_alone(room: Room, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            press(Keys.TAB)
            if wanted in browser.execute_script("return document.activeElement.textContent"):
                return
        pytest.fail(f"no key leads to {wanted!r}")

    tab_to("films")
    press(Keys.ENTER)
    until(lambda: "/tasks/" in browser.current_url)
    tab_to("Abandon this task")
    press(Keys.ENTER)
    until(lambda: browser.current_url.endswith("/abandon"))
    assert room.source.cancelled == []
    tab_to("Abandon the task")
    press(Keys.ENTER)
    until(lambda: room.source.cancelled)
    until(lambda: "cancelled" in main_text(browser))


def test_text_of_a_stranger_runs_nowhere(room: Room, browser: Any) -> None:
    failed = status(text("films"), State.STATE_FAILED, [10], failure=BAD)
    failed.waits_for.reason = BAD
    room.source.statuses = [failed]
    room.source.results = lambda task: (BAD, {"rounds": [{BAD: 1.0}, {BAD: 2.0}]})
    browser.get(f"{room.home}/tasks/{room.source.ids[0]}")
    until(lambda: "Released" in main_text(browser))
    assert "<script>document.title" in main_text(browser)
    assert "stolen" not in browser.title
    assert browser.execute_script("return document.querySelectorAll('main script, main img').length") == 0


def test_another_site_can_neither_post_nor_embed(room: Room, browser: Any, tmp_path: Path) -> None:
    address = f"{room.home}/tasks/{room.source.ids[0]}/abandon"
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<iframe src="{room.home}/"></iframe><form id="f" method="post" action="{address}">'
        '<input name="csrf" value="guess"></form><script>document.getElementById("f").submit()</script>'
    )
    browser.get(evil.as_uri())
    until(lambda: browser.current_url == address)
    assert "Sign in" in main_text(browser), "a strict cookie does not come along"
    assert room.source.cancelled == []


def test_r406_a_server_at_another_port_learns_neither_cookie_nor_folder(room: Room, browser: Any) -> None:
    heard: list[str] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'<a id="there" href="{room.origin}/">there</a>'.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        serving_it = threading.Thread(target=other.serve_forever)
        serving_it.start()
        try:
            address = f"http://127.0.0.1:{other.server_address[1]}"
            browser.execute_script("location.href = arguments[0]", f"{address}/from-the-room")
            until(lambda: browser.current_url == f"{address}/from-the-room")
            browser.get(f"{address}/log")
        finally:
            other.shutdown()
            serving_it.join()
    assert len(heard) >= 2
    folder = room.home.rpartition("/")[2]
    assert not [one for one in heard if "odp-control-room" in one or folder in one]
    browser.get(f"{room.home}/")
    assert "Sign in" not in main_text(browser)


def stream(room: Room, cookie: str, folder: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", room.port, timeout=SECONDS)
    connection.request("GET", f"{folder}/events?page=1", headers={"Cookie": cookie})
    return connection.getresponse()


def test_streams_end_with_their_readers_and_are_few(room: Room) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", room.port, timeout=SECONDS)
    connection.request("GET", "/?token=token")
    cookie, folder = signed_in(connection.getresponse())
    open_ones = [stream(room, cookie, folder) for _ in range(MOST_STREAMS)]
    assert {one.status for one in open_ones} == {200}
    before = room.source.readings
    assert stream(room, cookie, folder).status == 503
    until(lambda: room.source.readings > before + 4)
    for one in open_ones:
        one.close()
    until(lambda: stream(room, cookie, folder).status == 200)


def test_a_silent_connection_is_closed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FIRST_SECONDS", 0.2)
    threads = threading.active_count()
    with socket.create_connection(("127.0.0.1", room.port), timeout=SECONDS) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert silent.recv(100) == b""
    # The poller of this room may have started a thread meanwhile; silence takes none.
    assert threading.active_count() < threads + 5


def answered_once(room: Room) -> socket.socket:
    """A connection with one answered request, and the half of another one."""
    connection = socket.create_connection(("127.0.0.1", room.port), timeout=SECONDS)
    with contextlib.suppress(ConnectionError):  # it made way for another one
        connection.sendall(f"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1:{room.port}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"</svg>") and (more := connection.recv(65536)):
            answer += more
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
    return connection


def test_r363_silence_inside_a_second_request_ends_a_connection(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FIRST_SECONDS", 0.3)
    with answered_once(room) as silent, contextlib.suppress(ConnectionError):
        assert silent.recv(65536) == b""


def test_r363_connections_that_say_nothing_keep_no_newcomer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(serving, "_MOST_OPEN", 16)
    room = Room()
    with contextlib.ExitStack() as stack:
        stack.callback(room.served.stop)
        for _ in range(40):
            stack.enter_context(answered_once(room))
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", room.port, timeout=SECONDS)
            stack.callback(connection.close)
            connection.request("GET", "/?token=token")
            assert connection.getresponse().status == 200


def test_r363_a_reader_that_does_not_read_is_cut_off(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FIRST_SECONDS", 0.3)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(SECONDS)
        reader.connect(("127.0.0.1", room.port))
        request = f"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1:{room.port}\r\n\r\n".encode()
        with pytest.raises(ConnectionError):  # noqa: PT012  # whichever of the sends comes after the reset
            for _ in range(10_000):
                reader.sendall(request * 20)

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.view import ResultPage, View, start_view
from device_runtime.view.privacy_page import LIMITS, DeviceControls
from odp.errors import ConfigurationError

NOW = 1_800_000_000.0


class _OneResult:
    def __init__(self) -> None:
        self.html = "<p>Heat</p><script>1</script>"

    def results(self) -> list[ResultPage]:
        return [ResultPage(id="ab", service="films", title="<Tonight>", time=NOW - 120, html="")]

    def result(self, id: str) -> ResultPage | None:
        if id != "ab":
            return None
        return ResultPage(id="ab", service="films", title="<Tonight>", time=NOW - 120, html=self.html)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "0.sqlite"
    with Store.open_or_create(path) as store:
        store.fill(np.array([1, 2]), np.array([3.0, 4.0]), filled_from=b"test")
    return path


@pytest.fixture
def events() -> list[tuple[str, str, dict[str, str]]]:
    return []


@pytest.fixture
def view(path: Path, events: list[tuple[str, str, dict[str, str]]]) -> Iterator[View]:
    names = iter(f"token-{n}" for n in range(100))

    def record(result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        events.append((result.id, type, dict(values)))

    view = start_view(
        controls=DeviceControls(path, Gate(), name="device 0", clock=lambda: NOW),
        results=_OneResult(), record=record, token=lambda: next(names), clock=lambda: NOW,
    )  # fmt: skip
    yield view
    view.stop()


def _ask(
    view: View, path: str, *, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    host = view.url.split("/")[2]
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request(method, path, body=body, headers={"Host": host, **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def _origin(view: View) -> str:
    return "http://" + view.url.split("/")[2]


def test_a_port_that_is_none_or_taken_is_told_in_one_line(view: View, path: Path) -> None:
    taken = int(_origin(view).rpartition(":")[2])
    for port in (-1, 65536, taken):
        with pytest.raises(ConfigurationError, match=str(port)) as refused:
            start_view(
                controls=DeviceControls(path, Gate(), name="device 0"), results=_OneResult(),
                record=lambda *_: None, port=port,
            )  # fmt: skip
        assert "\n" not in str(refused.value)


def test_the_front_page_shows_what_the_device_knows(view: View) -> None:
    status, headers, body = _ask(view, "/token-0/")
    assert status == 200
    assert "2 examples on this device" in body
    assert "&lt;Tonight&gt;" in body
    assert "2 minutes ago" in body
    assert "script" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_a_rendered_page_lies_in_a_frame_under_an_address_of_its_own(view: View) -> None:
    _, headers, body = _ask(view, "/token-0/results/ab")
    assert f'src="{_origin(view)}/r/token-1/"' in body
    assert 'sandbox=""' in body
    assert f"frame-src {_origin(view)}/r/token-1/;" in headers["Content-Security-Policy"]
    status, headers, body = _ask(view, "/r/token-1/")
    assert status == 200
    assert "<p>Heat</p>" in body
    assert "script" not in body
    assert "sandbox" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "token-0" not in body


def test_an_event_is_recorded_without_a_new_page(view: View, events: list[tuple[str, str, dict[str, str]]]) -> None:
    _ask(view, "/token-0/results/ab")
    status, _, body = _ask(view, "/r/token-1/event/like?item=3")
    assert (status, body) == (204, "")
    assert events == [("ab", "like", {"item": "3"})]


@pytest.mark.parametrize(
    "address",
    [
        "/", "/token-0", "/wrong/", "/wrong/results/ab", "/token-0/results/cd", "/token-0/../", "/r/", "/r/token-1/",
        "/r/token-0/", "/token-0/results/ab/more", "/%2e%2e/etc/passwd", "/r/token-1/event/like",
    ],
)  # fmt: skip
def test_there_is_nothing_at_other_addresses(
    view: View, address: str, events: list[tuple[str, str, dict[str, str]]]
) -> None:
    status, _, body = _ask(view, address)
    assert status == 404
    assert "Tonight" not in body
    assert not events


@pytest.mark.parametrize(
    "event", ["event/", "event/LIKE", "event/like/more", "event/like?a&b", f"event/like?{'x=1&' * 20}"]
)
def test_a_malformed_event_is_none(view: View, event: str, events: list[tuple[str, str, dict[str, str]]]) -> None:
    _ask(view, "/token-0/results/ab")
    assert _ask(view, f"/r/token-1/{event}")[0] == 404
    assert not events


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Dest": "document"}, {"Sec-Fetch-Dest": "image"}, {"Sec-Purpose": "prefetch"}]
)
def test_a_rendered_page_and_its_events_exist_in_the_frame_alone(
    view: View, headers: dict[str, str], events: list[tuple[str, str, dict[str, str]]]
) -> None:
    _ask(view, "/token-0/results/ab")
    for path in ("/r/token-1/", "/r/token-1/event/like?item=3"):
        assert _ask(view, path, **headers)[0] == 404
    assert not events
    assert _ask(view, "/r/token-1/", **{"Sec-Fetch-Dest": "iframe"})[0] == 200


def test_a_browser_that_goes_away_or_fails_leaves_no_trace(
    view: View, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server says of its errors would show in the terminal, and with it what the person looked at."""
    host, _, port = view.url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /token-0/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    path.write_bytes(b"damaged")
    with contextlib.suppress(http.client.HTTPException, ConnectionError):
        assert _ask(view, "/token-0/")[0] == 409
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_every_limit_is_shown_and_can_be_set(view: View, path: Path) -> None:
    fields = {**dict.fromkeys(LIMITS, "2"), "populations": "films, music", "tables": "", "max_delta": "1e-7"}
    body = urlencode(fields)
    assert _ask(view, "/token-0/limit", method="POST", body=body, Origin=_origin(view))[0] == 303
    with Store.open(path) as store:
        limits = store.person().limits
    assert limits is not None
    assert (limits.populations, limits.tables, limits.min_cohort) == (("films", "music"), (), 2)
    assert (limits.max_delta, limits.max_answers_epsilon_30_days) == (1e-7, 2.0)
    page = _ask(view, "/token-0/")[2]
    assert 'name="populations" value="films, music"' in page
    assert all(f'name="{name}"' in page for name in LIMITS)


def test_r406_no_answer_sets_a_cookie_and_no_page_sends_its_address_to_another_origin(view: View) -> None:
    for path in ("/", "/token-0/", "/token-0/results/ab", "/r/token-1/", "/token-0/style.css"):
        _, headers, _ = _ask(view, path)
        assert "Set-Cookie" not in headers
        assert headers["Referrer-Policy"] in ("same-origin", "no-referrer"), path


def test_another_name_of_this_machine_is_refused(view: View) -> None:
    """A name elsewhere that resolves to loopback would make the pages those of another origin."""
    assert _ask(view, "/token-0/", Host="attacker.example")[0] == 404


def test_decisions_are_carried_out(view: View, path: Path) -> None:
    origin = _origin(view)
    for action, body in (("pause", ""), ("opt-out", "task=films"), ("limit", "max_total_epsilon=2.5")):
        status, headers, _ = _ask(view, f"/token-0/{action}", method="POST", body=body, Origin=origin)
        assert (status, headers["Location"]) == (303, "/token-0/")
    with Store.open(path) as store:
        person = store.person()
    assert person.paused == NOW
    assert person.opt_outs == {"films": NOW}
    assert person.limits is not None
    assert person.limits.max_total_epsilon == 2.5
    assert "paused" in _ask(view, "/token-0/")[2]


@pytest.mark.parametrize("origin", ["null", "http://attacker.example", ""])
def test_a_page_elsewhere_decides_nothing(view: View, path: Path, origin: str) -> None:
    assert _ask(view, "/token-0/pause", method="POST", body="", Origin=origin)[0] == 404
    with Store.open(path) as store:
        assert store.person().paused is None


def test_a_decision_that_is_not_possible_says_why(view: View) -> None:
    answer = _ask(view, "/token-0/limit", method="POST", body="max_total_epsilon=much", Origin=_origin(view))
    assert answer[0] == 409
    assert "Expected max_total_epsilon=&#x27;much&#x27; to be a number" in answer[2]
    assert '<a href="./">back</a>' in answer[2]


@pytest.mark.parametrize("address", ["http://[", "//[", "/token-0/?" + "a=b&" * 5000])
def test_an_address_that_is_none_is_answered_and_ends_nothing(view: View, address: str) -> None:
    assert _ask(view, address)[0] == 404
    assert _ask(view, "/token-0/")[0] == 200


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "0x10", "\u00b2", " ", "4097"])
def test_a_length_that_is_none_is_answered(view: View, length: str) -> None:
    headers = {"Origin": _origin(view), "Content-Length": length}
    assert _ask(view, "/token-0/pause", method="POST", **headers)[0] == 404


def test_a_body_that_is_too_long_is_not_read(view: View) -> None:
    assert _ask(view, "/token-0/pause", method="POST", body="x" * 5000, Origin=_origin(view))[0] == 404


@pytest.mark.parametrize(
    "head",
    [
        "POST /token-0/pause HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 0",
        "POST /token-0/pause HTTP/1.1\r\nTransfer-Encoding: chunked",
        "GET /token-0/ HTTP/1.1\r\nContent-Length: 5",
        "BREW /token-0/ HTTP/1.1",
        "GET /token-0/ HTTP/9",
        "GET",
        "GET /token-0/" + "x" * 2**15,
        "GET /token-0/ HTTP/1.1\r\nX: " + "x" * 2**15,
        "GET /token-0/ HTTP/1.1\r\n" + "X: x\r\n" * 200,
    ],
)
def test_what_is_no_request_is_answered_once_and_repeats_nothing(view: View, path: Path, head: str) -> None:
    host = view.url.split("/")[2]
    with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=30.0) as connection:
        connection.sendall(f"{head}\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\nhello".encode())
        answer = b""
        with contextlib.suppress(ConnectionError):  # what it did not read may reset the connection
            while part := connection.recv(2**16):
                answer += part
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b" 200 " not in answer
    assert b" 303 " not in answer
    assert b"BREW" not in answer
    assert b"xxx" not in answer
    with Store.open(path) as store:
        assert store.person().paused is None


def test_a_decision_that_is_cut_off_is_none(view: View, path: Path) -> None:
    host = view.url.split("/")[2]
    with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=30.0) as connection:
        head = f"POST /token-0/limit HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: 21\r\n\r\n"
        connection.sendall((head + "max_total_epsilon=2").encode())
        connection.shutdown(socket.SHUT_WR)
        assert b" 404 " in connection.recv(2**16)
    with Store.open(path) as store:
        assert store.person().limits is None

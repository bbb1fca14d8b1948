"""The control room's pages and doors, without a socket: what is shown, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard.rooms import KEY, FakeSource, status, text
from starlette.testclient import TestClient

from odp.dashboard import site
from odp.dashboard.doors import HEADERS, LARGEST_TASK, MOST_WRONG, Doors
from odp.dashboard.frame import Frame
from odp.dashboard.poller import Poller
from odp.dashboard.serving import Place
from odp.dashboard.site import make_app
from odp.dashboard.source import RefusalFacts, ServerSource, planned_epsilon
from odp.errors import ConfigurationError
from odp.models.left_out import UNKNOWN
from odp.operations.metrics import Endpoint, Metrics
from odp.signed.task import open_task, sign_task, task_sha256
from odp.tasks.file import parse_task
from odp.tasks.task import Task
from odp.v1 import common_pb2, server_pb2

ORIGIN = "http://127.0.0.1:7777"
TOKEN = "the-token-of-this-run"
BAD = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Room:
    """The site over a fake source, and a browser that is signed in."""

    def __init__(self, source: FakeSource, *, may_change: bool = True) -> None:
        self.source = source
        self.now = 0.0
        self.poller = Poller(source, interval=0.01)
        origins = frozenset({ORIGIN, "http://localhost:7777"})
        self.doors = Doors(TOKEN, origins=origins, clock=lambda: self.now)
        self.app = make_app(self.poller, self.doors, server="127.0.0.1:7200", may_change=may_change)

    def client(self, *, signed_in: bool = True) -> TestClient:
        client = TestClient(self.app, base_url=ORIGIN + self.doors.folder, follow_redirects=False)
        if signed_in:
            assert client.get(f"{ORIGIN}/?token={TOKEN}").status_code == 200
        return client

    def post(self, client: TestClient, path: str, origin: str = ORIGIN, **fields: str) -> int:
        fields = {"csrf": self.doors.csrf, **fields}
        return int(client.post(path, data=fields, headers={"Origin": origin}).status_code)


@pytest.fixture
def room() -> Room:
    return Room(FakeSource())


@pytest.fixture
def client(room: Room) -> Iterator[TestClient]:
    with room.client() as client:
        yield client


def test_the_overview_shows_active_tasks_budgets_and_the_log(client: TestClient) -> None:
    page = client.get("/").text
    for shown in (
        "films",
        "hours",
        "39 more devices",
        "round 5 of 8",
        "<b>412</b> of 1,000",
        "48",
        "finished",
        "failed",
    ):
        assert shown in page
    assert "spent 3.60" in page


def test_a_task_has_its_courses_releases_failure_and_definition(room: Room, client: TestClient) -> None:
    failed = client.get(f"/tasks/{room.source.ids[3]}").text
    assert "cannot pay for the release" in failed
    assert "gradients: sensitivity 2.45, noise σ 31.7" in failed
    assert "privacy.epsilon" in failed
    assert "ε spent, by round" in failed


def test_the_metrics_that_a_task_releases_become_a_curve(room: Room, client: TestClient) -> None:
    address = f"/tasks/{room.source.ids[0]}"
    for _ in range(500):
        page = client.get(address).text
        if "update scale" in page:
            break
    assert "<figcaption>update scale</figcaption>" in page
    assert "update scale: films, 0.47 at round 4" in page


def test_a_training_says_how_many_devices_have_usable_rows_or_that_nobody_knows(room: Room, client: TestClient) -> None:
    assert UNKNOWN in client.get(f"/tasks/{room.source.ids[2]}").text
    task = parse_task(text("songs") + "\n[count_usable]\nshare = 0.2\n")
    assert isinstance(task, Task)
    question = task.usable_question()
    assert question is not None
    count = sign_task(question.definition(), KEY)
    training = task.definition()
    training.count_first.task_sha256 = task_sha256(count)
    training.count_first.least_share = 0.1
    counted = server_pb2.TaskStatus(task=count, state=server_pb2.TaskStatus.STATE_ACTIVE, planned_rounds=1)
    waiting = server_pb2.TaskStatus(
        task=sign_task(training, KEY), state=server_pb2.TaskStatus.STATE_ACTIVE, planned_rounds=8
    )
    room.source.statuses += [waiting, counted]
    address = f"/tasks/{task_sha256(waiting.task).hex()}"
    until_shown(client, address, f"usable rows are counted by task {task_sha256(count).hex()[:12]}")
    released = counted.rounds.add(round=0, state=server_pb2.RoundStatus.STATE_APPLIED, contributions=120)
    released.release.release = common_pb2.Release(task_sha256=task_sha256(count), contributions=120).SerializeToString()
    room.source.usable[task_sha256(count)] = "95 % of devices have rows of which none is usable"
    until_shown(client, address, "95 % of devices have rows of which none is usable")


def until_shown(client: TestClient, address: str, wanted: str) -> None:
    for _ in range(200):
        if wanted in client.get(address).text:
            return
        threading.Event().wait(0.05)
    pytest.fail(f"{wanted!r} never came")


def test_the_planned_epsilon_is_that_of_the_accountant(room: Room) -> None:
    definition = open_task(room.source.statuses[0].task)
    planned = planned_epsilon(definition)
    assert planned is not None
    assert 0.99 * 8.0 < planned <= 8.0


def test_runs_are_compared_by_course_and_by_what_differs(room: Room, client: TestClient) -> None:
    ids = room.source.ids
    page = client.get(f"/compare?task={ids[0]}&task={ids[2]}&task={ids[0]}&task=nonsense").text
    assert "dpam.steps" in page
    assert "films-wide" in page
    assert "Tick two to 4 tasks" in client.get(f"/compare?task={ids[0]}").text


def test_nobody_sees_anything_without_the_token(room: Room) -> None:
    with room.client(signed_in=False) as client:
        for path in ("/", f"/tasks/{room.source.ids[0]}", "/log", "/compare", "/submit", "/events"):
            answer = client.get(path)
            assert answer.status_code == 403, path
            assert "films" not in answer.text
            assert "7200" not in answer.text
        assert client.get(f"{ORIGIN}/?token=wrong").status_code == 403
        client.cookies.set(room.doors.cookie, "0" * 64)
        assert client.get("/").status_code == 403


def test_the_cookie_is_strict_and_unreadable_and_the_token_leaves_the_address(room: Room) -> None:
    with room.client(signed_in=False) as client:
        answer = client.get(f"{ORIGIN}/?token={TOKEN}")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in answer.text
        assert TOKEN not in cookie
        assert client.get("/").status_code == 200


def test_r406_a_program_at_another_port_of_the_host_gets_no_cookie(room: Room) -> None:
    other = "http://127.0.0.1:8888"
    with room.client(signed_in=False) as client:
        answer = client.get(f"{ORIGIN}/?token={TOKEN}")
        assert answer.status_code == 200
        assert room.doors.folder not in str(answer.url)
        # The browser's own rule: a cookie is sent to all ports of its host, for its path.
        for path in ("/", "/log", "/sign-in", "/" + "0" * 64):
            assert "cookie" not in client.build_request("GET", other + path).headers
        assert client.get("/").status_code == 200


def test_r406_the_folder_opens_nothing_without_the_cookie_nor_the_cookie_without_the_folder(room: Room) -> None:
    with room.client(signed_in=False) as client:
        cookie = client.get(f"{ORIGIN}/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        for path, code in (("/", 403), ("/log", 403), ("/events", 403)):
            assert client.get(path).status_code == code
        for path in ("/", "/log", "/events", "/" + "0" * 64 + "/log"):
            answer = client.get(ORIGIN + path, headers={"Cookie": cookie})
            assert answer.status_code in (403, 404)
            assert "films" not in answer.text
            assert room.doors.folder not in answer.text


def test_r363_wrong_tokens_of_any_page_never_keep_the_right_one_out(room: Room) -> None:
    with room.client(signed_in=False) as client:
        for _ in range(MOST_WRONG):
            assert client.get(f"{ORIGIN}/?token=guess").status_code == 403
        assert client.get(f"{ORIGIN}/?token=guess").status_code == 429
        assert client.get(f"{ORIGIN}/?token={TOKEN}").status_code == 200
        room.now = 61.0
        assert client.get(f"{ORIGIN}/?token=guess").status_code == 403


def test_a_token_can_be_pasted_by_this_page_alone(room: Room) -> None:
    with room.client(signed_in=False) as client:
        for origin, code in (("http://evil.example", 403), ("null", 403), (ORIGIN, 200)):
            answer = client.post(f"{ORIGIN}/sign-in", data={"token": TOKEN}, headers={"Origin": origin})
            assert answer.status_code == code


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7777", "127.0.0.1", "127.0.0.1:80", "", "localhost:7777.x"]
)
def test_another_host_name_is_refused(room: Room, client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "films" not in answer.text


def test_every_answer_has_the_headers(room: Room, client: TestClient) -> None:
    for path, host in (("/", None), ("/nothing", None), ("/style.css", None), ("/", "evil.example")):
        answer = client.get(path, headers={"Host": host} if host else {})
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)


def test_another_site_can_change_nothing(room: Room, client: TestClient) -> None:
    address = f"/tasks/{room.source.ids[0]}/abandon"
    for origin in ("http://evil.example", "null", "https://127.0.0.1:7777", "http://127.0.0.1:7778"):
        assert room.post(client, address, origin=origin) == 403
    assert room.post(client, address, csrf="0" * 64) == 403
    assert client.post(address, data={"csrf": room.doors.csrf}).status_code == 403, "no origin at all"
    assert client.get(address).status_code == 200
    as_json = client.post(address, json={"csrf": room.doors.csrf}, headers={"Origin": ORIGIN})
    assert as_json.status_code == 403
    assert room.source.cancelled == []


def test_a_task_is_abandoned_after_a_question(room: Room, client: TestClient) -> None:
    id = room.source.ids[0]
    assert f"/tasks/{id}/abandon" in client.get(f"/tasks/{id}").text
    asked = client.get(f"/tasks/{id}/abandon").text
    assert "The 412 contributions to its open round are erased" in asked
    assert room.source.cancelled == []
    assert room.post(client, f"/tasks/{id}/abandon") == 303
    assert room.source.cancelled == [bytes.fromhex(id)]
    page = client.get(f"/tasks/{id}").text
    assert "cancelled" in page
    assert "Abandon this task" not in page


def test_an_unforeseen_error_of_the_source_is_said_and_passes(client: TestClient, room: Room) -> None:
    working = room.source.log
    room.source.log = None  # type: ignore[assignment]  # calling it fails
    assert "unforeseen TypeError" in changed(room, client, "unforeseen")
    room.source.log = working  # type: ignore[method-assign]
    changed(room, client, "signature valid")


def test_refusals_are_shown_by_reason_where_an_aggregator_tells_them(client: TestClient, room: Room) -> None:
    assert "refused" not in client.get("/").text
    hostile = "<script>alert(1)</script>"
    room.source.refused = RefusalFacts(41_230, (("replay", 1_204), (hostile, 3)), "no metrics at 127.0.0.1:1: refused")
    page = changed(room, client, "41,230")
    assert "replay" in page
    assert "1,204" in page
    assert "1,207" in page, "their sum"
    assert "no metrics at 127.0.0.1:1" in page
    assert hostile not in page


def changed(room: Room, client: TestClient, wanted: str) -> str:
    """The first page once it has ``wanted``."""
    for _ in range(200):
        page = client.get("/").text
        if wanted in page:
            return page
        threading.Event().wait(0.05)
    return pytest.fail(f"{wanted!r} never came")


def test_what_aggregators_tell_is_summed_and_one_that_is_away_is_named(tmp_path: Path) -> None:
    measured = [Metrics("aggregator", tmp_path) for _ in range(2)]
    for number, metrics in enumerate(measured):
        metrics.contribution("")
        for _ in range(number + 1):
            metrics.contribution("replay")
    endpoints = [Endpoint("127.0.0.1:0", metrics.registry) for metrics in measured]
    addresses = [endpoint.address for endpoint in endpoints]
    source = ServerSource(None, None, None, addresses)  # type: ignore[arg-type]  # not asked for tasks
    assert source.refusals() == RefusalFacts(2, (("replay", 3),))
    endpoints[0].close()
    found = source.refusals()
    assert found is not None
    assert (found.accepted, found.refused) == (1, (("replay", 2),))
    assert addresses[0] in found.trouble
    endpoints[1].close()
    assert ServerSource(None, None, None).refusals() is None  # type: ignore[arg-type]


def test_a_task_is_paused_and_resumed_after_a_question(room: Room, client: TestClient) -> None:
    id = room.source.ids[0]
    page = client.get(f"/tasks/{id}").text
    assert f"/tasks/{id}/pause" in page
    assert f"/tasks/{id}/resume" not in page
    assert "goes on to its release, with 412 contributions so far" in client.get(f"/tasks/{id}/pause").text
    assert room.post(client, f"/tasks/{id}/pause", origin="http://evil.example") == 403
    assert room.source.paused == []
    assert room.post(client, f"/tasks/{id}/pause") == 303
    page = client.get(f"/tasks/{id}").text
    assert '<span class="state paused">paused</span>' in page
    assert f"/tasks/{id}/resume" in page
    assert f"/tasks/{id}/pause" not in page
    assert "opens at once" in client.get(f"/tasks/{id}/resume").text
    assert room.post(client, f"/tasks/{id}/resume") == 303
    assert room.source.paused == [(bytes.fromhex(id), True), (bytes.fromhex(id), False)]
    assert f"/tasks/{id}/pause" in client.get(f"/tasks/{id}").text


def test_a_task_is_submitted_after_its_consequences_are_shown(room: Room, client: TestClient) -> None:
    given = text("new-films")
    shown = client.post("/submit", data={"csrf": room.doors.csrf, "task": given}, headers={"Origin": ORIGIN}).text
    assert "Submit new-films?" in shown
    assert "ε planned" in shown
    assert room.source.submitted == []
    kept = re.search(r"<textarea[^>]*hidden>\n(.*?)</textarea>", shown, re.DOTALL)
    assert kept is not None
    assert room.post(client, "/submit/confirmed", task=given) == 303
    assert room.source.submitted == ["new-films"]
    assert "new-films" in client.get("/").text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("name = ", "not valid TOML"),
        (text("films", epsilon=-1.0), "epsilon"),
        (text("films").replace("rank = 4", 'rank = 4\nitem_features = "/etc/passwd"'), "names files"),
        (BAD, "not valid TOML"),
    ],
)
def test_a_wrong_task_is_explained_and_kept(room: Room, client: TestClient, given: str, why: str) -> None:
    fields = {"csrf": room.doors.csrf, "task": given}
    for path in ("/submit", "/submit/confirmed"):
        answer = client.post(path, data=fields, headers={"Origin": ORIGIN})
        assert answer.status_code == 422
        assert why in answer.text
        assert "<script>alert" not in answer.text
    assert room.source.submitted == []


def test_read_only_is_the_default_and_holds_for_every_change() -> None:
    room = Room(FakeSource(), may_change=False)
    with room.client() as client:
        id = room.source.ids[0]
        assert "Abandon" not in client.get(f"/tasks/{id}").text
        assert "/submit" not in client.get("/").text
        assert "Pause" not in client.get(f"/tasks/{id}").text
        for path in (
            f"/tasks/{id}/abandon",
            f"/tasks/{id}/pause",
            f"/tasks/{id}/resume",
            "/submit",
            "/submit/confirmed",
        ):
            assert room.post(client, path, task=text("x")) == 403
        assert client.get("/submit").status_code == 403
        assert (room.source.cancelled, room.source.paused, room.source.submitted) == ([], [], [])
        assert room.post(client, "/log/audit") == 303, "an audit only reads"


def test_the_audit_is_run_once_and_shown(room: Room, client: TestClient) -> None:
    assert room.post(client, "/log/audit") == 303
    for _ in range(500):
        page = client.get("/log").text
        if "Passed" in page:
            break
    assert "Passed: all 48 entries, 5 tasks" in page


def test_text_of_the_server_is_only_ever_text(room: Room) -> None:
    failed = status(text("films"), server_pb2.TaskStatus.STATE_FAILED, [10], failure=BAD)
    failed.waits_for.reason = BAD
    room.source.statuses = [failed]
    assert room.source.checkpoint is not None
    room.source.results = lambda task: (BAD, {"rounds": [{BAD: 1.0}, {BAD: 2.0}]})
    with room.client() as client:
        for path in ("/", f"/tasks/{room.source.ids[0]}", f"/compare?task={room.source.ids[0]}", f"/tasks/{BAD}"):
            for _ in range(20):
                page = client.get(path).text
                assert "<script>alert" not in page
                assert "<img" not in page


def test_long_bodies_are_refused(room: Room, client: TestClient) -> None:
    assert room.post(client, "/submit", task="x" * (LARGEST_TASK + 1)) == 413
    assert room.post(client, f"/tasks/{room.source.ids[0]}/abandon", more="x" * 5000) == 403

    def endless() -> Iterator[bytes]:
        yield b"csrf=" + room.doors.csrf.encode() + b"&task="
        for _ in range(100):
            yield b"x" * 4096

    headers = {"Origin": ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/submit", content=endless(), headers=headers).status_code == 403
    many = {f"f{number}": "x" for number in range(20)}
    assert room.post(client, "/submit", **many) == 403


def test_a_server_that_is_gone_is_named_and_comes_back(room: Room, client: TestClient) -> None:
    assert "films" in client.get("/").text
    room.source.down = "no answer from 127.0.0.1:7200; is it running?"
    for wanted, present in (("no answer from 127.0.0.1:7200", True), ("no answer from 127.0.0.1:7200", False)):
        for _ in range(2000):
            page = client.get("/").text
            if (wanted in page) == present:
                break
        assert (wanted in page) == present
        assert "films" in page, "the last that it said stays"
        room.source.down = ""


def test_a_wrong_log_is_said_on_every_page(room: Room) -> None:
    from dataclasses import replace

    assert room.source.checkpoint is not None
    room.source.checkpoint = replace(room.source.checkpoint, trouble="the log went back from 48 to 40 entries")
    with room.client() as client:
        for path in ("/", "/log", f"/tasks/{room.source.ids[0]}"):
            assert "the log went back" in client.get(path).text


def test_pages_of_the_list_are_bounded(room: Room) -> None:
    one = room.source.statuses[4]
    room.source.statuses = [status(text(f"task-{n}"), server_pb2.TaskStatus.STATE_FINISHED, [5]) for n in range(60)]
    room.source.statuses.append(one)
    with room.client() as client:
        assert client.get("/").text.count('name="task"') == 25
        assert client.get("/?page=3").text.count('name="task"') == 11
        for odd in ("0", "-1", "99999999999999", "x"):
            assert client.get(f"/?page={odd}").text.count('name="task"') == 25


async def changes(room: Room, count: int) -> list[dict[str, str]]:
    """The first events of a stream of the overview, while devices contribute."""
    from starlette.requests import Request

    reading = asyncio.create_task(room.poller.run())
    own = site._Site(room.poller, room.doors, Frame("server", room.doors.folder, room.doors.csrf, may_change=False))
    scope = {"type": "http", "query_string": b"page=1", "headers": [], "method": "GET", "path": "/events"}
    found = own._parts(Request(scope))
    assert found is not None
    events: list[dict[str, str]] = []
    async for chunk in own._changes(found):
        for line in chunk.decode().splitlines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                room.source.add_device()
        if len(events) == count:
            break
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await room.poller.close()
    return events


def test_the_stream_sends_what_changed_and_nothing_else(room: Room) -> None:
    events = asyncio.run(asyncio.wait_for(changes(room, 6), 30))
    assert set(events[0]) == {"link", "trouble", "now", "active", "refusals", "tasks"}
    shown = [re.search(r"<b>(\d+)</b> of 1,000", event.get("active", "")) for event in events]
    counts = [int(found[1]) for found in shown if found is not None]
    assert counts == sorted(counts)
    assert counts[0] == 412
    assert counts[-1] > 414
    assert all("link" not in event and "trouble" not in event for event in events[1:])


def test_one_stream_too_many_is_told_to_come_later(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MOST_STREAMS", 0)
    with room.client() as client:
        answer = client.get("/events?page=1")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")


def test_the_page_leaves_the_machine_under_tls_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="without TLS"):
        Place(host="0.0.0.0").check()  # it is refused
    Place(host="0.0.0.0", insecure=True).check()
    with pytest.raises(ConfigurationError, match="together"):
        Place(certificate=tmp_path).check()
    with pytest.raises(ConfigurationError, match="IP address"):
        Place(host="localhost").check()
    assert Place().origins(80) == {"http://127.0.0.1", "http://localhost"}
    assert Place(host="::1").origins(5) == {"http://[::1]:5", "http://localhost:5"}


def test_the_examples_of_these_tests_are_tasks() -> None:
    assert parse_task(text("films")).name == "films"

"""`odp dashboard` as a process over a real server: sign-in, the task, the log and its audit, and the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed
from dashboard.rooms import signed_in
from e2e.world import World

from odp.errors import ConfigurationError
from odp.operations.local.processes import ODP

Odp = Callable[..., Printed]


class Visitor:
    """A browser's requests."""

    def __init__(self, url: str) -> None:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)", url)
        assert found is not None
        self.port, self.cookie, self.folder = int(found[1]), "", ""
        self.cookie, self.folder = signed_in(self.ask("GET", found[2])[1])

    def ask(self, method: str, path: str, body: str = "") -> tuple[str, http.client.HTTPResponse]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            headers = {"Cookie": self.cookie, "Origin": f"http://127.0.0.1:{self.port}"}
            if body:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, self.folder + path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.read().decode(), answer

    def until(self, path: str, wanted: str) -> str:
        end = time.monotonic() + 60
        while wanted not in (page := self.ask("GET", path)[0]):
            assert time.monotonic() < end, page
            time.sleep(0.05)
        return page


@pytest.mark.processes
def test_a_task_is_watched_audited_and_abandoned(odp: Odp, task_file: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world").start(stack)
        id = odp("task", "submit", task_file, "--server", world.server.address, "--state", world.root).out.strip()
        command = [*ODP, "dashboard", "--json",
                   "--server", world.server.address, "--state", str(world.root), "--allow-changes"]  # fmt: skip
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(running.communicate)
        stack.callback(running.kill)
        assert running.stdout is not None
        printed = json.loads(running.stdout.readline())
        assert printed["url"].endswith(printed["token"])
        visitor = Visitor(printed["url"])
        visitor.until("/", "films")
        page = visitor.until(f"/tasks/{id}", "planned in all")
        csrf = re.search(r'name="csrf" value="(\w+)"', visitor.ask("GET", "/log")[0])
        assert csrf is not None
        assert visitor.ask("POST", "/log/audit", f"csrf={csrf[1]}")[1].status == 303
        visitor.until("/log", "Passed: all")
        assert visitor.ask("POST", f"/tasks/{id}/abandon", f"csrf={csrf[1]}")[1].status == 303
        visitor.until(f"/tasks/{id}", "cancel")
        assert (
            "cancel" in odp("task", "status", id, "--server", world.server.address, "--state", world.root).json["state"]
        )
        assert page.count("<h1>") == 1
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_it_refuses_to_leave_the_machine_in_clear(odp: Odp, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SSH tunnel"):
        odp("dashboard", "--host", "0.0.0.0", "--state", tmp_path)  # it is refused


def test_a_folder_without_services_is_one_line(odp: Odp, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no state folder of `odp up`"):
        odp("dashboard", "--state", tmp_path)

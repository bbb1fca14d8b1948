"""`odp device view` as a process, and that the person's commands know of what apps were told."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_runtime.inference.best_value import best_value
from device_runtime.round.gate import Gate
from device_runtime.store.keys import host_key, no_keyring
from device_runtime.store.store import Store, store_path
from device_runtime.view.front_door import FILE, opened
from odp.cli.main import app
from odp.operations.local.processes import ODP

SERVICE = """
import odp.isolated as on

class Films(on.IsolatedService):
    def on_request(self, request, stores):
        return on.Accepted(request.asked) if "genre" in request.asked else on.Declined("name a genre")

    def on_execute(self, execution, stores):
        return on.Executed({"title": f"Only {execution.work['genre']}"})

    def on_render(self, rendering, stores):
        return on.Rendered(f"<p>{rendering.result['title']}</p>")
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a device that told an app something."""
    state = tmp_path / "devices"
    path = store_path(state, 0)
    path.parent.mkdir(parents=True, mode=0o700)
    with Store.open_or_create(path, key=host_key(state, key_file=None, ring=no_keyring)) as store:
        best_value(store, Gate(), 1, service="films", app="cinema", choices=4, epsilon=0.5)
    return state


@contextmanager
def viewing(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `odp device view` and the address that it printed."""
    command = [*ODP, "device", "view", *map(str, arguments)]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            found = re.search(r"^device \d+: (http://127\.0\.0\.1:\d+/\S+)$", line)
            if found:
                yield running, found[1]
                return
        raise AssertionError("it ended without an address")
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_it_prints_an_address_serves_the_page_and_ends_on_sigint(state: Path) -> None:
    with viewing("--state", state) as (running, url):
        page = _page(url)
        assert "Answers to apps" in page
        assert "cinema" in page
        assert not (state / FILE).exists()
        running.send_signal(signal.SIGINT)
        assert running.wait(300) == 0


@pytest.mark.processes
def test_it_asks_a_service_and_shows_the_result(state: Path, tmp_path: Path) -> None:
    service = tmp_path / "films.py"
    service.write_text(SERVICE)
    with viewing("--state", state, "--service", service, "--ask", '{"genre": "noir"}') as (_, url):
        assert "Only noir" in _page(url)


def run(*arguments: object) -> tuple[int, str]:
    told = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return told.exit_code, told.output if told.exception is None or told.exit_code == 0 else str(told.exception)


def test_a_folder_without_the_device_is_one_line(state: Path, tmp_path: Path) -> None:
    for where in (("--state", tmp_path / "nowhere"), ("--state", state, "--device", 7)):
        code, told = run("device", "view", *where)
        assert code != 0
        assert re.fullmatch(r"device store .* does not exist; check --state and --device", told)
    assert not (tmp_path / "nowhere").exists()


def test_what_is_asked_has_to_be_an_object(state: Path) -> None:
    code, told = run("device", "view", "--state", state, "--ask", "[1]")
    assert code != 0
    assert told == "Expected --ask='[1]' to be a JSON object"


def test_the_browser_is_led_to_the_page_by_a_file_that_the_person_alone_may_read(tmp_path: Path) -> None:
    """What a program is started with, every user of a machine can read."""
    started: list[str] = []
    with opened("http://127.0.0.1:1/secret/", tmp_path, browser=started.append):
        door = tmp_path / FILE
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        assert "http://127.0.0.1:1/secret/" in door.read_text()
    assert started == [door.resolve().as_uri()]
    assert not door.exists()


def test_the_persons_commands_show_limit_and_export_what_apps_were_told(state: Path, tmp_path: Path) -> None:
    code, told = run("device", "privacy", "--state", state)
    assert code == 0
    assert "told app cinema one of 4 choices, with noise, by service films" in " ".join(told.split())
    code, told = run("device", "limit", "--state", state, "max_answers_epsilon_30_days=0.6")
    assert "max_answers_epsilon_30_days = 0.6" in told
    code, told = run("device", "export", tmp_path / "mine.json", "--state", state)
    assert code == 0
    (line,) = json.loads((tmp_path / "mine.json").read_text())["privacy"]["answers"]
    assert (line["app"], line["choices"], line["adjacency"]) == ("cinema", 4, "any_two_inputs")

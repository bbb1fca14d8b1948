"""The control room: processor time of its process at ten events a second with five viewers, and the first page.

The process reads a source in itself that changes ten times a second, so that what is measured is the page: reading,
drawing, and sending to the viewers, without a server's own work. The aim is set against one core.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time

from benchmarks.harness import Figure

_SECONDS, _QUICK_SECONDS = 30.0, 6.0
_VIEWERS, _EVENTS = 5, 10.0
_PAGES = 20
_TASK = """
name = "films"
[model]
kind = "matrix_factorization"
items = 3706
rank = 2
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = 8.0
delta = 1e-6
[training]
kind = "dpam"
[cohort]
minimum = 100
goal = 6040
"""


class _Source:
    """Twenty tasks of a hundred rounds; in one of them a device contributes ten times a second."""

    def __init__(self) -> None:
        from odp.crypto.signing import SigningKey
        from odp.signed.task import sign_task
        from odp.tasks.file import parse_task
        from odp.v1 import common_pb2, server_pb2

        key, self._begin = SigningKey.generate(), time.monotonic()
        release = common_pb2.Release(epsilon_spent=1.0, charges=[common_pb2.Charge(name="counts", noise_std=3.0)])
        signed = common_pb2.SignedRelease(release=release.SerializeToString(), signature=bytes(64))
        applied = server_pb2.RoundStatus.STATE_APPLIED
        active, finished = server_pb2.TaskStatus.STATE_ACTIVE, server_pb2.TaskStatus.STATE_FINISHED
        self._statuses = []
        for number in range(20):
            task = sign_task(parse_task(_TASK.replace('"films"', f'"films-{number}"')).definition(), key)
            rounds = [
                server_pb2.RoundStatus(round=n, state=applied, contributions=5000, release=signed) for n in range(100)
            ]
            rounds[-1] = server_pb2.RoundStatus(round=99, state=server_pb2.RoundStatus.STATE_OPEN, contributions=0)
            one = server_pb2.TaskStatus(
                task=task, state=active if number < 5 else finished, rounds=rounds, planned_rounds=120
            )
            self._statuses.append(one.SerializeToString())

    def tasks(self) -> list[object]:
        """Parsed anew, as the reply of a server is."""
        from odp.v1 import server_pb2

        found = [server_pb2.TaskStatus.FromString(one) for one in self._statuses]
        found[0].rounds[-1].contributions = int(_EVENTS * (time.monotonic() - self._begin))
        return list(found)

    def log(self) -> None:
        """None is pinned."""

    def refusals(self) -> None:
        """No aggregator's metrics are read."""

    def results(self, task: bytes) -> tuple[str, dict[str, object]]:
        """A training without figures."""
        return "", {}


def serve() -> None:
    """The process that is measured: prints its address, and for each line on stdin its processor time."""
    from typing import Any, cast

    from odp.dashboard.poller import Poller
    from odp.dashboard.serving import ControlRoom, Place

    source = cast("Any", _Source())
    room = ControlRoom(Poller(source), Place(), token="token", server="127.0.0.1:7200", may_change=False)
    print(room.origin, flush=True)
    for _ in sys.stdin:
        print(json.dumps(time.process_time()), flush=True)
    room.stop()


class _Room:
    """The process, signed in to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.scale.control_room import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline().rpartition(":")[2])
        self._cookie = self._folder = ""
        signed_in = re.fullmatch(r"(\S+);.*; Path=(/\w+); .*", str(self.get("/?token=token").getheader("set-cookie")))
        assert signed_in is not None
        self._cookie, self._folder = signed_in[1], signed_in[2]

    def get(self, path: str) -> http.client.HTTPResponse:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", self._folder + path, headers={"Cookie": self._cookie})
        return connection.getresponse()

    def processor_seconds(self) -> float:
        """What the process has used so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()


def run(quick: bool) -> list[Figure]:
    """The figures of this part."""
    room = _Room()
    try:
        started = time.perf_counter()
        first = len(room.get("/").read())
        first_seconds = time.perf_counter() - started
        pages = []
        for _ in range(_PAGES):
            started = time.perf_counter()
            room.get("/").read()
            pages.append(time.perf_counter() - started)
        received: list[int] = []
        for _ in range(_VIEWERS):
            threading.Thread(target=_view, args=(room, received), daemon=True).start()
        time.sleep(1.5)  # the first event of each viewer is the whole page, and plans are computed once
        before, began, events = room.processor_seconds(), time.perf_counter(), len(received)
        time.sleep(_QUICK_SECONDS if quick else _SECONDS)
        share = (room.processor_seconds() - before) / (time.perf_counter() - began)
        return [
            Figure("first page of the control room", 1000 * first_seconds, "ms", "<= 300"),
            Figure("median page of the control room", 1000 * sorted(pages)[_PAGES // 2], "ms"),
            Figure("control room at 10 events/s, 5 viewers", 100 * share, "% of a core", "<= 1"),
            Figure("parts sent to the viewers in that time", float(len(received) - events), "events"),
            Figure("bytes of the page", float(first), "bytes"),
        ]
    finally:
        room.close()


def _view(room: _Room, received: list[int]) -> None:
    answer = room.get("/events?page=1")
    try:
        while line := answer.readline():
            if line.startswith(b"data: "):
                received.append(len(line))
    except (OSError, ValueError):
        return

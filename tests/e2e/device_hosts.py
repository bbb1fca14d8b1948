"""Many device hosts, each a process of its own that may die at an exact step: ``python device_hosts.py PLAN``.

PLAN is a JSON list of hosts (``Host``). The program imports once and forks each host, which costs a hundredth of
starting it anew; says on a line of JSON how each ended; and asks those that are left to end when its own input ends.

A host whose plan says ``quiet`` adds no noise to what it sends: this file replaces the function that draws it. The
device runtime itself has no such switch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import device_runtime
from device_runtime.round import secagg
from odp.datasets import Ratings, load
from odp.transport.logs import Log
from odp.v1 import secagg_service_pb2

IMAGES = Path(__file__).parent / "images"
DATA = "synthetic:n_users=10,n_items=30,ratings_per_user=9,seed=11"
MIN_COHORT = 5
SEAT = "device_runtime.round.secagg:Seat"
#: By step: the answer of the host that a device takes it upon.
ANSWERS = {
    "reveal": "adverts", "share": "reveals", "masked": "inbox", "agree": "survivors", "unmask": "agreements",
}  # fmt: skip


def people() -> Ratings:
    """Whose data the devices hold: device n has those of user n."""
    return load(DATA)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One host: its folder (whose name names it), the services' folder, its devices, and where it dies if it does.

    With ``again`` it is started again after it was killed, and lives. Devices hold what is in ``data``, in the words of
    ``--data``.
    """

    state: str
    services: str
    server: str
    population: str
    first: int
    count: int
    step: str = ""
    again: bool = False
    quiet: bool = False
    data: str = DATA


def die_before(step: str) -> None:
    """Has this process killed when the first of its devices is about to take a step: none of them ever takes it.

    In a session all have taken the step before by then, because the server begins no step while one is awaited.
    """
    from crashing.arming import arm, by_signal

    if step not in ANSWERS:
        arm(
            {"send": "device_runtime.round.participation:Participant._submit:before"}.get(
                step, f"{SEAT}.sit_down:before"
            )
        )
        return
    following = secagg.Seat.next

    def armed(seat: secagg.Seat, answer: secagg_service_pb2.StepResponse) -> Any:
        if answer.WhichOneof("answer") == ANSWERS[step]:
            by_signal()
        return following(seat, answer)

    secagg.Seat.next = armed  # type: ignore[method-assign]


def live(host: Host) -> None:
    """Is the host, in a process of its own, until it is asked to end or reaches its point."""
    os.setsid()
    if host.step:
        die_before(host.step)
    if host.quiet:
        secagg.draw_share = lambda definition, query, source: np.zeros(query.grid.size, np.int64)  # type: ignore[assignment]
    services = Path(host.services)
    config = device_runtime.Config(
        state=Path(host.state), server=host.server, ca=services / "ca" / "ca.pem",
        reference_values=services / "reference_values.json", population=host.population, first=host.first,
        count=host.count, durable=False, keyring=False, limits=device_runtime.Limits(min_cohort=MIN_COHORT),
    )  # fmt: skip
    with Path(f"{host.state}.log").open("a") as stream:
        ratings = load(host.data).select_users(range(host.first, host.first + host.count))
        device_runtime.run(config, ratings=ratings, log=Log("devices", stream=stream))


def main() -> None:
    sys.path.insert(0, str(IMAGES))
    hosts = [Host(**each) for each in json.loads(Path(sys.argv[1]).read_text())]
    running: dict[int, Host] = {}

    def begin(host: Host) -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(host)
                code = 0
            finally:
                os._exit(code)
        running[child] = host

    for host in hosts:
        begin(host)
    ending = threading.Event()

    def end() -> None:
        sys.stdin.read()
        ending.set()
        for child in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    while running:
        child, status = os.wait()
        host = running.pop(child)
        if host.again and not ending.is_set():
            begin(dataclasses.replace(host, step="", again=False))
        line = json.dumps({"state": host.state, "code": os.waitstatus_to_exitcode(status)})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

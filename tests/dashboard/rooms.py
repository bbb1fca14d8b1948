"""A source without a server: tasks in several states, whose statuses a test changes, and the site on top of it."""

from __future__ import annotations

import hashlib
import http.client
import re
from typing import Any

from odp.crypto.signing import SigningKey
from odp.dashboard.source import AuditFacts, LogFacts, RefusalFacts
from odp.errors import ServiceUnavailable
from odp.signed.task import sign_task, task_sha256
from odp.tasks.file import AnyTask, parse_task
from odp.v1 import common_pb2, server_pb2

NOW = 1_800_000_000.0
KEY = SigningKey.from_bytes(hashlib.sha256(b"a control room").digest())
TASK = """
name = "{name}"
[model]
kind = "matrix_factorization"
items = 200
rank = 4
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = {epsilon}
delta = 1e-6
[training]
kind = "{kind}"
{more}
[cohort]
minimum = 100
goal = 1000
"""
QUESTION = """
name = "{name}"
[queries.hours]
kind = "histogram"
bins = 24
[privacy]
epsilon = 1.0
delta = 1e-6
[cohort]
minimum = 100
goal = 1000
"""
State = server_pb2.TaskStatus


def signed_in(answer: http.client.HTTPResponse) -> tuple[str, str]:
    """The cookie that an answer sets, as a browser sends it, and the path that it is for."""
    found = re.fullmatch(r"(\S+);.*; Path=(/\w+); .*", str(answer.getheader("set-cookie")))
    assert found is not None
    return found[1], found[2]


def text(name: str, *, epsilon: float = 8.0, steps: int = 6) -> str:
    return TASK.format(name=name, epsilon=epsilon, kind="dpam", more=f"steps = {steps}")


def release(round: int, epsilon: float, contributions: int) -> common_pb2.SignedRelease:
    charges = [
        common_pb2.Charge(name=name, sensitivity=2.45, noise_std=31.7, coordinates=200, adjacency=1)  # type: ignore[arg-type]
        for name in ("gradients", "counts")
    ]
    content = common_pb2.Release(
        round=round, charges=charges, epsilon_spent=epsilon, contributions=contributions,
        tensors=[common_pb2.ReleasedTensor(name="counts", shape=[200], step=0.5, integers=bytes(1600))],
    )  # fmt: skip
    return common_pb2.SignedRelease(release=content.SerializeToString(), signature=bytes(64))


def status(
    task: str, state: Any, counts: list[int], *, planned: int = 8, is_open: bool = False, per_round: float = 0.9,
    **more: Any,
) -> server_pb2.TaskStatus:  # fmt: skip
    """A task whose rounds had these contributions; the last one may be open still."""
    rounds, spent = [], 0.0
    for number, count in enumerate(counts):
        opened = NOW - 300.0 * (len(counts) - number)
        if is_open and number == len(counts) - 1:
            rounds.append(server_pb2.RoundStatus(round=number, state=10, contributions=count, opened=opened))
            continue
        spent += per_round
        rounds.append(
            server_pb2.RoundStatus(
                round=number, state=50, contributions=count, opened=opened, closed=opened + 180.0 + 17 * (number % 3),
                release=release(number, spent, count),
            )
        )  # fmt: skip
    signed = sign_task(parse_task(task).definition(), KEY)
    return server_pb2.TaskStatus(
        task=signed, state=state, rounds=rounds, planned_rounds=planned, epsilon_spent=spent, **more
    )


class FakeSource:
    """Answers what a test set; ``down`` is why it does not answer."""

    def __init__(self) -> None:
        self.statuses = [
            status(text("films"), State.STATE_ACTIVE, [1012, 1000, 987, 1004, 412], is_open=True),
            status(
                QUESTION.format(name="hours"), State.STATE_ACTIVE, [61], planned=1, is_open=True,
                waits_for=server_pb2.TaskWait(reason="39 more devices have to contribute"),
            ),
            status(text("films-wide", steps=7), State.STATE_FINISHED, [1000, 940, 1003, 1001, 991, 1007, 1002, 996]),
            status(
                text("films-late", epsilon=4.0), State.STATE_FAILED, [640, 702], per_round=0.45,
                failure="round 2: the ledger of population 'films' cannot pay for the release",
            ),
            status(text("songs", epsilon=2.0), State.STATE_CANCELLED, [870], per_round=0.2),
        ]  # fmt: skip
        self.checkpoint: LogFacts | None = LogFacts(
            "log.example/odp", 48, hashlib.sha256(b"root").hexdigest(), ("witness.example",), int(NOW), ""
        )
        self.refused: RefusalFacts | None = None
        self.down = ""
        self.cancelled: list[bytes] = []
        self.paused: list[tuple[bytes, bool]] = []
        self.submitted: list[str] = []
        self.usable: dict[bytes, str] = {}
        self.readings = 0

    @property
    def ids(self) -> list[str]:
        return [task_sha256(one.task).hex() for one in self.statuses]

    def tasks(self) -> list[server_pb2.TaskStatus]:
        self.readings += 1
        if self.down:
            raise ServiceUnavailable(self.down)
        return list(self.statuses)

    def log(self) -> LogFacts | None:
        return self.checkpoint

    def refusals(self) -> RefusalFacts | None:
        return self.refused

    def audit(self) -> AuditFacts:
        return AuditFacts("", 48, (("task", 5), ("release", 13), ("ledger", 30)), 5)

    def results(self, task: bytes) -> tuple[str, dict[str, object]]:
        if task in self.usable:
            return self.usable[task], {}
        scales = [0.82, 0.61, 0.52, 0.47]
        rounds = [{"round": n, "update_scale": one, "update_scale_std": 0.01} for n, one in enumerate(scales)]
        return "round   update scale\n" + "\n".join(f"{n:5}   {one}" for n, one in enumerate(scales)), {
            "rounds": rounds
        }

    def submit(self, task: AnyTask) -> bytes:
        signed = sign_task(task.definition(), KEY)
        self.submitted.append(task.name)
        self.statuses.insert(0, State(task=signed, state=State.STATE_ACTIVE, planned_rounds=8))
        return task_sha256(signed)

    def pause(self, task: bytes) -> None:
        self._set_paused(task, True)

    def resume(self, task: bytes) -> None:
        self._set_paused(task, False)

    def _set_paused(self, task: bytes, paused: bool) -> None:
        self.paused.append((task, paused))
        for one in self.statuses:
            if task_sha256(one.task) == task:
                one.paused = paused

    def cancel(self, task: bytes) -> None:
        self.cancelled.append(task)
        for one in self.statuses:
            if task_sha256(one.task) == task:
                one.state = State.STATE_CANCELLED

    def add_device(self, place: int = 0) -> None:
        """One contribution more to the open round of a task. A new message, as each answer of a server is."""
        changed = State()
        changed.CopyFrom(self.statuses[place])
        changed.rounds[-1].contributions += 1
        self.statuses[place] = changed

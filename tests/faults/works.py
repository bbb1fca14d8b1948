"""What a trial has the services do: one task, or the trainings of a living model one after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from e2e import shifted_clock
from faults.configurations import Configuration
from faults.deployment import Deployment

import odp
from odp.services.connection import TaskHandle
from odp.signed.task import open_task
from odp.trainings.living_model import LivingModel, Stage, Standing
from odp.v1 import server_pb2

_PERIOD_DAYS = 7


class Work(Protocol):
    """Submitted once, and asked until it is over.

    Attributes:
        begun: tasks that were submitted so far.
    """

    @property
    def begun(self) -> int: ...

    def begin(self) -> None:
        """Returns when the first task is submitted. Raises Stuck."""
        ...

    def go_on(self) -> bool:
        """Takes the next step if one is due; whether all is over. Raises OdpError where a service is away."""
        ...

    def statuses(self) -> list[server_pb2.TaskStatus]:
        """Of all tasks that were submitted, in order."""
        ...


class OneTask:
    """A task of the configuration."""

    def __init__(self, deployment: Deployment, configuration: Configuration, name: str) -> None:
        self._deployment, self._task = deployment, configuration.task(name)
        self._handle: TaskHandle | None = None
        self._status = server_pb2.TaskStatus()
        self.begun = 1

    def begin(self) -> None:
        self._handle = self._deployment.until(
            lambda: self._deployment.connection.submit(self._task), what="the receipt of the task"
        )

    def go_on(self) -> bool:
        assert self._handle is not None
        self._status = self._handle.status()
        return self._status.state != server_pb2.TaskStatus.STATE_ACTIVE

    def statuses(self) -> list[server_pb2.TaskStatus]:
        return [self._status]


class Trainings:
    """A living model, which a program advances again and again by the services' clock; each time it is another run."""

    def __init__(self, deployment: Deployment, configuration: Configuration, name: str) -> None:
        task: Any = configuration.task(name)
        self._deployment, self._task, self._trainings = deployment, task, configuration.trainings
        self._folder = Path(f"{deployment.root}.{name}") / "living"
        self._days, self._ids = 0.0, list[bytes]()

    @property
    def begun(self) -> int:
        return len(self._ids)

    def begin(self) -> None:
        self._deployment.until(lambda: self._advanced().stage is Stage.TRAINING, what="the begin of the first training")

    def go_on(self) -> bool:
        standing = self._advanced()
        if standing.stage is Stage.WAITING:
            self._days = _PERIOD_DAYS * (standing.training + 1.0)
        return standing.stage is Stage.COMPLETE

    def statuses(self) -> list[server_pb2.TaskStatus]:
        tasks = reversed(self._deployment.connection.tasks())
        submitted = [status for status in tasks if open_task(status.task).population == self._task.population]
        assert len(submitted) == self.begun == self._trainings, "each training is one task"
        return submitted

    def _advanced(self) -> Standing:
        schedule = odp.living.Schedule(
            every=f"{_PERIOD_DAYS}d", horizon=f"{_PERIOD_DAYS * self._trainings}d", lifetime_epsilon=8.0,
            delta=self._task.privacy.delta,
        )  # fmt: skip
        items = [str(item) for item in range(self._task.factorization.items)]
        living = LivingModel(self._folder, task=self._task, schedule=schedule, item_keys=items)
        now = time.time() + shifted_clock.shift(self._deployment.clock) + self._days * 86_400.0
        standing = living.advance(self._deployment.connection, now=now)
        sha256 = bytes.fromhex(standing.task_sha256)
        if sha256 not in self._ids:
            self._ids.append(sha256)
        return standing


def work_of(deployment: Deployment, configuration: Configuration, name: str) -> Work:
    """What a trial of this configuration does; ``name`` is that of its population."""
    return (OneTask if configuration.trainings == 1 else Trainings)(deployment, configuration, name)

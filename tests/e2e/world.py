"""The whole platform for end-to-end tests: in this process (faults and noise can be injected) or as real processes."""

from __future__ import annotations

import contextlib
import io
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import device_runtime
import distributor.program
import odp
import server.program
import trusted_aggregator.program
from odp.cli.enclave import write_reference_values
from odp.cli.log_setup import ENDORSEMENTS, LOG_KEY, pin_log
from odp.client import Connection, TaskHandle
from odp.datasets import Ratings
from odp.enclave.policy import EnclavePolicy
from odp.privacy.mechanisms.rounded_gaussian import IntegerNoise
from odp.task import Cohort, RatingsData, Task, UserLevelDP
from odp.transport.logs import Log
from odp.transport.tls import read_ca
from odp.v1 import server_pb2

POPULATION = "films"
SECONDS = 120.0


@dataclass
class World:
    """Three services in this process, over real TLS; ``logs`` holds what they and the devices logged."""

    root: Path
    noise: IntegerNoise | None = None
    logs: io.StringIO = field(default_factory=io.StringIO)
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="aggregator", minimum_cohort=20))

    def start(self, stack: contextlib.ExitStack) -> World:
        """Starts them; they stop when ``stack`` closes."""
        shared = {"platform": self.root / "platform", "ca_folder": self.root / "ca", "listen": "127.0.0.1:0"}
        self.distributor = distributor.program.start(
            distributor.program.Config(state=self.root / "distributor", **shared), log=self.log("distributor")
        )
        stack.callback(self.distributor.stop)
        self.aggregator = trusted_aggregator.program.start(
            trusted_aggregator.program.Config(state=self.root / "aggregator", policy=self.policy, **shared),
            noise=self.noise,
            log=self.log("aggregator"),
        )
        stack.callback(self.aggregator.stop)
        write_reference_values(self.root / "platform", self.policy, self.reference_values)
        pin_log(self.root, self.reference_values, (self.policy, EnclavePolicy(role="distributor")))
        self.server = server.program.start(
            server.program.Config(
                state=self.root / "server",
                listen="127.0.0.1:0",
                distributor=self.distributor.address,
                aggregator=self.aggregator.address,
                ca_folder=self.root / "ca",
                reference_values=self.reference_values,
                log_key=self.root / LOG_KEY,
                endorsements=self.root / ENDORSEMENTS,
            ),
            log=self.log("server"),
        )
        stack.callback(self.server.stop)
        self.connection = stack.enter_context(
            Connection(
                address=self.server.address, ca=read_ca(self.ca), token=self.server.token_path.read_text().strip()
            )
        )
        return self

    def log(self, program: str) -> Log:
        return Log(program, stream=self.logs)

    @property
    def ca(self) -> Path:
        return self.root / "ca" / "ca.pem"

    @property
    def reference_values(self) -> Path:
        return self.root / "reference_values.json"

    def devices(
        self, ratings: Ratings | None, *, count: int | None = None, **changes: object
    ) -> device_runtime.Running:
        """A device host in this process that works until the task is finished."""
        settings: dict[str, object] = {
            "state": self.root / "devices",
            "server": self.server.address,
            "ca": self.ca,
            "reference_values": self.reference_values,
            "population": POPULATION,
            "count": count,
            "limits": device_runtime.Limits(min_cohort=20),
        }
        return device_runtime.start(
            device_runtime.Config(**{**settings, **changes}), ratings=ratings, log=self.log("devices")
        )

    def finish(self, handle: TaskHandle, devices: device_runtime.Running) -> server_pb2.TaskStatus:
        """Waits for the end of the task and stops the devices."""
        try:
            return wait_finished(handle)
        finally:
            devices.stop()


def wait_finished(handle: TaskHandle, *, polls: int = 600) -> server_pb2.TaskStatus:
    """The final status; fails with what the server says when the task does not finish."""
    pause = threading.Event()
    for _ in range(polls):
        status = handle.status()
        if status.state == server_pb2.TaskStatus.STATE_FINISHED:
            return status
        if status.state != server_pb2.TaskStatus.STATE_ACTIVE:
            pytest.fail(f"the task ended early: {status.failure}")
        pause.wait(0.2)
    pytest.fail(f"not finished: {status.rounds[-1] if status.rounds else 'no round'}")


def small_task(ratings: Ratings, *, rank: int = 0, training: odp.DPAM | None = None, epsilon: float = 8.0) -> Task:
    """A task for a small population; every user is awaited."""
    return Task(
        name=POPULATION,
        model=odp.MatrixFactorization(items=ratings.n_items, rank=rank),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(epsilon=epsilon, delta=1e-5, max_items_per_user=15),
        training=training if training is not None else odp.DPAM(),
        cohort=Cohort(minimum=20, goal=ratings.n_users, round_seconds=600),
    )

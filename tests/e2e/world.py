"""The whole platform for end-to-end tests: in this process (faults and noise can be injected) or as real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import threading
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import device_runtime
import distributor.enclave_process
import distributor.program
import odp
import server.program
import trusted_aggregator.enclave.process
import trusted_aggregator.host.config
import trusted_aggregator.host.program
from device_runtime.round.fixed_times import FixedTimes
from distributor.helper_program import HelperConfig, helper_key, start_helper
from odp.algorithms.computing_time import fixed_seconds
from odp.algorithms.dpam.config import RatingsData
from odp.algorithms.implicit.config import ImplicitData
from odp.datasets import Ratings, synthetic_movielens
from odp.operations.local.log_setup import ENDORSEMENTS, LOG_KEY, pin_log, reference_values
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import IntegerNoise
from odp.protocol.terms import Cohort, UserLevelDP
from odp.services.connection import Connection, TaskHandle
from odp.signed.tables.table import is_table
from odp.tasks.file import AnyTask
from odp.tasks.task import Task
from odp.transport.logs import Log
from odp.transport.running import Running
from odp.transport.tls import read_ca
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, measure
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enrolment import issuer_program
from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedVendor
from odp.v1 import common_pb2, server_pb2
from trusted_aggregator.modes.hosting import ModeOptions
from trusted_aggregator.modes.secagg.limits import Pace

POPULATION = "films"
SECONDS = 120.0


def until_finished(seconds: float, finished: threading.Event) -> None:
    """Instead of the whole time of a computation."""
    assert finished.wait(SECONDS)


@functools.cache
def measured(entry: str) -> str:
    """The digest of an enclave, measured once: it takes a while, and an edit during the tests would change it."""
    return measure(entry).digest


class PatientConnection(Connection):
    """Gives devices up to four seconds for a contribution: they share this process with all services, on a machine that
    is busy with other tests, and what is late is empty. Nobody waits longer than a device computes.
    """

    def submit(self, task: AnyTask) -> TaskHandle:
        return super().submit(_Patient(task))


@dataclasses.dataclass(frozen=True)
class _Patient:
    """A task of any kind, with that time."""

    task: AnyTask

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def public_matrix(self) -> Any:
        return self.task.public_matrix

    def definition(self) -> common_pb2.TaskDefinition:
        definition = self.task.definition()
        if is_table(definition):
            return definition
        longest = definition.cohort.round_seconds / 4 if definition.HasField("cohort") else math.inf
        seconds = max((one for one in (0.0, 1.0, 4.0) if one <= longest), default=0.0)
        if not definition.computing_milliseconds and fixed_seconds(definition) < seconds:
            definition.computing_milliseconds = int(1000 * seconds)
        return definition


@dataclasses.dataclass
class World:
    """The services in this process, over real TLS; ``logs`` holds what they and the devices logged.

    The enclaves are threads, so that noise can be injected and a failure debugged; killing.py has them as processes.
    """

    root: Path
    noise: IntegerNoise | None = None
    logs: io.StringIO = field(default_factory=io.StringIO)
    pace: Pace = field(default_factory=Pace)
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="aggregator", minimum_cohort=20))
    with_helper: bool = False
    #: Devices contribute with a token of an issuer, which takes those of an emulated vendor; without, anybody may.
    with_tokens: bool = True
    #: How long a round waits for a leaf that does not answer.
    leaf_grace: float = 0.0

    def start(self, stack: contextlib.ExitStack) -> World:
        """Starts them; they stop when ``stack`` closes."""
        any_port = "127.0.0.1:0"
        shared = {
            "platform": self.root / "platform", "ca_folder": self.root / "ca", "listen": any_port,
            "control_listen": any_port,
        }  # fmt: skip
        founder = server.program.developer_key(self.root / "server")
        self.policy = dataclasses.replace(self.policy, founders=(founder,))
        if self.with_helper:
            self.helper = start_helper(
                HelperConfig(state=self.root / "helper", listen="127.0.0.1:0", ca_folder=self.root / "ca"),
                log=self.log("helper"),
            )
            stack.callback(self.helper.stop)
        self.distributor = distributor.program.start(
            distributor.program.Config(
                state=self.root / "distributor", helper=self.helper.address if self.with_helper else None, **shared
            ),
            log=self.log("distributor"),
            launch=InThread(distributor.enclave_process.run, digest=measured(DISTRIBUTOR_ENTRY)),
        )
        stack.callback(self.distributor.stop)
        self.leaves = [self.start_leaf(number, shared, stack) for number in range(self.policy.leaves)]
        self.aggregator = trusted_aggregator.host.program.start(
            trusted_aggregator.host.config.Config(
                state=self.root / "aggregator",
                policy=self.policy,
                modes=ModeOptions(pace=self.pace),
                leaves=tuple(leaf.control_address for leaf in self.leaves),
                leaf_grace_seconds=self.leaf_grace,
                **shared,
            ),
            log=self.log("aggregator"),
            launch=InThread(
                functools.partial(trusted_aggregator.enclave.process.run, noise=self.noise),
                digest=measured(AGGREGATOR_ENTRY),
            ),
        )
        stack.callback(self.aggregator.stop)
        addresses = {"distributor": (self.distributor.address,), "aggregator": (self.aggregator.address,)}
        if self.leaves:
            addresses["leaf"] = tuple(leaf.address for leaf in self.leaves)
        issuing: dict[str, str] = {}
        if self.with_tokens:
            EmulatedVendor.open(self.vendor)
            self.issuer = issuer_program.start(
                issuer_program.Config(
                    state=self.root / "issuer", developers=(founder,), emulated_vendors=(self.vendor / ROOT_FILE,),
                    listen=any_port, control_listen=any_port, ca_folder=self.root / "ca",
                ),
                log=self.log("issuer"),
            )  # fmt: skip
            stack.callback(self.issuer.stop)
            addresses["issuer"] = (self.issuer.address,)
            issuing = {
                "issuer": self.issuer.address,
                "issuer_control": self.issuer.control_address,
                "issuer_key": self.issuer.key,
            }
        keys = (self.helper_key,) if self.with_helper else ()
        reference_values(
            self.root / "platform", self.policy, helper_keys=keys, addresses=addresses,
            emulated_vendor=self.vendor if self.with_tokens else None,
        ).save(self.reference_values)  # fmt: skip
        pin_log(self.root, self.reference_values, (self.policy, EnclavePolicy(role="distributor")))
        self.server = server.program.start(
            server.program.Config(
                state=self.root / "server",
                listen="127.0.0.1:0",
                distributor=self.distributor.address,
                aggregator=self.aggregator.address,
                distributor_control=self.distributor.control_address,
                aggregator_control=self.aggregator.control_address,
                ca_folder=self.root / "ca",
                reference_values=self.reference_values,
                log_key=self.root / LOG_KEY,
                endorsements=self.root / ENDORSEMENTS,
                leaves=tuple(leaf.address for leaf in self.leaves),
                **issuing,
            ),
            log=self.log("server"),
        )
        stack.callback(self.server.stop)
        self.connection = stack.enter_context(
            PatientConnection(
                address=self.server.address, ca=read_ca(self.ca), token=self.server.token_path.read_text().strip()
            )
        )
        return self

    def start_leaf(self, number: int, shared: dict[str, Any], stack: contextlib.ExitStack) -> Running:
        """A leaf of the aggregator, which stops when ``stack`` closes."""
        leaf = trusted_aggregator.host.program.start(
            trusted_aggregator.host.config.Config(
                state=self.root / f"leaf-{number}", policy=self.policy.as_role("leaf"), **shared
            ),
            log=self.log("leaf"),
            launch=InThread(trusted_aggregator.enclave.process.run, digest=measured(AGGREGATOR_ENTRY)),
        )
        stack.callback(leaf.stop)
        return leaf

    def log(self, program: str) -> Log:
        return Log(program, stream=self.logs)

    @property
    def helper_key(self) -> str:
        return helper_key(self.root / "helper")

    @property
    def vendor(self) -> Path:
        return self.root / "vendor"

    @property
    def ca(self) -> Path:
        return self.root / "ca" / "ca.pem"

    @property
    def reference_values(self) -> Path:
        return self.root / "reference_values.json"

    def services(self) -> device_runtime.Services:
        """A device's way to them."""
        pinned = device_runtime.PinnedAddresses.of(ReferenceValues.load(self.reference_values))
        return device_runtime.Services(self.server.address, self.ca, pinned=pinned)

    def devices(
        self,
        ratings: Ratings | None = None,
        *,
        examples: odp.data.ExampleColumns | None = None,
        count: int | None = None,
        **changes: object,
    ) -> device_runtime.Running:
        """A device host in this process that works until the task is finished.

        Its devices wait for their computations alone, and not for the whole time of one.
        """
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
            device_runtime.Config(**{**settings, **changes}), ratings=ratings, examples=examples,
            log=self.log("devices"), fixed_times=FixedTimes(threads=3, wait=until_finished),
        )  # fmt: skip

    def finish(self, handle: TaskHandle, devices: device_runtime.Running) -> server_pb2.TaskStatus:
        """Waits for the end of the task and stops the devices."""
        try:
            return wait_finished(handle)
        finally:
            devices.stop()


def wait_finished(handle: TaskHandle, *, polls: int = 3000) -> server_pb2.TaskStatus:
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


def device_seeds(world: World, users: int) -> np.ndarray:
    """The seeds uint64 [users] that the devices of ``world`` drew, out of their stores."""
    seeds = np.empty(users, dtype=np.uint64)
    for user in range(users):
        with device_runtime.Store.open(device_runtime.store_path(world.root / "devices", user)) as store:
            seeds[user] = store.identity().seed
    return seeds


def released_charges(release: common_pb2.Release) -> list[GaussianRelease]:
    """The charges that a release states, as the ledger counts them."""
    return [
        GaussianRelease(
            name=charge.name,
            sensitivity=charge.sensitivity,
            noise_std=charge.noise_std,
            coordinates=charge.coordinates,
        )
        for charge in release.charges
    ]


def small_ratings(users: int = 24) -> Ratings:
    """A few more users than the smallest cohort, and 40 items."""
    return synthetic_movielens(n_users=users, n_items=40, ratings_per_user=14, seed=5)


def small_task(
    ratings: Ratings,
    *,
    rank: int = 0,
    training: odp.DPAM | odp.ImplicitDPAM | None = None,
    epsilon: float = 8.0,
    places: int = 15,
    broadcast: odp.Broadcast | None = None,
) -> Task:
    """A task for a small population, of the data's kind; every user is awaited."""
    return Task(
        name=POPULATION,
        model=odp.MatrixFactorization(items=ratings.n_items, rank=rank),
        data=ImplicitData() if ratings.implicit else RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(epsilon=epsilon, delta=1e-5, max_items_per_user=places),
        training=training if training is not None else odp.DPAM(),
        cohort=Cohort(minimum=ratings.n_users, goal=ratings.n_users, round_seconds=600),
        broadcast=broadcast if broadcast is not None else odp.Broadcast(),
    )

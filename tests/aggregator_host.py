"""The host of an aggregator without a network: a world's enclave behind its real storage."""

from __future__ import annotations

import io
from typing import Any

from in_process import InProcess

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.errors import StateError
from odp.transport.logs import Log
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.config import IdleTasks
from trusted_aggregator.host.control import ControlService
from trusted_aggregator.host.program import _resume
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.host.servicer import AggregatorService
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.modes.hosting import HostModes
from trusted_aggregator.state.records import SealedRecord, Writes


class StoredHost:
    """Starts on what ``world``, whose population is founded, had its host keep so far."""

    def __init__(self, world: Any, state: StateFolder) -> None:
        self.world = world
        self.state = state
        self.failures: list[StateError] = []
        # Of the day, and since the boot.
        self.now = self.steady = 0.0
        storage = SqliteStorage(state)
        storage.apply([SealedRecord(key, data) for key, data in world.records.items()])
        storage.close()
        self.begin()

    def begin(self) -> None:
        self.log = io.StringIO()
        log = Log("aggregator", stream=self.log)
        self.storage = SqliteStorage(self.state)
        enclave = EnclaveState(self.world.identity)
        self.storage.apply(restore(enclave, self.storage.records(), self.storage.contributions))
        self.core = InProcess(AggregatorCore(enclave, noise=self.world.made_by))
        _resume(self.core.calls, self.storage, [self.world.population], log)
        changes = Changes(self.core.calls, self.storage, failed=self.failures.append)
        modes = HostModes(self.core.calls, self.storage, self.state, log)
        self.service = AggregatorService(self.core.calls, self.storage, changes, modes, failed=self.failures.append)
        self.control = ControlService(
            self.core.calls,
            self.storage,
            changes,
            log,
            rounds=HostedRounds(self.core.calls, self.storage, changes, modes, log),
            idle=IdleTasks(self.storage, clock=lambda: self.now, monotonic=lambda: self.steady),
        )
        self.control.resume()
        self.control.sweep()

    def wait(self, seconds: float) -> None:
        """Both clocks go on."""
        self.now += seconds
        self.steady += seconds

    def end(self) -> None:
        self.service.close()
        self.storage.close()

    def restart(self) -> None:
        self.end()
        self.begin()

    def settle(self, writes: Writes) -> None:
        self.storage.apply(writes)
        self.core.commit()

    def open(self, round: int = 0) -> None:
        order, signature = self.world.order(round, domains.OPEN)
        request = aggregator_pb2.OpenRoundRequest(task=self.world.task, order=order, signature=signature)
        key = self.control.open_round(request)
        if key is not None:
            self.world.round_keys[self.world.task_sha256, round] = key.hpke_key

    def close_round(self, round: int = 0) -> common_pb2.SignedRelease:
        order, signature = self.world.order(round, domains.CLOSE)
        return self.control.close_round(aggregator_pb2.CloseRoundRequest(order=order, signature=signature))

    def count(self, round: int = 0) -> int:
        state = self.core.round_state(self.world.task_sha256, round)
        assert state is not None
        return state.contributions

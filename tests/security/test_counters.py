"""A disk of the platform that fails at a counter: what the aggregator answers, and how it goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.errors import OdpError, StateError
from odp.privacy.ledger_entry import ReleaseState, entries_of
from odp.privacy.ledger_state import LedgerHead
from odp.v1 import aggregator_pb2

#: Writes of counters in a round: two for its charge, two for its release.
COUNTER_WRITES = 4


class CounterDisk:
    """Fails one write of ``counters.json``, and as many behind it as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, code: int, at: int, failures: int) -> None:
        self.left = at
        self.failures = failures
        self.code = code
        from odp.transport import owner_files

        self._write = owner_files.write_atomically
        monkeypatch.setattr("odp.transport.owner_files.write_atomically", self)

    def __call__(self, path: Path, data: bytes, *, mode: int) -> None:
        if path.name == "counters.json":
            self.left -= 1
            if self.left < 0 and self.failures > 0:
                self.failures -= 1
                raise StateError(f"cannot write {path}: {os.strerror(self.code).lower()}")
        self._write(path, data, mode=mode)


@pytest.mark.parametrize("at", range(COUNTER_WRITES))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.slow
def test_r377_a_failed_write_of_a_counter_is_finished_by_a_later_call_and_advises_no_restore(
    make_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, at: int, failures: int
) -> None:
    world = make_world(minimum=3)
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = StoredHost(world, state)
        host.open()
        for device in range(3):
            request = aggregator_pb2.SubmitRequest(
                task_sha256=world.task_sha256, round=0, sealed_contribution=world.sealed(device)
            )
            assert host.service.submit(request).result(20.0) is None
        disk = CounterDisk(monkeypatch, code=code, at=at, failures=failures)
        refused = []
        for _ in range(2 * failures + 1):
            try:
                released = host.close_round()
                break
            except OdpError as error:
                refused.append(str(error))
            # Another caller meanwhile: it reads what rests on the counters.
            try:
                host.core.ledger(world.task_sha256)
            except OdpError as error:
                refused.append(str(error))
        assert disk.failures == 0
        assert refused
        for line in refused:
            assert "counters.json" in line or "disk" in line
            assert "backup" not in line
            assert "rolled back" not in line
        assert released == host.close_round(), "the round has one release"
        head = LedgerHead.decode(host.core.ledger(world.task_sha256)[0])
        lines = host.storage.ledger_lines(world.population, 0, head.entries, most_bytes=2**20)
        assert sum(entry.state is ReleaseState.CHARGED for entry in entries_of(lines)) == 1
        assert host.failures == []
        host.restart()
        assert host.close_round() == released
        host.end()

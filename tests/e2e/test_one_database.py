"""Server and aggregator on one PostgreSQL database, as real processes: the aggregator is killed in a round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from conformance.postgresql import PostgresqlServer
from e2e.killing import DEVICE_HOST, Platform, a_task

from odp.operations.local.processes import ODP, Child, Services
from odp.storage.postgresql import postgresql_place
from odp.trust.enclave.policy import EnclavePolicy

pytestmark = pytest.mark.processes


class OnOneDatabase(Services):
    """Services of which the server and the aggregator keep what they store in one database."""

    def __init__(self, root: Path, url: str, *, policy: EnclavePolicy) -> None:
        super().__init__(root, policy=policy)
        self._url = url

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        shared = ["env", f"ODP_DATABASE={self._url}", *command] if name in ("server", "aggregator") else command
        return super().start_child(name, port, command=shared)


class PlatformOnOneDatabase(Platform):
    def __init__(self, root: Path, url: str, stack: contextlib.ExitStack) -> None:
        self._url = url
        super().__init__(root, stack)
        self._database = postgresql_place(url, program="tests").engine(1)
        stack.callback(self._database.dispose)

    def kept(self, round: int) -> int:
        counted = sa.text("SELECT count(*) FROM aggregator_contributions WHERE round = :round")
        with self._database.connect() as connection:
            return int(connection.execute(counted, {"round": round}).scalar_one())

    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        return OnOneDatabase(root, self._url, policy=policy)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformOnOneDatabase]:
    before = set(psutil.Process().children(recursive=True))
    with PostgresqlServer.started() as server, contextlib.ExitStack() as stack:
        yield PlatformOnOneDatabase(tmp_path, server.url(), stack)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"left running: {left}"


@pytest.mark.slow
def test_an_aggregator_killed_in_a_round_goes_on_from_the_database(platform: PlatformOnOneDatabase) -> None:
    task = a_task()
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.until(lambda: platform.held(0) > 5, what="contributions to round 0")
    platform.kill("aggregator")
    platform.start("aggregator")
    platform.check(task)
    assert not (platform.root / "aggregator" / "sealed.db").exists()

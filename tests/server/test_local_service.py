"""64 devices at once against the service of local reports, over TLS, killed in the middle: each report counts once.

``ODP_LOCAL_UPDATES`` sets the number of reports; 100,000 of them take a few minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conformance.postgresql import PostgresqlServer
from local_service import Load, Program, opened, prepare, simulated_spreads, spread_of

import odp
from odp.signed.task import task_sha256

pytestmark = [pytest.mark.slow, pytest.mark.processes]

UPDATES = int(os.environ.get("ODP_LOCAL_UPDATES", "2000"))
DEVICES = 64


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """As ``local_service`` takes it; PostgreSQL is skipped where it is not installed."""
    if request.param == "sqlite":
        return "sqlite"
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    server.execute("CREATE SCHEMA local_service")
    return server.url(schema="local_service")


def test_nothing_is_lost_with_64_devices_and_a_kill(tmp_path: Path, database: str) -> None:
    """The spread of the instances is within 6 deviations of the logarithm over simulated services: a false alarm of
    about 1e-9 on each side, since the logarithm of a mean over 33 weights is close to normal."""
    task = odp.DrawAndDiscard(
        name="clicks", features={"x": odp.Number(size=32)}, epsilon=2.0, instances=20, false_alarms=0.0
    )
    signed, terms = prepare(tmp_path, task), task.terms()
    program = Program(tmp_path, database)
    load = Load(program, signed, count=DEVICES, updates=UPDATES)

    def kill() -> None:
        program.kill()
        program.start()
        load.restarted()

    load.run(in_the_middle=kill)
    program.stop()
    assert load.retries >= 1
    assert (load.answered, load.refusals) == (UPDATES, [])
    storage = opened(tmp_path, database)
    reports, sha256 = storage.reports, task_sha256(signed)
    assert reports.count(sha256) == UPDATES
    assert all(reports.has(sha256, number.to_bytes(32, "big")) for number in range(1, UPDATES + 1, 97))
    rows = reports.rows(sha256)
    assert len(rows) == 20
    spread = np.log(spread_of(rows) / terms.noise_scale**2)
    # How many devices have drawn at any time follows from the machine: from one to all of them.
    fewest, most = (
        np.log(
            simulated_spreads(
                instances=20, weights=33, updates=min(UPDATES, 4000), in_flight=number, chains=200, seed=1
            )
        )
        for number in (1, DEVICES)
    )
    assert fewest.mean() - 6 * fewest.std() < spread < most.mean() + 6 * most.std()
    storage.close()

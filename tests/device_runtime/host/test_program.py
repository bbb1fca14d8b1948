"""The program around a host: its configuration, its start and its end."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from device_runtime.host import program
from device_runtime.person.limits import Limits
from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, StateError


@pytest.fixture
def config(world: Any) -> program.Config:
    ca, values = world.folder / "ca.pem", world.folder / "reference.json"
    ca.write_bytes(world.identity.ca_pem)
    world.reference_values().save(values)
    return program.Config(
        state=world.folder / "devices-state", server=world.address, ca=ca, reference_values=values, population="people",
        limits=Limits(min_cohort=2), until_finished=True, durable=False,
    )  # fmt: skip


def test_the_program_fills_its_devices_and_stops_when_told(world: Any, config: program.Config) -> None:
    ratings = world.fill([3] * 4)
    with pytest.raises(StateError, match="in use"), StateFolder.open(config.state, "devices"):
        program.start(config, ratings=ratings, log=world.log)
    config = dataclasses.replace(config, state=world.folder / "fresh")
    running = program.start(config, ratings=ratings, log=world.log)
    while [entry.devices_in for entry in running.statistics()] != [4]:
        assert not running.join(0.01)
    running.stop()
    assert running.join(0)
    assert len(world.aggregator.counted) == 4
    with StateFolder.open(config.state, "devices"):
        pass  # the folder was given back


def test_r376_a_host_that_runs_takes_reference_values_that_change(world: Any, config: program.Config) -> None:
    """The enclave is of code that the person pins while the host runs."""
    ratings, right = world.fill([3] * 2), world.reference_values()
    other = {**right.image_digests, "aggregator": ("sha384:" + "e" * 96,)}
    world.reference_values(image_digests=other).save(config.reference_values)
    config = dataclasses.replace(config, state=world.folder / "fresh", keep_running=True)
    running = program.start(config, ratings=ratings, log=world.log)
    until = time.monotonic() + 30.0
    try:
        while "wrong_image" not in world.log_text.getvalue():
            assert time.monotonic() < until
            assert not running.join(0.01)
        assert not world.aggregator.counted
        right.save(config.reference_values)
        while len(world.aggregator.counted) < 2:
            assert time.monotonic() < until, world.log_text.getvalue()
            assert not running.join(0.01)
    finally:
        running.stop()


def test_a_configuration_that_cannot_work_is_refused_at_once(world: Any, config: program.Config) -> None:
    with pytest.raises(ConfigurationError, match="count"):
        program.start(config, log=world.log)
    with pytest.raises(ConfigurationError, match="at most 2"):
        program.start(dataclasses.replace(config, count=3), ratings=world.fill([1, 2]), log=world.log)
    with pytest.raises(ConfigurationError, match=r"nowhere\.json"):
        program.start(dataclasses.replace(config, count=2, reference_values=Path("nowhere.json")), log=world.log)
    for wrong in ({"server": "nowhere"}, {"threads": 0}, {"population": "A b"}, {"first": -1}):
        with pytest.raises(ConfigurationError):
            dataclasses.replace(config, **wrong)


def test_importing_a_device_loads_no_heavy_library() -> None:
    import subprocess
    import sys

    code = (
        "import sys, device_runtime\n"
        "heavy = {'scipy', 'dp_accounting', 'sqlalchemy', 'tensorflow', 'mpmath', 'matplotlib', 'numba', 'rich'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}),"
        " [name for name in sys.modules if name.startswith('odp.') and 'server' in name"
        " and not name.startswith(('odp.v1.', 'odp.crypto.pir.'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] []"

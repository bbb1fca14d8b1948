"""What attacks on all programs together need: the aggregator's own tests' developer, devices and host, and the services
of the devices' own tests."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import conftest_of

_aggregator = conftest_of("trusted_aggregator")
_devices = conftest_of("device_runtime")

make_world = _aggregator.make_world
small = _aggregator.small
make_statistics = _aggregator.make_statistics

identity = _devices.identity
platform = _devices.platform


@pytest.fixture(scope="session")
def World() -> Any:
    """Services for devices: ``World(folder, identity, platform, task)``."""
    return _devices.World

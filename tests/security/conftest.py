"""What attacks on all programs together need: the aggregator's own tests' developer, devices and host, and the services
of the devices' own tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _conftest_of(program: str) -> ModuleType:
    # The folder has the name of the program that it tests, so the program is what an import would find.
    path = Path(__file__).resolve().parents[1] / program / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{program}_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_aggregator = _conftest_of("trusted_aggregator")
_devices = _conftest_of("device_runtime")

make_world = _aggregator.make_world
small = _aggregator.small
make_statistics = _aggregator.make_statistics

identity = _devices.identity
platform = _devices.platform


@pytest.fixture(scope="session")
def World() -> Any:
    """Services for devices: ``World(folder, identity, platform, task)``."""
    return _devices.World

"""Fixtures of the log's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trust.log.world import LogWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LogWorld]:
    made = LogWorld(tmp_path / "log")
    yield made
    made.close()

"""Power cuts, failed syncs and full disks at every step of what each program keeps.

The process under test runs on a disk that keeps what was synced and nothing else (``disk.c``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.disk import library, run

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("layer"))


def test_what_was_acknowledged_survives_a_power_cut_after_every_step(layer: Path, tmp_path: Path) -> None:
    run(layer, "power_cuts", tmp_path)


def test_after_a_failed_sync_nothing_is_acknowledged_and_the_next_start_goes_on(layer: Path, tmp_path: Path) -> None:
    run(layer, "failing_syncs", tmp_path)


def test_a_full_disk_loses_nothing_that_was_acknowledged(layer: Path, tmp_path: Path) -> None:
    run(layer, "full_disk", tmp_path)

"""Fixtures that several test packages use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data sets, one sub-folder each; the test is skipped where there is none.

    The folder is the one that the variable ODP_SHARED_DATA names, or ``shared/data`` beside the repository.
    """
    given = os.environ.get("ODP_SHARED_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs real data sets: set ODP_SHARED_DATA to a folder that holds ml-1m, jester-1, gowalla, ...")
    return folder

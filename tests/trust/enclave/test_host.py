"""A state folder whose enclave sealed something, and whose chip is not there any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from odp.errors import StateError
from odp.trust.enclave.host import require_chip
from odp.trust.enclave.platform import EmulatedPlatform


def test_r383_state_whose_chip_is_gone_starts_no_new_one(tmp_path: Path) -> None:
    state, chip = tmp_path / "aggregator", tmp_path / "platform"
    state.mkdir()
    require_chip(state, chip)  # nothing was sealed yet
    (state / "enclave.sealed").write_bytes(b"keys")
    with pytest.raises(StateError, match=r"which is gone: a backup holds no chip.*found populations under new names"):
        require_chip(state, chip)
    assert not chip.exists()
    EmulatedPlatform.open(chip)
    require_chip(state, chip)

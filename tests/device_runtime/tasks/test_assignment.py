"""The parts of an assignment, which have to belong together."""

from __future__ import annotations

from typing import Any

import pytest

from device_runtime.tasks.assignment import open_assignment
from odp.errors import ConfigurationError


@pytest.mark.parametrize(("offered", "round"), [(0, 1), (1, 0)])
def test_a_signed_model_of_another_round_is_refused(world: Any, offered: int, round: int) -> None:
    """A server that keeps an old model, or shows a newer one, under the developer's own signature."""
    world.open_round(offered)
    assert open_assignment(world.server.assignment, population="people").round == offered
    world.server.assignment.round = round
    with pytest.raises(ConfigurationError, match=f"Expected model version={offered} to be round={round}"):
        open_assignment(world.server.assignment, population="people")

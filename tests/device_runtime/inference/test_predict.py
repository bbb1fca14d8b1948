"""Whatever a server offers, a device asks a model only of what it was signed for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from device_runtime.inference.offline import newest_model
from device_runtime.inference.predict import Predictor
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.charters import CharterMemory
from odp.errors import ConfigurationError


def test_r458_a_server_that_offers_a_model_of_items_instead_is_refused_by_name(world: Any, tmp_path: Path) -> None:
    available = newest_model(
        world.services(), "people", cache=TableCache(tmp_path / "tables"), folder=tmp_path / "models",
        charters=CharterMemory(), of_examples=True,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="ranks items: `odp device recommend`"):
        Predictor(available)
    offers = sorted(path.relative_to(tmp_path / "models") for path in (tmp_path / "models").rglob("*.offer"))
    assert offers == [Path("of_examples/people.offer")], "what was asked for as another kind takes no place of a model"

"""R422: an app that has its person's device learn sees the same whatever the device's data are, on a real clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from security.hostile_tasks import KINDS
from security.learning_app import learns
from security.outside import Outside, told_apart
from transcripts import Observation


@pytest.fixture(scope="module")
def outside(tmp_path_factory: Any) -> Iterator[Outside]:
    outside = Outside(tmp_path_factory.mktemp("outside"))
    address = outside.world.root / "server" / "address"
    address.write_text(f"{outside.world.server.address}\n")
    yield outside
    outside.close()


@pytest.mark.parametrize("data", ["ten times the caps", pytest.param("unrelated events", marks=pytest.mark.proof)])
@pytest.mark.slow
def test_r422_learn_tells_an_app_nothing_of_how_many_rows_there_are(outside: Outside, data: str) -> None:
    population = outside.population_of("statistics", most_fixed=0.25)
    templates = {name: outside.template(KINDS["statistics"].data[name]) for name in ("empty", data)}

    def prepare(name: str) -> Callable[[], Observation]:
        return functools.partial(learns, outside.prepared(templates[name]), outside.world.root, population)

    difference = told_apart(prepare, "empty", data)
    assert difference is None, difference

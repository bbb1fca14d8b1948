"""Tasks of local trust over the real platform: devices report to the server alone, and no enclave sees it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World

import device_runtime
import odp
from device_runtime.store.schema import State
from device_runtime.store.store import Store, store_path
from odp.algorithms.coins import SourceWords
from odp.algorithms.draw_and_discard.model import LocalModel
from odp.algorithms.local_statistics.population import records_of
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.datasets import Ratings
from odp.privacy.mechanisms.random_source import RandomSource
from odp.signed.task import open_task
from odp.v1 import server_pb2

pytestmark = pytest.mark.slow
LIMITS = device_runtime.Limits(min_cohort=20, max_local_epsilon=50.0)


def statistics(users: int, **changes: object) -> odp.Statistics:
    given: dict[str, object] = {
        "name": "stars", "population": "films", "trust": "local",
        "queries": {"seen": odp.Histogram(bins=5), "stars": odp.Mean(low=0, high=6)},
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "cohort": odp.Cohort(minimum=20, goal=users),
    }  # fmt: skip
    return odp.Statistics(**{**given, **changes})  # type: ignore[arg-type]


def test_the_server_counts_what_each_device_reports_once(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one word for all coins, the reports of devices are those of the same users in one computation."""
    word = np.uint64(0xC123456789ABCDEF)
    monkeypatch.setattr(SourceWords, "words", lambda self, purpose, attempt=0: np.full(self._users, word))
    ratings = ratings.select_users(range(24))
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(statistics(24))
    status = world.finish(handle, world.devices(ratings, limits=LIMITS))
    assert (status.reports, list(status.rounds), status.planned_rounds) == (24, [], 0)
    terms = ReportTerms.of(open_task(status.task).local_statistics.reports)
    own = dict.fromkeys(("seen", "stars"), records_of(ratings, 0, 24))
    cells = terms.reports(own, SourceWords(RandomSource(), 24), users=24)
    found = handle.results()
    assert (found.contributions, found.delta) == (24, 0.0)
    counts = np.bincount(cells, minlength=terms.cells)
    from odp.algorithms.local_statistics.results import answers_of

    assert found.to_json() == answers_of(terms, counts, epsilon=terms.epsilon, delta=0.0).to_json()
    for device in range(24):
        with Store.open(store_path(world.root / "devices", device)) as store:
            (line,) = store.ledger()
            assert (line.state, line.recipient, line.image_digest, line.refusal) == (State.SENT, b"", "", None)
            assert store.empty_contributions() == 0
            assert line.sealed is None


def test_devices_train_instances_of_a_model_and_come_back_when_due(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    world = World(tmp_path, with_tokens=False).start(stack)
    generator = np.random.default_rng(1)
    people = odp.ExampleColumns.of_users(
        {"x": generator.random(60), "label": generator.integers(0, 2, 60).astype(np.float64)}, np.arange(60) // 3
    )
    task = odp.DrawAndDiscard(
        name="clicks", population="films", features={"x": odp.Number()}, epsilon=2.0, instances=5, most_reports=3,
        seconds_between=1, most_updates=60, false_alarms=0.0,
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(examples=people, limits=device_runtime.Limits(
        max_epsilon=50.0, max_total_epsilon=50.0, max_total_epsilon_30_days=50.0, max_developer_epsilon=50.0,
        max_developer_epsilon_30_days=50.0,
    )))  # fmt: skip
    assert status.reports == 60
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED
    found = handle.results()
    assert isinstance(found, LocalModel)
    assert found.contributions == 60
    assert set(found.named) == {"intercept", "x"}
    assert 0 < found.deviation < 1

"""Shuffled reports over the real platform: the release is the multiset of the devices' reports, charged once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World

import odp
from device_runtime.store.store import Store, store_path
from odp.algorithms.dense.population import records_of
from odp.algorithms.local_seam import SourceWords
from odp.algorithms.local_statistics.results import ReportResults
from odp.algorithms.registry import algorithm_for
from odp.algorithms.shuffled_statistics.terms import Terms
from odp.crypto.signing import SigningKey
from odp.datasets import Ratings
from odp.privacy.mechanisms.random_source import RandomSource
from odp.signed.task import check_definition, open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2


def task(users: int, **changes: object) -> odp.Statistics:
    given: dict[str, object] = {
        "name": "stars", "population": "films", "trust": "shuffle",
        "queries": {"seen": odp.Histogram(bins=5), "stars": odp.Mean(low=0, high=6)},
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "cohort": odp.Cohort(minimum=20, goal=users, round_seconds=600),
    }  # fmt: skip
    return odp.Statistics(**{**given, **changes})  # type: ignore[arg-type]


def test_devices_send_reports_that_the_enclave_only_counts(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one word for all coins, the reports of devices are those of the same users in one computation."""
    word = np.uint64(0xC123456789ABCDEF)
    monkeypatch.setattr(SourceWords, "words", lambda self, purpose, attempt=0: np.full(self._users, word))
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(task(24))
    status = world.finish(handle, world.devices(ratings))
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    (tensor,), (charge,) = release.tensors, release.charges
    terms = Terms.of(open_task(status.task))
    own = dict.fromkeys(("seen", "stars"), records_of(ratings, 0, 24))
    cells = terms.reports.reports(own, SourceWords(RandomSource(), 24), users=24)
    counts = np.frombuffer(tensor.integers, "<i8")
    np.testing.assert_array_equal(counts, np.bincount(cells, minlength=terms.reports.cells))
    assert (charge.shuffled.reports, charge.noise_std, charge.sensitivity) == (18, 0.0, 0.0)
    assert charge.shuffled.report_epsilon == terms.reports.epsilon >= 3.99
    assert 3.9 < release.epsilon_spent <= 4.0
    found = handle.results(ReferenceValues.load(world.reference_values))
    assert isinstance(found, ReportResults)
    assert (found.contributions, found.report_epsilon) == (24, terms.reports.epsilon)
    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    (task_found,) = report.tasks
    assert task_found.epsilon == pytest.approx(release.epsilon_spent)
    for device in range(24):
        with Store.open(store_path(world.root / "devices", device)) as store:
            assert store.empty_contributions() == 0
            assert len(store.ledger()) == 1


def _more_honest(definition: common_pb2.TaskDefinition) -> None:
    definition.shuffled_statistics.honest = 21


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_more_honest, "honest"),
        (lambda d: d.shuffled_statistics.__setattr__("maximum", 10), "maximum=10"),
        (lambda d: d.shuffled_statistics.reports.__setattr__("report_epsilon", 40.0), "report_epsilon=40.0"),
        (lambda d: d.shuffled_statistics.reports.levels.append(3), "levels"),
        (lambda d: d.shuffled_statistics.reports.queries[0].__setattr__("share", 0.9), "sum to 1"),
        (lambda d: d.cohort.__setattr__("aggregation", 1), "dense"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task(100).definition()
    definition.developer_key = SigningKey.generate().public
    check_definition(definition)
    spoil(definition)
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        check_definition(definition)


def test_the_definition_is_refused_without_reports() -> None:
    definition = task(100).definition()
    definition.shuffled_statistics.reports.ClearField("queries")
    with pytest.raises(odp.errors.ConfigurationError, match="1 to 64 queries"):
        algorithm_for(definition).check()

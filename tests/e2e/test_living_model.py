"""Weeks of a model that lives on real services, which die in every week, and of a catalogue that changes."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from e2e.killing import DATA, DEVICE_HOST, DEVICES, Platform
from e2e.world import POPULATION, small_task

import odp
from odp.datasets import catalogue_keys, load
from odp.errors import ServiceError
from odp.privacy.accounting import epsilon
from odp.protocol.catalogues.catalogue import Catalogue
from odp.signed.task import open_task
from odp.trainings.living_model import LivingModel, Stage, Standing
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import server_pb2

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DAY = 86_400.0
#: By weeks: what a device accepts within 30 days bounds that of one training.
LIFETIME = {2: 8.0, 4: 16.0, 8: 16.0}


# In four weeks each program dies once, and the catalogue has all of its versions. CI lives without programs, in
# trainings/test_living_model.py; it kills all of them in test_soak.py, and test_catalogues.py has a withdrawn version.
@pytest.mark.proof
@pytest.mark.parametrize("weeks", [2, 4, 8])
def test_weeks_of_retraining_with_a_kill_in_each(tmp_path: Path, stack: contextlib.ExitStack, weeks: int) -> None:
    ratings = load(DATA)
    keys = list(catalogue_keys(ratings))
    template = small_task(ratings, rank=0, training=odp.DPAM(), places=8)
    schedule = odp.living.Schedule(
        every="7d", horizon=f"{weeks}w", lifetime_epsilon=LIFETIME[weeks], delta=template.privacy.delta
    )
    platform = Platform(tmp_path / "platform", stack)
    platform.start(DEVICE_HOST)
    versions = [Catalogue.make(POPULATION, keys[:15])]
    versions.append(versions[0].change(add=keys[15:], retire=keys[:5]))
    versions.append(versions[1].change(add=keys[:2], withdraw=[1]))
    victims = itertools.cycle(("server", "aggregator", "distributor", DEVICE_HOST))
    now = 1.7e9

    def advanced() -> Standing | None:
        # Each time a new object, as another run of the command after the death of the last.
        catalogue = versions[3 * week // weeks]
        living = LivingModel(tmp_path / "living", task=template, schedule=schedule, catalogue=catalogue)
        with contextlib.suppress(ServiceError):
            platform.connection.publish_catalogue(catalogue)
            return living.advance(platform.connection, now=now)
        return None

    def done() -> Standing | None:
        found = advanced()
        return found if found is not None and found.stage is not Stage.TRAINING else None

    tasks = []
    for week in range(weeks):
        begun = platform.until(advanced, what=f"the begin of training {week}")
        assert (begun.stage, begun.training) == (Stage.TRAINING, week)
        tasks.append(bytes.fromhex(begun.task_sha256))
        platform.kill_and_restart(next(victims))
        ended = platform.until(done, what=f"the end of training {week}")
        assert ended.stage is (Stage.WAITING if week + 1 < weeks else Stage.COMPLETE)
        assert ended.training == week
        now += 7 * DAY
    assert len(set(tasks)) == weeks
    statuses = platform.until(platform.connection.tasks, what="the tasks")
    assert len(statuses) == weeks, "nothing was submitted twice"
    assert all(status.state == server_pb2.TaskStatus.STATE_FINISHED for status in statuses)
    ledger = platform.until(lambda: platform.connection.ledger(statuses[0]), what="the ledger").ledger()
    charged = [entry for entry in ledger.entries if entry.events]
    assert len(charged) == sum(status.planned_rounds for status in statuses), "each round is charged once"
    assert {entry.contributions for entry in charged} == {DEVICES}
    spent = epsilon([event for entry in charged for event in entry.events], delta=template.privacy.delta)
    assert 0.97 * LIFETIME[weeks] < spent <= LIFETIME[weeks]
    assert spent == pytest.approx(ended.epsilon, rel=1e-9)
    named = [open_task(status.task).model.catalogue.version for status in statuses]
    assert sorted(named) == {2: [1, 2], 4: [1, 1, 2, 3], 8: [1, 1, 1, 2, 2, 2, 3, 3]}[weeks]
    report = audit(
        LogFolder(platform.root / "server" / "log"), ReferenceValues.load(platform.services.reference_values)
    )
    assert (report.counts["catalogue"], len(report.tasks)) == (len(set(named)), weeks)

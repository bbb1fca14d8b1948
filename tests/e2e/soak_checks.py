"""The tasks of a soak, and what the log has to say of them in the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from e2e.killing import DATA, DEVICES, Platform
from e2e.world import POPULATION

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.datasets import load
from odp.privacy.accounting import epsilon as epsilon_of
from odp.protocol.terms import Cohort, UserLevelDP
from odp.services.connection import TaskHandle
from odp.signed.release import noisy_tensors
from odp.signed.task import open_task
from odp.tasks.task import Task
from odp.transport.channel import connect
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogServer
from odp.v1 import common_pb2

DELTA = 1e-6


def task_of(hour: int, *, epsilon: float) -> Task:
    """A task of two rounds, in which every device counts."""
    ratings = load(DATA)
    return odp.Task(
        name=f"hour-{hour}",
        model=odp.MatrixFactorization(items=ratings.n_items, rank=0),
        data=odp.RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(epsilon=epsilon, delta=DELTA, max_items_per_user=8),
        training=odp.DPAM(),
        cohort=Cohort(minimum=DEVICES, goal=DEVICES, round_seconds=600),
        population=POPULATION,
    )


def check(platform: Platform, handles: Sequence[TaskHandle], *, epsilon: float) -> None:
    """Fails unless log, ledger and models of all tasks are what their releases make of them."""
    charges = []
    for handle in handles:
        status = platform.until(handle.status, what="a status")
        algorithm = algorithm_for(open_task(status.task))
        server = algorithm.server()
        own = [event for number in range(server.rounds) for event in charges_of(algorithm.query(number))]
        charges += own
        releases = [common_pb2.Release.FromString(entry.release.release) for entry in status.rounds]
        assert [release.contributions for release in releases] == [DEVICES] * server.rounds
        assert releases[-1].epsilon_spent == pytest.approx(epsilon_of(own, delta=DELTA), rel=1e-9)
        assert releases[-1].epsilon_spent <= epsilon
        state = server.start()
        for release in releases:
            state = server.step(state, noisy_tensors(release))
        model = platform.until(handle.model, what="a model")
        for published, recomputed in zip(model.tables, server.broadcast(state).tables, strict=True):
            np.testing.assert_array_equal(published.rows, recomputed.rows)
    status = platform.until(handles[-1].status, what="a status")
    ledger = platform.until(lambda: platform.connection.ledger(status), what="the ledger").ledger()
    ledger.verify()
    charged = [entry for entry in ledger.entries if entry.events]
    assert len(charged) == 2 * len(handles), "each round charged once"
    assert [event for entry in charged for event in entry.events] == charges
    assert epsilon_of(ledger.population_events, delta=DELTA) == pytest.approx(
        epsilon_of(charges, delta=DELTA), rel=1e-9
    )
    with connect(platform.services.server_address, platform.services.ca) as channel:
        source = LogServer(channel, platform.services.server_address)
        report = platform.until(
            lambda: audit(source, ReferenceValues.load(platform.services.reference_values)), what="the log"
        )
    assert report.counts["task"] == len(handles)
    assert report.counts["release"] == report.counts["ledger"] == 2 * len(handles), "each round logged once"
    assert [found.contributions for found in report.tasks] == [(DEVICES, DEVICES)] * len(handles)

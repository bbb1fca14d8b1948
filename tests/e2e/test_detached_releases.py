"""Releases whose values travel in pieces, over the whole platform. The bound is lowered, so that small ones do."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from e2e.test_federated import DATA, DEVICES, MODEL, people
from e2e.world import World

import odp
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.datasets import Ratings
from odp.errors import ServiceError
from odp.evaluation.noise import NoNoise
from odp.signed.release import ReleaseRefused, noisy_tensors, whole_values
from odp.signed.task import open_task
from odp.transport.channel import connect
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import AuditFailure, LogFolder, LogServer
from odp.v1 import common_pb2

BOUND = 100


@pytest.mark.parametrize("mode", [pytest.param("enclave", marks=pytest.mark.proof), "masked"])
def test_a_model_is_trained_from_values_in_pieces_and_the_audit_reads_them(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", BOUND)
    world = World(tmp_path, noise=NoNoise()).start(stack)
    task = odp.Task(
        name="kinds", population="films", model=MODEL, data=DATA, training=odp.DPFedAvg(rounds=2, batch=4, rate=0.5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600, aggregation=mode),
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(people(), DATA)))
    pins = ReferenceValues.load(world.reference_values)
    log = world.root / "server" / "log"
    server = algorithm_for(open_task(status.task)).server()
    state = server.start()
    with connect(world.server.address, world.ca) as channel:
        source = LogServer(channel, world.server.address)
        for entry in status.rounds:
            release = common_pb2.Release.FromString(entry.release.release)
            assert release.values_bytes == 8 * MODEL.size > BOUND
            assert not release.tensors[0].integers
            tensors = noisy_tensors(release, whole_values(release, source.values(release.values_sha256)))
            assert tensors.tensors[RELEASE].any()
            state = server.step(state, tensors)
        np.testing.assert_array_equal(handle.model().dense[PARAMETERS], server.broadcast(state).dense[PARAMETERS])
        assert audit(source, pins).counts == audit(LogFolder(log), pins).counts
        with pytest.raises(ServiceError, match="no release of this log has values with this hash"):
            list(source.values(bytes(32)))

        stored = log / "values" / release.values_sha256.hex()
        data = bytearray(stored.read_bytes())
        data[-1] ^= 1
        stored.write_bytes(data)
        for damaged in (source, LogFolder(log)):
            with pytest.raises(AuditFailure, match=r"release of round 1.*their hash is not the one"):
                audit(damaged, pins)
        stored.unlink()
        with pytest.raises(AuditFailure, match=r"release of round 1.*0 bytes of the"):
            audit(LogFolder(log), pins)


def test_the_answers_of_a_question_come_from_values_in_pieces(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", BOUND)
    world = World(tmp_path, noise=NoNoise()).start(stack)
    task = odp.Statistics(
        name="asked", population="films", queries={"films": odp.Histogram(bins=40)},
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=ratings.n_users, round_seconds=600),
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    answers = handle.results(ReferenceValues.load(world.reference_values))
    truth = np.bincount(ratings.items, minlength=40)
    np.testing.assert_allclose(answers.histogram("films").counts, truth, atol=0.1)
    stored = world.root / "server" / "log" / "values" / release.values_sha256.hex()
    stored.write_bytes(stored.read_bytes()[:-8])
    with pytest.raises(ReleaseRefused, match="312 bytes of the 320"):
        handle.results()


def test_a_stream_or_sessions_beyond_one_message_are_refused_by_name_when_they_are_submitted(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path).start(stack)
    monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", BOUND)
    cohort = odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600)
    sessions = dataclasses.replace(cohort, aggregation="secagg+")
    for training, asked, why in (
        (odp.DPFTRL(rounds=2), cohort, "a stream keeps its sums in one message"),
        (odp.DPFedAvg(rounds=2), sessions, r"aggregation='secagg\+' takes its sum in one message"),
    ):
        task = odp.Task(
            name="kinds", population="films", model=MODEL, data=DATA, training=training,
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-5), cohort=asked,
        )  # fmt: skip
        with pytest.raises((odp.errors.ConfigurationError, ServiceError), match=why):
            world.connection.submit(task)

"""The aggregator's benchmark sends what an aggregator accepts, and leaves nothing running."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import psutil
import pytest

from benchmarks import aggregator
from benchmarks.aggregator import Plan, definition, ingest
from benchmarks.contributors import Target, payloads, requests
from benchmarks.harness import BENCHMARKS
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.crypto import HpkeKey, SigningKey, domains
from odp.errors import ServiceError
from odp.signed.task import open_task, sign_task
from odp.v1 import aggregator_pb2


@pytest.mark.parametrize("round", [0, 1, 2])
def test_the_made_payloads_keep_the_bounds_and_use_every_place(round: int) -> None:
    task = open_task(sign_task(definition(), SigningKey.generate()))
    query, made = algorithm_for(task).query(round), payloads(Terms.of(task), round, 20, seed=3)
    for payload in made:
        query.check(payload)
    total = query.new_sum()
    total.add(made)
    assert len(set(made)) == 20
    if round == 0:
        assert total.totals()["counts"].sum() % (20 * 50) == 0


def test_the_requests_open_for_their_target_alone() -> None:
    signed = sign_task(definition(), SigningKey.generate())
    key = HpkeKey.generate()
    target = Target(signed.definition, bytes(32), 2, bytes([1]) * 32, bytes([2]) * 32, key.public)
    first, second = (aggregator_pb2.SubmitRequest.FromString(one) for one in requests(target, 2, seed=1))
    info = domains.contribution_info(bytes(32), 2, bytes([1]) * 32, bytes([2]) * 32)
    opened = [
        aggregator_pb2.Contribution.FromString(key.open(one.sealed_contribution, info)) for one in (first, second)
    ]
    assert opened[0].pseudonym != opened[1].pseudonym


# A whole run of a benchmark: no promise rests on one.
@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.slow
def test_a_small_run_measures_everything_and_leaves_no_process() -> None:
    figures = {figure.name: figure for figure in ingest(Plan(60, 30, 40, full=False))}
    assert figures[aggregator.OVER_BARE].goal is not None
    assert figures["contributions"].value > 0
    assert figures["processor time per contribution: host"].limit is not None
    assert multiprocessing.active_children() == []
    left = [child.cmdline() for child in psutil.Process().children(recursive=True) if "benchmarks" in child.cmdline()]
    assert left == []
    assert BENCHMARKS["aggregator"][0] == "benchmarks.aggregator"


def test_a_server_that_does_not_start_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregator, "_SECONDS", 0.0)

    class Dead:
        def poll(self) -> int:
            return 1

    with pytest.raises(ServiceError, match="did not start"):
        aggregator._wait_for(tmp_path / "address", Dead())  # type: ignore[arg-type]

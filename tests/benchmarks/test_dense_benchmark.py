"""The dense benchmark measures what it says: its payloads are accepted, and its bare stream takes the same calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import dense
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services, Traffic
from odp.algorithms.dense import DenseQuery, Grid
from odp.operations.local.processes import Child
from odp.v1 import aggregator_pb2


def test_payloads_are_within_the_bound_and_use_it() -> None:
    query = DenseQuery("sum", Grid.chosen(size=10_000, clip=1.0, noise_std=2.0, maximum=50))
    payload = dense._payload(query, np.random.default_rng(1))
    query.check(payload)
    numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64)
    assert np.linalg.norm(numbers) > 0.98 * query.grid.units


@pytest.mark.processes
def test_the_bare_stream_takes_what_the_aggregator_takes(tmp_path: Path) -> None:
    command = (dense.sys.executable, "-m", "benchmarks.bare_stream")
    arguments = ["--ca-folder", str(tmp_path / "ca")]
    child = Child("bare stream", arguments, state=tmp_path / "bare", log=tmp_path / "log", command=command)
    try:
        child.wait_serving(tmp_path / "ca" / "ca.pem")
        services = Services(
            child.address, tmp_path / "ca" / "ca.pem", pinned=PinnedAddresses.at(aggregator=child.address)
        )
        header = aggregator_pb2.SubmitHeader(task_sha256=bytes(32))
        traffic = Traffic()
        assert services.submit_stream(child.address, header, bytes(2_500_000), traffic).refusal == 0
        assert traffic.up > 2_500_000
        assert dense._send(services, child.address, [(header, bytes(2_000_000))] * 3) > 0
        services.close()
    finally:
        child.stop()

"""A distributor whose models are in a bucket, as a real process: it is killed, and comes back with them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from conformance.buckets import bucket
from e2e import crash
from e2e.killing import DEVICE_HOST, Platform, a_task, crashing_at

from odp.operations.local.processes import ODP, Child, Services
from odp.storage.s3 import S3Objects
from odp.trust.enclave.policy import EnclavePolicy

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class ServicesWithBucket(Services):
    """Services whose distributor keeps its models in a bucket."""

    place = ""

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if name == "distributor":
            command = crashing_at(f"{crash.LAST}--blobs={self.place}")
        return super().start_child(name, port, command=command)


class PlatformWithBucket(Platform):
    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        return ServicesWithBucket(root, policy=policy)


def test_a_distributor_that_dies_finds_its_models_in_the_bucket(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{stack.enter_context(bucket())}/films"
    monkeypatch.setattr(ServicesWithBucket, "place", place)
    platform = PlatformWithBucket(tmp_path, stack)
    task = a_task()
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.until_logged("aggregator", "round_released", round=0)
    platform.kill("distributor")
    assert not (tmp_path / "distributor" / "models").exists()
    assert S3Objects(place).keys("models/")
    platform.start("distributor")
    platform.check(task)
    assert len(S3Objects(place).keys("models/")) >= 1

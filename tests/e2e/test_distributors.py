"""Two copies of the distributor, as real processes, of which one dies in a round and comes back."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from e2e.killing import DEVICE_HOST, Platform, a_task

from odp.operations.local.processes import ListenAddresses, Services
from odp.trust.enclave.policy import EnclavePolicy

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class PlatformWithTwoDistributors(Platform):
    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        return Services(root, policy=policy, listen=ListenAddresses(distributors=2))


# server/test_distributors.py has copies that are away and come back in CI, without programs.
@pytest.mark.proof
def test_devices_use_both_copies_and_a_task_goes_on_with_one(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    platform = PlatformWithTwoDistributors(tmp_path, stack)
    task = a_task(rank=2)
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.until_logged("aggregator", "round_released", round=0)
    platform.kill("distributor-2")
    platform.until_logged("aggregator", "round_released", round=1)
    platform.start("distributor-2")
    platform.check(task)
    assert re.search(
        r"distributor_lacks_model .*address=" + platform.child("distributor-2").address, platform.logged("server")
    )
    for name in ("distributor", "distributor-2"):
        assert " select " in platform.logged(name), "each served devices"

"""Whose word lets an enclave be upgraded: values that make no sense, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odp.crypto.note import Kind, NoteKey
from odp.errors import ConfigurationError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import EnclavePolicy, UpgradePolicy

LOG_KEY = NoteKey.generate("example.com/log").public(Kind.NOTE).text
ENDORSERS = ("ab" * 32, "cd" * 32)


def _log(**changes: Any) -> LogPolicy:
    return LogPolicy(**{"log_keys": (LOG_KEY,), "endorser_keys": ENDORSERS, **changes})


def test_a_policy_with_it_has_one_spelling_and_comes_back(tmp_path: Path) -> None:
    policy = EnclavePolicy(role="aggregator", upgrade=UpgradePolicy(log=_log(), approvals=2))
    assert EnclavePolicy.from_bytes(policy.to_bytes()) == policy
    assert policy.sha256 != EnclavePolicy(role="aggregator").sha256
    assert policy.upgrade is not None
    policy.upgrade.save(tmp_path / "upgrade.json")
    assert UpgradePolicy.load(tmp_path / "upgrade.json") == policy.upgrade


@pytest.mark.parametrize(
    "make",
    [
        lambda: UpgradePolicy(log=_log(), approvals=3),
        lambda: UpgradePolicy(log=_log(), approvals=0),
        lambda: UpgradePolicy(log=_log(endorser_keys=())),
        lambda: UpgradePolicy(log=_log(endorser_keys=(ENDORSERS[0], ENDORSERS[0])), approvals=2),
        lambda: EnclavePolicy(role="distributor", upgrade=UpgradePolicy(log=_log())),
        lambda: UpgradePolicy.from_json([]),
        lambda: UpgradePolicy.from_json({"approvals": 1}),
        lambda: UpgradePolicy.from_json({"log": {}, "more": 1}),
        lambda: EnclavePolicy.from_bytes(EnclavePolicy(role="aggregator").to_bytes()[:-1] + b',"upgrade":1}'),
        lambda: UpgradePolicy.load(Path("nowhere")),
    ],
)
def test_what_no_successor_could_satisfy_or_nobody_could_read_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        make()

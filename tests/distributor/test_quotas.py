"""What one developer may take of a distributor."""

from __future__ import annotations

from typing import Any

import pytest

from distributor import enclave
from distributor.enclave import DistributorCore
from odp.crypto import HpkeKey
from odp.errors import ConfigurationError

KEY = HpkeKey.generate()
SECONDS = 60.0


def of(kit: Any, number: int, name: str = "films") -> Any:
    return kit.Developer(name, key=bytes(31) + bytes([number]))


def install(core: DistributorCore, model: Any) -> tuple[bytes, ...]:
    return core.install(model.task, model.manifest, model.tables)


def test_r170_a_developer_fills_its_own_share_and_others_publish_on(kit: Any) -> None:
    greedy = [of(kit, 1, f"task-{number}").model(0) for number in range(4)]
    core = DistributorCore(KEY, capacity_bytes=len(greedy[0].payload) * 9 // 2)
    for model in greedy[:2]:
        install(core, model)
    for model in greedy[2:]:
        with pytest.raises(ConfigurationError, match=r"has 2 models of .* bytes here, of at most .* end tasks"):
            core.require_capacity(model.task, model.manifest)
        with pytest.raises(ConfigurationError, match="has 2 models"):
            install(core, model)
    install(core, of(kit, 2).model(0))
    core.forget(greedy[0].id)
    install(core, greedy[2])


def test_r170_the_number_of_a_developers_models_is_bounded_too(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclave, "DEVELOPER_MODELS", 3)
    core = DistributorCore(KEY)
    for number in range(3):
        install(core, of(kit, 1, f"task-{number}").model(0))
    with pytest.raises(ConfigurationError, match=r"has 3 models of .* of at most 3 models"):
        install(core, of(kit, 1, "one-more").model(0))
    install(core, of(kit, 2).model(0))


def test_r170_a_task_that_replaces_its_versions_never_meets_the_limit(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enclave, "DEVELOPER_MODELS", enclave.KEPT_VERSIONS)
    core = DistributorCore(KEY)
    for version in range(enclave.KEPT_VERSIONS + 3):
        install(core, of(kit, 1).model(version))
    assert len(core.models()) == enclave.KEPT_VERSIONS

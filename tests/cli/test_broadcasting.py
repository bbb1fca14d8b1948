from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import odp
from distributor.helper_program import helper_key
from odp.cli.broadcasting import broadcast_line
from odp.cli.main import app
from odp.tasks.file import render_task
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.reference_values import ReferenceValues

KEY = "ab" * 31 + "2b"


def task(**broadcast: str) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=3706, rank=8),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        broadcast=odp.Broadcast(**broadcast),
    )


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("asked", "method", "pinned"),
    [
        ({"method": "auto"}, "enclave", False),
        ({"method": "all"}, "all", True),
        ({"method": "pir", "helper_key": KEY}, "pir", True),
    ],
)
def test_a_plan_says_what_is_taken_and_why(tmp_path: Path, asked: dict[str, str], method: str, pinned: bool) -> None:
    file = tmp_path / "task.toml"
    file.write_text(render_task(task(**asked)))
    found = json.loads(run("task", "plan", str(file), "--json"))
    assert (found["method"], found["pinned"], found["planned"]) == (method, pinned, "enclave")
    assert set(found["costs"]) == set(found["reasons"]) == {"all", "enclave", "pir"}
    assert ("excluded" in found["costs"]["pir"]) == (method != "pir")
    told = run("task", "plan", str(file))
    assert f"the task takes {method}" in told
    assert "3,706 rows" in told


def test_the_line_says_bytes_per_device_and_their_share_of_the_model() -> None:
    traffic: dict[int, dict[str, Any]] = {
        0: {"bytes_down": 3000, "devices_in": 3},
        1: {"bytes_down": 6000, "devices_in": 3},
        2: {"bytes_down": 50, "devices_in": 0},
    }
    assert broadcast_line(task(), traffic, 15_000) == (
        "broadcast enclave: bytes per device 1,500 per round, 10.0 % of the model (15,000 bytes)"
    )
    assert "one download served all devices" in broadcast_line(task(method="all"), traffic, 15_000)
    assert broadcast_line(task(), {}, 15_000) == "broadcast enclave: no round was counted"


def test_a_helpers_key_is_made_printed_and_pinned(tmp_path: Path) -> None:
    key = run("distributor", "helper", "key", "--state", str(tmp_path / "helper")).strip()
    assert key == helper_key(tmp_path / "helper")
    pins = tmp_path / "reference_values.json"
    platform = EmulatedPlatform.open(tmp_path / "platform")
    ReferenceValues(
        roots=(platform.root_certificate_pem,), image_digests={}, policy_sha256={}, allow_emulated=True
    ).save(pins)
    for _ in range(2):
        assert "1 helper pinned" in run("enclave", "pin-helper", key, "--reference-values", str(pins))
    assert ReferenceValues.load(pins).helper_keys == (key,)

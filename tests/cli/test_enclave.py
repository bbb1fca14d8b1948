"""`odp enclave reference-values`: what devices pin is what this installation runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.conftest import Printed

from odp.enclave.measurement import AGGREGATOR_PACKAGES, DISTRIBUTOR_PACKAGES, image_digest
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues


def test_the_file_pins_root_code_and_policy(odp: Callable[..., Printed], tmp_path: Path) -> None:
    output = tmp_path / "reference_values.json"
    odp(
        "enclave", "reference-values", "--platform", tmp_path / "p", "--output", output,
        "--minimum-cohort", 25, "--population-epsilon", 12, "--population-delta", "1e-7",
        "--accumulation", "direct",
    )  # fmt: skip
    found = ReferenceValues.load(output)
    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=25,
        population_epsilon=12.0,
        population_delta=1e-7,
        accumulation="direct",
    )
    assert found.roots == (EmulatedPlatform.open(tmp_path / "p").root_certificate_pem,)
    assert found.image_digests == {
        "aggregator": (image_digest(AGGREGATOR_PACKAGES),),
        "distributor": (image_digest(DISTRIBUTOR_PACKAGES),),
    }
    assert found.policy_sha256["aggregator"] == (policy.sha256.hex(),)
    assert found.policy_sha256["distributor"] == (EnclavePolicy(role="distributor").sha256.hex(),)
    assert found.allow_emulated
    assert not found.allow_debug

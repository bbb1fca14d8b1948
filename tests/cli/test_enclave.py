"""`odp enclave`: what devices pin is what this installation runs, and what a machine restricts is what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.conftest import Printed

from odp.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, measure
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.enclave.sandbox import RESTRICTIONS


def test_the_file_pins_root_code_and_policy(odp: Callable[..., Printed], tmp_path: Path) -> None:
    output = tmp_path / "reference_values.json"
    odp(
        "enclave", "reference-values", "--platform", tmp_path / "p", "--output", output,
        "--minimum-cohort", 25, "--population-epsilon", 12, "--population-delta", "1e-7",
        "--accumulation", "direct", "--select", "direct",
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
        "aggregator": (measure(AGGREGATOR_ENTRY).digest,),
        "distributor": (measure(DISTRIBUTOR_ENTRY).digest,),
    }
    assert found.policy_sha256["aggregator"] == (policy.sha256.hex(),)
    assert found.policy_sha256["distributor"] == (EnclavePolicy(role="distributor", select="direct").sha256.hex(),)
    assert found.allow_emulated
    assert not found.allow_debug


def test_the_digest_comes_with_what_it_is_made_of(odp: Callable[..., Printed]) -> None:
    told = odp("enclave", "digest", "--json").json
    measured = measure(AGGREGATOR_ENTRY)
    assert told["aggregator"] == {
        "digest": measured.digest,
        "components": dict(measured.components),
        "dependencies": measured.dependencies.versions,
    }
    assert told["distributor"]["digest"] != measured.digest
    text = odp("enclave", "digest").out
    for value in (measured.digest, *measured.components.values(), f"numpy {measured.dependencies.versions['numpy']}"):
        assert value in text


def test_the_doctor_tells_of_every_restriction_whether_it_holds(odp: Callable[..., Printed]) -> None:
    told = odp("enclave", "doctor", "--json").json
    assert sorted(told["held"] + told["refused"]) == sorted(RESTRICTIONS)
    lines = odp("enclave", "doctor").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("holds ")] == told["held"]
    assert sorted(line.split()[1] for line in lines if line.startswith("REFUSED ")) == sorted(told["refused"])

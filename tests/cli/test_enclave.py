"""`odp enclave`: what devices pin is what this installation runs, and what a machine restricts is what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed

from odp.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, measure
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.enclave.sandbox import RESTRICTIONS
from odp.errors import ConfigurationError


def test_the_file_pins_root_code_and_policy(odp: Callable[..., Printed], tmp_path: Path) -> None:
    output = tmp_path / "reference_values.json"
    odp(
        "enclave", "reference-values", "--platform", tmp_path / "p", "--output", output,
        "--minimum-cohort", 25, "--population-epsilon", 12, "--population-delta", "1e-7",
        "--accumulation", "direct", "--select", "direct", "--distributor", "d.example:7201",
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
    assert found.addresses == {"distributor": ("d.example:7201",)}


def test_addresses_are_added_to_those_that_devices_connect_to(odp: Callable[..., Printed], tmp_path: Path) -> None:
    output = tmp_path / "reference_values.json"
    odp("enclave", "reference-values", "--platform", tmp_path / "p", "--output", output)
    before = ReferenceValues.load(output)
    for address in ("a.example:7202", "[2001:db8::1]:7202", "a.example:7202"):
        odp("enclave", "pin-address", "aggregator", address, "--reference-values", output)
    found = ReferenceValues.load(output)
    assert found.addresses == {"aggregator": ("a.example:7202", "[2001:db8::1]:7202")}
    assert dataclasses.replace(found, addresses={}) == dataclasses.replace(before, addresses={})
    for wrong, message in ((("agregator", "a:1"), "did you mean 'aggregator'"), (("aggregator", "a"), "host:port")):
        with pytest.raises(ConfigurationError, match=message):
            odp("enclave", "pin-address", *wrong, "--reference-values", output)


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

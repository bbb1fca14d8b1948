"""`odp enclave`: what devices pin is what this installation runs, and what a machine restricts is what it says."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed

from odp.errors import ConfigurationError
from odp.trust.enclave.image.built import built
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, PLATFORM_ENTRY, measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.sandbox import RESTRICTIONS


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
    assert told["aggregator"] == {"digest": measured.digest, "components": measured.components}
    assert told["distributor"]["digest"] != measured.digest
    assert told["distributor"]["components"].keys() == {"base", "code"}
    text = odp("enclave", "digest").out
    for value in (measured.digest, *measured.components.values()):
        assert value in text


@pytest.mark.slow
def test_images_are_built_to_be_shipped_and_shown_to_be_read(odp: Callable[..., Printed], tmp_path: Path) -> None:
    digests = odp("enclave", "build", "--output", tmp_path / "images", "--json").json
    assert digests["aggregator.image"] == measure(AGGREGATOR_ENTRY).digest
    images = ("--images", tmp_path / "images")
    assert odp("enclave", "digest", *images, "--json").json == odp("enclave", "digest", "--json").json
    values = tmp_path / "values.json"
    odp("enclave", "reference-values", "--platform", tmp_path / "p", "--output", values, *images)
    assert ReferenceValues.load(values).image_digests["distributor"] == (digests["distributor.image"],)
    aggregator, platform = (tmp_path / "images" / f"{name}.image" for name in ("aggregator", "platform"))
    shown = odp("enclave", "show", aggregator, "--json").json
    assert shown["digest"] == digests["aggregator.image"]
    assert shown["entry"] == AGGREGATOR_ENTRY
    assert sum(shown["code"].values()) > 10_000
    assert {"libc.so.6", "ld.so", "python"} <= shown["native"].keys()
    assert any(line.startswith("numpy ") for line in shown["versions"])
    text = odp("enclave", "show", aggregator).out
    assert f"its own code: {len(shown['code'])} modules" in text
    assert "more (--all lists them)" in text
    assert "more (--all" not in odp("enclave", "show", aggregator, "--all").out
    assert odp("enclave", "show", aggregator, aggregator).out.strip() == "the same image"
    changes = odp("enclave", "show", platform, aggregator, "--json").json["changes"]
    assert f"entry {AGGREGATOR_ENTRY}" in changes["added"]
    assert "extension numpy.random._pcg64" not in changes["removed"]


def test_a_file_that_is_no_image_or_another_one_is_refused(odp: Callable[..., Printed], tmp_path: Path) -> None:
    (tmp_path / "aggregator.image").write_bytes(b"odp-enclave-image 2\n\n")
    with pytest.raises(ConfigurationError, match=r"aggregator\.image cannot be used as an image"):
        odp("enclave", "show", tmp_path / "aggregator.image")
    with pytest.raises(ConfigurationError, match="cannot read the image"):
        odp("enclave", "show", tmp_path / "nothing.image")
    shutil.copy(built(PLATFORM_ENTRY), tmp_path / "aggregator.image")
    with pytest.raises(ConfigurationError, match=r"is an image of odp\.trust\.enclave\.platform_process, not of"):
        odp("enclave", "digest", "--images", tmp_path)


def test_the_doctor_tells_of_every_restriction_whether_it_holds(odp: Callable[..., Printed]) -> None:
    told = odp("enclave", "doctor", "--json").json
    assert sorted(told["held"] + told["refused"]) == sorted(RESTRICTIONS)
    lines = odp("enclave", "doctor").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("holds ")] == told["held"]
    assert sorted(line.split()[1] for line in lines if line.startswith("REFUSED ")) == sorted(told["refused"])

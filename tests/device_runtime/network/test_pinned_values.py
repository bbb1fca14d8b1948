"""Reference values that change while a host of devices runs (R376)."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from odp.crypto.hpke import HpkeKey
from odp.errors import AddressRefused, AttestationError, ConfigurationError
from odp.transport.logs import Log
from odp.trust.enclave.pinned_values import PinnedAddressesOf, PinnedValues
from odp.trust.enclave.reference_values import ReferenceValues

NEW = "sha384:" + "e" * 96


def write(path: Path, values: ReferenceValues) -> None:
    """As a tool does: another file takes the name."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(dataclasses.asdict(values)))
    new.replace(path)


class Pinned:
    """The file of a host's values, and what the host makes of it."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.path, self.log = world, folder / "reference_values.json", io.StringIO()
        write(self.path, world.reference_values())
        self.values = PinnedValues(self.path, log=Log("devices", stream=self.log))
        self.enclaves = Enclaves(world.services(), self.values)

    def aggregator(self) -> str:
        return self.enclaves.verified("aggregator", self.world.aggregator_address).enclave.image_digest

    def pin(self, *images: str, **changes: Any) -> None:
        before = self.world.reference_values()
        digests = {**before.image_digests, "aggregator": images}
        write(self.path, self.world.reference_values(image_digests=digests, **changes))


@pytest.fixture
def pinned(world: Any, tmp_path: Path) -> Pinned:
    return Pinned(world, tmp_path)


def test_r376_an_enclave_of_new_code_is_accepted_once_the_person_pins_it_and_not_before(pinned: Pinned) -> None:
    old = pinned.aggregator()
    pinned.world.aggregator.enclave.image = NEW
    assert pinned.aggregator() == old, "evidence is valid until it expires"
    pinned.pin(old)
    with pytest.raises(AttestationError, match="wrong_image"):
        pinned.aggregator()
    pinned.pin(old, NEW)
    assert pinned.aggregator() == NEW
    assert "reference_values_read" in pinned.log.getvalue()


def test_r376_code_that_is_pinned_no_more_is_refused_at_once(pinned: Pinned) -> None:
    pinned.aggregator()
    pinned.pin(NEW)
    with pytest.raises(AttestationError, match="wrong_image"):
        pinned.aggregator()


@pytest.mark.parametrize("damage", ["missing", "cut", "other form"])
def test_values_that_cannot_be_read_leave_those_of_before_in_force(pinned: Pinned, damage: str) -> None:
    old = pinned.aggregator()
    text = pinned.path.read_text()
    if damage == "missing":
        pinned.path.unlink()
    else:
        pinned.path.write_text(text[:100] if damage == "cut" else '{"roots": 3}')
    assert pinned.aggregator() == old
    assert pinned.log.getvalue().count("reference_values_unreadable") == 1
    pinned.aggregator()
    assert pinned.log.getvalue().count("reference_values_unreadable") == 1, "once"
    pinned.path.write_text(text)
    os.utime(pinned.path, ns=(1, 1))
    assert pinned.aggregator() == old


def test_a_host_does_not_start_without_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        PinnedValues(tmp_path / "none.json", log=Log("devices", stream=io.StringIO()))


def test_addresses_follow_and_what_needs_a_restart_is_named(pinned: Pinned) -> None:
    addresses = PinnedAddresses(by_role=PinnedAddressesOf(pinned.values))
    addresses.require("aggregator", pinned.world.aggregator_address)
    before = pinned.world.reference_values()
    pinned.pin(
        *before.image_digests["aggregator"], addresses={**before.addresses, "aggregator": ("127.0.0.1:1",)},
        helper_keys=(HpkeKey.generate().public.hex(),),
    )  # fmt: skip
    with pytest.raises(AddressRefused):
        addresses.require("aggregator", pinned.world.aggregator_address)
    addresses.require("aggregator", "127.0.0.1:1")
    assert set(addresses.by_role) == {"distributor", "aggregator"}
    assert len(addresses.by_role) == 2
    (told,) = (line for line in pinned.log.getvalue().splitlines() if "reference_values_need_a_restart" in line)
    assert "helper_keys" in told

"""`odp issuer run` as a process, and `odp issuer key`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed
from trust.enrolment.world import Developer

from device_runtime import provision
from odp.data import synthetic_movielens
from odp.errors import ServiceError
from odp.operations.local.processes import Child
from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedVendor


@pytest.mark.processes
def test_an_issuer_serves_and_its_key_is_the_one_that_is_printed(tmp_path: Path, odp: Callable[..., Printed]) -> None:
    key = odp("issuer", "key", "--state", tmp_path / "i").out.strip()
    assert odp("issuer", "key", "--state", tmp_path / "i", "--json").json == {"issuer_key": key}
    EmulatedVendor.open(tmp_path / "vendor")
    arguments = ["issuer", "run", "--developer", Developer().key.public.hex(), "--listen", "127.0.0.1:0"]
    arguments += ["--control-listen", "127.0.0.1:0", "--ca-folder", str(tmp_path / "ca")]
    vendor = ["--emulated-vendor", str(tmp_path / "vendor" / ROOT_FILE)]
    child = Child("issuer", [*arguments, *vendor], state=tmp_path / "i", log=tmp_path / "i.log")
    try:
        child.wait_serving(tmp_path / "ca" / "ca.pem")
        assert key in (tmp_path / "i.log").read_text()
    finally:
        child.stop()
    child = Child("issuer", arguments, state=tmp_path / "i", log=tmp_path / "i.log")
    try:
        with pytest.raises(ServiceError, match="--emulated-vendor or --roster"):
            child.wait_serving(tmp_path / "ca" / "ca.pem")
    finally:
        child.stop()


def test_a_roster_lists_devices_of_a_new_host_that_get_their_data_later(
    tmp_path: Path, odp: Callable[..., Printed]
) -> None:
    """An issuer needs the roster before any device may call, so before there are data to give."""
    roster, state = tmp_path / "devices.txt", tmp_path / "devices"
    arguments = ("device", "roster", roster, "--state", state, "--devices", 3)
    odp(*arguments)
    keys = roster.read_text().split()
    assert len(set(keys)) == 3
    ratings = synthetic_movielens(n_users=3, n_items=5, ratings_per_user=5, seed=1)
    assert provision(state, ratings) == 3
    odp(*arguments)
    assert roster.read_text().split() == keys

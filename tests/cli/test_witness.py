"""`odp witness run` beside `odp up`: the log of a server as a process, cosigned by a witness as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from odp.crypto.note import Kind
from odp.operations.local.processes import Child, Services
from odp.transport.channel import connect
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.checkpoint import check_age, verify_checkpoint
from odp.trust.log.key_file import note_key
from odp.trust.log.sources import LogServer

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_services_that_name_a_witness_pin_it_and_have_their_log_cosigned(tmp_path: Path) -> None:
    root = tmp_path / "s"
    # The log's key exists before its server: the witness has to know it.
    log = note_key(root / "log.key", name="example.com/log").public(Kind.NOTE)
    arguments = ["witness", "run", "--log-key", log.text, "--listen", "127.0.0.1:0", "--ca-folder", str(root / "ca")]
    witness = Child("witness", arguments, state=tmp_path / "w", log=tmp_path / "w.log")
    try:
        witness.wait_serving(root / "ca" / "ca.pem")
        key = note_key(tmp_path / "w" / "witness.key", name="unused").public(Kind.COSIGNATURE)
        assert key.text in (tmp_path / "w.log").read_text()
        with Services(root, witnesses=[f"{witness.address}={key.text}"]) as services:
            pinned = ReferenceValues.load(services.reference_values).log
            assert pinned is not None
            assert (pinned.log_keys, pinned.witness_keys, pinned.quorum) == ((log.text,), (key.text,), 1)
            with connect(services.server_address, services.ca) as channel:
                verified = verify_checkpoint(LogServer(channel, services.server_address).note(), pinned, strict=True)
        assert verified.witnesses == (key.name,)
        assert verified.checkpoint.size == 4, "two policies, two endorsements"
        check_age(verified, pinned, now=float(verified.time or 0))
    finally:
        witness.stop()

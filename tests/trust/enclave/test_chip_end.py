"""Operators hear of the end of a chip's certificate before devices refuse it, and when they do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from odp.errors import AttestationError
from odp.transport.logs import Log
from odp.trust.enclave.chip_end import WARN_DAYS, chain_ends, look, trouble
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import attestation_pb2

DAY = 86_400.0
NOW = 1_790_000_000.0


class Enclave:
    def __init__(self, folder: Path) -> None:
        platform = EmulatedPlatform.open(folder, clock=lambda: NOW)
        self.guest = platform.launch(image_digest="sha384:" + "0" * 96, policy=b"{}", name="aggregator")
        self.guest.bind_keys(hpke_public=bytes(32), signing_public=bytes(32))

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        return attestation_pb2.GetEvidenceResponse(token=self.guest.evidence(nonce).token)


@pytest.fixture
def enclave(tmp_path: Path) -> Enclave:
    return Enclave(tmp_path / "platform")


def test_r382_a_host_warns_before_the_end_of_its_chips_certificate_and_reports_the_end(enclave: Enclave) -> None:
    ends = chain_ends(enclave.evidence(bytes(32)).token)
    assert 6 * 365 * DAY < ends - NOW < 8 * 365 * DAY
    events: list[Any] = []
    for now in (NOW, ends - (WARN_DAYS + 1) * DAY, ends - 2.5 * DAY, ends + 1.0):
        out = io.StringIO()
        look(enclave.evidence, Log("aggregator", stream=out, as_json=True), now=now)
        events.append([json.loads(line) for line in out.getvalue().splitlines()])
    assert events[:2] == [[], []]
    assert (events[2][0]["event"], events[2][0]["days"]) == ("chip_certificate_expires", 2)
    assert events[3][0]["event"] == "chip_certificate_ended"
    assert "devices refuse this enclave" in events[3][0]["why"]


def test_a_server_has_it_in_the_middle_of_a_sentence(enclave: Enclave) -> None:
    ends = chain_ends(enclave.evidence(bytes(32)).token)
    assert trouble(enclave.evidence, now=ends) == ""
    assert "chip ended at 20" in trouble(enclave.evidence, now=ends + 1.0)


def test_a_token_that_is_none_is_malformed(enclave: Enclave) -> None:
    with pytest.raises(AttestationError, match="malformed"):
        chain_ends("no token")

"""What is pinned by default, and how endorsements are made, kept, renewed and withdrawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from odp.crypto.note import Kind, NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.operations.local.log_setup import ENDORSEMENTS, VALID_SECONDS, endorse_all, pin_log, reference_values
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.endorsements import EndorsementFile, open_endorsement

NOW = 1_795_000_000.0
POLICIES = (EnclavePolicy(role="aggregator"), EnclavePolicy(role="distributor"))


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "reference_values.json"
    reference_values(tmp_path / "platform", POLICIES[0]).save(path)
    return path


def test_the_default_pins_name_a_log_and_an_endorser_that_stay_the_same(values: Path, tmp_path: Path) -> None:
    pin_log(tmp_path, values, POLICIES, clock=lambda: NOW)
    first = ReferenceValues.load(values)
    assert first.log is not None
    assert first.log.quorum == 0
    reference_values(tmp_path / "platform", POLICIES[0]).save(values)
    assert ReferenceValues.load(values).log is None
    pin_log(tmp_path, values, POLICIES, clock=lambda: NOW + 60)
    assert ReferenceValues.load(values) == first
    file = EndorsementFile.load(tmp_path / ENDORSEMENTS)
    assert {open_endorsement(entry).role for entry in file.endorsements} == {"aggregator", "distributor"}
    assert all(open_endorsement(entry).endorser in first.log.endorser_keys for entry in file.endorsements)


def test_witnesses_that_are_named_all_have_to_cosign(values: Path, tmp_path: Path) -> None:
    keys = [NoteKey.generate(f"example.com/w{n}").public(Kind.COSIGNATURE) for n in range(2)]
    pin_log(tmp_path, values, POLICIES, witness_keys=keys)
    log = ReferenceValues.load(values).log
    assert log is not None
    assert (log.quorum, log.witness_keys) == (2, tuple(key.text for key in keys))


def test_endorsements_are_kept_for_half_their_time_and_then_renewed(values: Path, tmp_path: Path) -> None:
    path, key, pinned = tmp_path / "e.json", SigningKey.generate(), ReferenceValues.load(values)
    assert endorse_all(path, pinned, POLICIES, key, now=NOW) == 2
    assert endorse_all(path, pinned, POLICIES, key, now=NOW + VALID_SECONDS * 0.4) == 0
    assert endorse_all(path, pinned, POLICIES, key, now=NOW + VALID_SECONDS * 0.6) == 2
    assert endorse_all(path, pinned, POLICIES, SigningKey.generate(), now=NOW) == 2, "another endorser"
    assert len(EndorsementFile.load(path).endorsements) == 6
    with pytest.raises(ConfigurationError, match="policy"):
        endorse_all(path, pinned, POLICIES[:1], key, now=NOW)

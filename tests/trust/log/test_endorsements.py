"""Endorsements: by whom, for what, how long; and the withdrawal that only the endorser can make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError
from odp.trust.log.endorsements import (
    EndorsementFile,
    check_withdrawal,
    endorse,
    open_endorsement,
    withdrawal_of,
)
from odp.trust.log.entries import EndorsementEntry, PolicyEntry, WithdrawalEntry

KEY = SigningKey.generate()
VALUES = {
    "role": "aggregator",
    "image_digest": "sha384:" + "ab" * 48,
    "policy_sha256": "cd" * 32,
    "not_before": 1000,
    "not_after": 2000,
}


def test_an_endorsement_holds_for_its_enclave_from_its_beginning_to_its_end() -> None:
    entry, withdrawal = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    found = open_endorsement(entry)
    assert found.endorser == KEY.public.hex()
    assert found.withdrawal == withdrawal.leaf.hex()
    named = {name: VALUES[name] for name in ("role", "image_digest", "policy_sha256")}
    assert [found.covers(**named, now=now) for now in (999, 1000, 1999, 2000)] == [False, True, True, False]  # type: ignore[arg-type]
    for name, other in (("role", "distributor"), ("image_digest", "sha384:" + "00" * 48), ("policy_sha256", "00" * 32)):
        assert not found.covers(**{**named, name: other}, now=1500)  # type: ignore[arg-type]


def test_the_withdrawal_is_the_same_whenever_it_is_made_and_needs_the_endorsers_key() -> None:
    entry, withdrawal = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    assert withdrawal_of(entry, KEY) == withdrawal
    check_withdrawal(withdrawal, open_endorsement(entry))
    with pytest.raises(ConfigurationError, match="another one"):
        withdrawal_of(entry, SigningKey.generate())


def test_what_does_not_withdraw_an_endorsement_is_refused() -> None:
    entry, withdrawal = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    other, _ = endorse(KEY, **{**VALUES, "not_after": 3000})  # type: ignore[arg-type]
    _, by_other = endorse(SigningKey.generate(), **VALUES)  # type: ignore[arg-type]
    stated = open_endorsement(entry)
    with pytest.raises(ConfigurationError, match="another endorsement"):
        check_withdrawal(withdrawal, open_endorsement(other))
    with pytest.raises(ConfigurationError, match="another endorsement"):
        check_withdrawal(by_other, stated)
    with pytest.raises(SignatureError):
        check_withdrawal(WithdrawalEntry(withdrawal.statement, by_other.signature), stated)
    with pytest.raises(SignatureError):
        check_withdrawal(WithdrawalEntry(withdrawal.statement, entry.signature), stated)


def test_an_endorsement_that_was_changed_or_signed_by_somebody_else_is_refused() -> None:
    entry, _ = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    values = json.loads(entry.statement)
    for changed, error in (
        ({**values, "not_after": 5000}, SignatureError),
        ({**values, "endorser": SigningKey.generate().public.hex()}, SignatureError),
        ({**values, "role": "server"}, ConfigurationError),
        ({**values, "not_after": "2000"}, ConfigurationError),
        ({**values, "more": 1}, ConfigurationError),
        ({name: values[name] for name in values if name != "withdrawal"}, ConfigurationError),
    ):
        statement = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(error):
            open_endorsement(EndorsementEntry(statement, entry.signature))
    with pytest.raises(ConfigurationError, match="canonical"):
        open_endorsement(EndorsementEntry(entry.statement.replace(b",", b", "), entry.signature))


@pytest.mark.parametrize(
    "changes", [{"image_digest": "ab"}, {"policy_sha256": "x"}, {"not_after": 1000}, {"not_before": -1}, {"role": "x"}]
)
def test_nothing_malformed_is_endorsed(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        endorse(KEY, **{**VALUES, **changes})  # type: ignore[arg-type]


def test_a_file_of_endorsements_comes_back_equal(tmp_path: Path) -> None:
    entry, withdrawal = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    file = EndorsementFile((PolicyEntry(b'{"a":1}'),), (entry,), (withdrawal,))
    file.save(tmp_path / "e.json")
    assert EndorsementFile.load(tmp_path / "e.json") == file
    assert [type(one) for one in file.entries] == [PolicyEntry, EndorsementEntry, WithdrawalEntry]


def test_a_file_with_a_statement_that_cannot_be_opened_is_refused_whole(tmp_path: Path) -> None:
    entry, _ = endorse(KEY, **VALUES)  # type: ignore[arg-type]
    statement = json.dumps({**json.loads(entry.statement), "more": 1}, sort_keys=True, separators=(",", ":")).encode()
    for changed in (EndorsementEntry(statement, entry.signature), EndorsementEntry(entry.statement, bytes(64))):
        EndorsementFile((), (entry, changed), ()).save(tmp_path / "e.json")
        with pytest.raises(ConfigurationError):
            EndorsementFile.load(tmp_path / "e.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"policies": 1}', '{"policies":[],"endorsements":[{}],"withdrawals":[]}']
)
def test_a_file_that_holds_no_endorsements_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"e\.json"):
        EndorsementFile.load(tmp_path / "e.json")
    with pytest.raises(ConfigurationError, match="cannot read"):
        EndorsementFile.load(tmp_path / "none.json")

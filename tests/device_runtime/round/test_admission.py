"""Devices ask for the token of a round once, before anything is read, and at the pinned issuer alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from trust.enrolment.world import World as IssuerWorld

from device_runtime.network.services import Services, Traffic
from device_runtime.round.admission import Admission, attesters_of
from device_runtime.round.computations import RoundComputation
from device_runtime.round.participation import Outcome
from device_runtime.round.secagg import identity_key
from device_runtime.tasks.assignment import open_assignment
from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import AddressRefused, ConfigurationError, EnrolmentError, OdpError, ServiceUnavailable
from odp.trust.enrolment.attesters.roster import RosterVerifier
from odp.v1 import enrolment_pb2, server_pb2


def take_part(world: Any, device: int = 0, assignment: server_pb2.Assignment | None = None, **changes: Any) -> Outcome:
    """What a device host does in the open round, in a new process."""
    participant = dataclasses.replace(world.participant(), **changes)
    given = world.server.assignment if assignment is None else assignment
    with world.store(device) as store:
        outcome: Outcome = participant.take_part(store, open_assignment(given, population="people"), Traffic())
    return outcome


def changed(world: Any, **fields: Any) -> server_pb2.Assignment:
    given = server_pb2.Assignment()
    given.CopyFrom(world.server.assignment)
    for name, value in fields.items():
        if value is None:
            given.ClearField(name)
        elif isinstance(value, str):
            setattr(given, name, value)
        else:
            getattr(given, name).CopyFrom(value)
    return given


def test_each_device_contributes_with_its_own_token(admitting: Any) -> None:
    admitting.fill([30, 40, 35])
    assert [take_part(admitting, device) for device in range(3)] == [Outcome.SENT] * 3
    counted = list(admitting.aggregator.counted.values())
    assert [len(one.token) for one in counted] == [256] * 3
    assert len({one.token for one in counted}) == 3
    assert len(admitting.issuer_calls) == 3
    assert {len(one) for one in admitting.aggregator.submits} == {len(admitting.aggregator.submits[0])}


def test_the_token_is_asked_for_before_any_data_are_read(admitting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    admitting.fill([30])
    calls_when_read: list[int] = []
    real = RoundComputation.read

    def reading(*given: Any, **options: Any) -> Any:
        calls_when_read.append(len(admitting.issuer_calls))
        return real(*given, **options)

    monkeypatch.setattr(RoundComputation, "read", reading)
    assert take_part(admitting) is Outcome.SENT
    assert calls_when_read == [1]


def test_a_device_that_died_after_it_prepared_sends_the_same_bytes_and_asks_nobody_again(admitting: Any) -> None:
    admitting.fill([30])
    admitting.aggregator.script = ["unavailable"] * 20
    with pytest.raises(ServiceUnavailable):
        take_part(admitting)
    admitting.aggregator.script = []
    before = admitting.aggregator.submits[0]
    assert take_part(admitting) is Outcome.SENT
    assert set(admitting.aggregator.submits) == {before}
    assert len(admitting.issuer_calls) == 1
    with admitting.store(0) as store:
        (line,) = store.ledger()
    assert line.token is None


def test_a_device_that_died_before_it_prepared_gets_the_same_token_again(
    admitting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitting.fill([30])

    def dies(*_: Any, **__: Any) -> Any:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(RoundComputation, "read", dies)
        with pytest.raises(SystemExit):
            take_part(admitting)
    assert take_part(admitting) is Outcome.SENT
    first, second = admitting.issuer_calls
    assert first.blinded_message == second.blinded_message
    assert first.challenge != second.challenge


def test_a_contribution_for_a_new_enclave_key_keeps_its_token(admitting: Any) -> None:
    admitting.fill([30])
    admitting.aggregator.script = ["unavailable"] * 20
    with pytest.raises(ServiceUnavailable):
        take_part(admitting)
    admitting.aggregator.script = []
    admitting.aggregator.enclave.hpke = type(admitting.aggregator.enclave.hpke).generate()
    assert take_part(admitting) is Outcome.SENT
    assert len(admitting.issuer_calls) == 1


def refused(world: Any, assignment: server_pb2.Assignment | None = None, **changes: Any) -> OdpError:
    """How a device ends that takes no part; nothing was asked of the issuer, prepared or sent."""
    with pytest.raises(OdpError) as error:
        take_part(world, assignment=assignment, **changes)
    assert "\n" not in str(error.value)
    assert world.aggregator.submits == []
    with world.store(0) as store:
        assert list(store.ledger()) == []
    return error.value


def test_a_key_that_is_not_the_rounds_own_is_not_used(admitting: Any, tmp_path: Path) -> None:
    admitting.fill([30])
    issuer, round = admitting.issuer, admitting.round
    right = issuer.token_key(admitting.task, round)
    other = IssuerWorld(tmp_path / "other", clock=issuer.clock)
    forged = right.signed(other.key)
    tampered = enrolment_pb2.SignedTokenKey(token_key=right.signed(issuer.key).token_key, signature=bytes(64))
    for wrong in (forged, tampered):
        assert isinstance(refused(admitting, changed(admitting, token_key=wrong)), SignatureError)
    for moved in ({"round": round + 1}, {"task_sha256": bytes(32)}, {"population": "others"}):
        wrong = dataclasses.replace(right, **moved).signed(issuer.key)
        assert isinstance(refused(admitting, changed(admitting, token_key=wrong)), ConfigurationError)
    assert isinstance(refused(admitting, changed(admitting, token_key=None)), EnrolmentError)
    assert admitting.issuer_calls == []
    other.close()


def test_an_issuer_that_is_not_pinned_is_not_asked(admitting: Any) -> None:
    admitting.fill([30])
    error = refused(admitting, changed(admitting, issuer_address="127.0.0.1:9"))
    assert isinstance(error, AddressRefused)
    assert "odp enclave pin-address issuer 127.0.0.1:9" in str(error)


def test_a_population_without_an_issuer_has_no_token_key(world: Any, admitting: Any) -> None:
    world.fill([30])
    key = admitting.server.assignment.token_key
    error = refused(world, changed(world, token_key=key, issuer_address="127.0.0.1:9"))
    assert isinstance(error, EnrolmentError)


def test_a_device_without_an_attester_says_what_to_configure(admitting: Any) -> None:
    admitting.fill([30])
    error = refused(admitting, admission=Admission(admitting.services()))
    assert isinstance(error, EnrolmentError)
    assert "--roster" in str(error)
    assert "emulated vendor" in str(error)
    assert admitting.issuer_calls == []


def test_an_issuer_that_refuses_or_is_away_keeps_the_device_out_until_later(admitting: Any, tmp_path: Path) -> None:
    admitting.fill([30])
    stranger = IssuerWorld(tmp_path / "stranger", clock=admitting.issuer.clock)
    own = admitting.attesters
    admitting.attesters = (stranger.vendor.device,)
    assert isinstance(refused(admitting), EnrolmentError)
    admitting.attesters = own
    admitting.issuer.clock.now += 40 * 86400
    assert "expired" in str(refused(admitting))
    admitting.issuer.clock.now -= 40 * 86400
    assert take_part(admitting) is Outcome.SENT
    stranger.close()


def test_an_issuer_that_signs_something_else_is_found_out(admitting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    admitting.fill([30])
    wrong = enrolment_pb2.IssueTokenResponse(blind_signature=b"\x01" * 256)
    monkeypatch.setattr(Services, "issue_token", lambda *_: wrong)
    assert isinstance(refused(admitting), SignatureError)


def test_a_device_shows_what_the_issuer_accepts_of_what_it_has(admitting: Any, tmp_path: Path) -> None:
    admitting.fill([30])
    with admitting.store(0) as store:
        secret = store.identity().secret
    both = attesters_of(emulated_vendor=tmp_path / "issuer" / "vendor", on_roster=True, clock=admitting.issuer.clock)
    admitting.attesters = both
    assert take_part(admitting) is Outcome.SENT
    assert admitting.issuer_calls[-1].attester == "emulated"
    # On a roster, a device stands with the key that names it in sessions of SecAgg+, too.
    on_roster = identity_key(secret, b"")
    statement = both[0](secret).attest(bytes(32))
    RosterVerifier(frozenset({on_roster.public})).verify(statement, bytes(32), now=0.0)
    with pytest.raises(EnrolmentError, match="not on the issuer's roster"):
        RosterVerifier(frozenset({SigningKey.generate().public})).verify(statement, bytes(32), now=0.0)


def test_a_session_token_is_over_the_identity_and_the_same_in_every_attempt(admitting: Any) -> None:
    admitting.fill([30])
    work = open_assignment(admitting.server.assignment, population="people")
    admission = Admission(admitting.services(), admitting.attesters, clock=admitting.issuer.clock)
    secret, identity = b"s" * 32, b"i" * 32
    tokens = {admission.session_token(work, identity, secret, Traffic()) for _ in range(3)}
    (token,) = tokens
    key = admitting.issuer.token_key(admitting.task, 0)
    assert key.admits(domains.session_token(identity), token)
    # One device, one token: not one for a session and another for a contribution, nor one for each of two identities.
    for message in (domains.session_token(b"j" * 32), domains.contribution_token(identity)):
        with pytest.raises(EnrolmentError, match="one device, one token"):
            admission.token(work, message, secret, Traffic())

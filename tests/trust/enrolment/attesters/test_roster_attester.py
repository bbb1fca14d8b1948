"""Statements of devices on a roster."""

from __future__ import annotations

import pytest

from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import EnrolmentError
from odp.trust.enrolment.attesters.roster import RosterAttester, RosterVerifier

NONCE = bytes(range(32))
KEY, OTHER, STRANGER = (SigningKey.generate() for _ in range(3))
VERIFIER = RosterVerifier(frozenset({KEY.public, OTHER.public}))


def test_a_device_of_the_roster_counts_under_one_name() -> None:
    name = VERIFIER.verify(RosterAttester(KEY).attest(NONCE), NONCE, now=0.0)
    assert VERIFIER.verify(RosterAttester(KEY).attest(bytes(32)), bytes(32), now=1.0) == name
    assert VERIFIER.verify(RosterAttester(OTHER).attest(NONCE), NONCE, now=0.0) != name
    assert len(name) == 32
    assert name != KEY.public


def test_a_stranger_another_nonce_and_a_signature_for_something_else_do_not_count() -> None:
    good = RosterAttester(KEY).attest(NONCE)
    wrong = [
        (RosterAttester(STRANGER).attest(NONCE), NONCE),
        (good, bytes(32)),
        (OTHER.public + good[32:], NONCE),
        (KEY.public + KEY.sign(domains.SECAGG_ADVERT, NONCE), NONCE),
        (good[:-1], NONCE),
        (good + b"\x00", NONCE),
        (b"", NONCE),
    ]
    for statement, nonce in wrong:
        with pytest.raises(EnrolmentError):
            VERIFIER.verify(statement, nonce, now=0.0)


def test_statements_of_all_devices_have_one_length() -> None:
    assert {len(RosterAttester(key).attest(NONCE)) for key in (KEY, OTHER, STRANGER)} == {96}

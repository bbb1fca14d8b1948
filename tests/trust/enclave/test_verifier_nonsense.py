"""Any bytes and any change to genuine evidence: refused, and nothing but an attestation error."""

from __future__ import annotations

import base64
import contextlib
import functools

from hypothesis import given, strategies as st
from trust.enclave.rig import (
    FUZZ,
    Rig,
    parts,
    reason,
)

from odp.errors import AttestationError
from odp.trust.enclave.evidence import Reason


def test_a_truncated_token_is_refused_at_every_length(rig: Rig) -> None:
    token = rig.token()
    for length in range(0, len(token), 37):
        assert reason(functools.partial(rig.verify, token[:length])) == Reason.MALFORMED
    assert reason(lambda: rig.verify(token[:-1])) == Reason.MALFORMED


@FUZZ
@given(text=st.text(max_size=300) | st.text("ABCabc019-_.=", max_size=300))
def test_any_text_is_refused_as_malformed(rig: Rig, text: str) -> None:
    assert reason(lambda: rig.verify(text)) == Reason.MALFORMED


@FUZZ
@given(data=st.data())
def test_any_change_to_a_genuine_token_is_refused(rig: Rig, data: st.DataObject) -> None:
    token = rig.token()
    start = data.draw(st.integers(0, len(token)))
    end = data.draw(st.integers(start, min(len(token), start + 40)))
    filling = data.draw(st.text("ABCXYZabcxyz0189-_.", max_size=40) | st.text(max_size=10))
    changed = token[:start] + filling + token[end:]
    if changed != token:
        assert reason(lambda: rig.verify(changed)) in set(Reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(data=st.data())
def test_genuinely_signed_nonsense_raises_nothing_but_attestation_errors(rig: Rig, data: st.DataObject) -> None:
    header, claims = parts(rig.token())
    name = data.draw(st.sampled_from([*claims, *header]))
    value = data.draw(JSON)
    target = claims if name in claims else header
    unchanged = target[name] == value and type(target[name]) is type(value)
    target[name] = value
    token = rig.sign(claims, header)
    # Issuer, hardware model, and `emulated` false do not decide under a root that is marked as emulated.
    if not unchanged and name not in {"iss", "hwmodel", "emulated", "exp", "iat"}:
        assert reason(lambda: rig.verify(token)) in set(Reason)
        return
    with contextlib.suppress(AttestationError):
        rig.verify(token)


@FUZZ
@given(place=st.integers(0, 2), data=st.data())
def test_a_changed_certificate_raises_nothing_but_attestation_errors(rig: Rig, place: int, data: st.DataObject) -> None:
    header, claims = parts(rig.token())
    certificate = bytearray(base64.b64decode(header["x5c"][place]))
    certificate[data.draw(st.integers(0, len(certificate) - 1))] ^= data.draw(st.integers(1, 255))
    header["x5c"][place] = base64.b64encode(bytes(certificate)).decode()
    token = rig.sign(claims, header)
    assert reason(lambda: rig.verify(token)) in {Reason.CHAIN_INVALID, Reason.WRONG_ROOT, Reason.CHAIN_EXPIRED}

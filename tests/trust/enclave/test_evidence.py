"""The form of a token: one spelling, strict types, hard limits; everything else is malformed."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.jwt import signature_is_valid
from odp.errors import AttestationError
from odp.trust.enclave import chain
from odp.trust.enclave.evidence import Claims, Reason, read_token, report_data, write_token

NOW = 1_750_000_000
HPKE, SIGNING, NONCE = b"h" * 32, b"s" * 32, bytes(range(32))
CLAIMS = Claims(
    issuer="urn:odp:emulated-platform",
    issued=NOW,
    expires=NOW + 60,
    nonce=NONCE,
    debug_status="disabled-since-boot",
    hardware_model="ODP-EMULATED",
    software_name="odp-aggregator",
    emulated=True,
    image_digest="sha384:" + "aa" * 48,
    registers={"configuration": bytes(48), "sandbox": b"s" * 48, "runtime": b"r" * 48},
    report_data=report_data(nonce=NONCE, hpke_key=HPKE, signing_key=SIGNING, policy=b"{}"),
    hpke_key=HPKE,
    signing_key=SIGNING,
)


@dataclasses.dataclass(frozen=True)
class Genuine:
    """A genuine token, and parts of it put together anew: reading looks at the form only, so no signature is needed."""

    token: str

    def header(self) -> dict[str, Any]:
        return dict(json.loads(decode(self.token.split(".")[0])))

    def token_with(self, header: dict[str, Any]) -> str:
        return ".".join((encode(json.dumps(header).encode()), *self.token.split(".")[1:]))


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(AttestationError) as caught:
        call()
    return caught.value.reason


@pytest.fixture(scope="module")
def issued() -> chain.IssuedChain:
    return chain.issue(now=NOW)


@pytest.fixture(scope="module")
def genuine(issued: chain.IssuedChain) -> Genuine:
    return Genuine(write_token(CLAIMS, chain=issued.certificates, key=issued.key))


def test_a_written_token_reads_back(genuine: Genuine, issued: chain.IssuedChain) -> None:
    token = read_token(genuine.token)
    assert token.chain == issued.certificates
    assert Claims.from_json(token.claims) == CLAIMS
    assert signature_is_valid(token, issued.key.public_key())
    assert not signature_is_valid(dataclasses.replace(token, signed=token.signed + b"."), issued.key.public_key())


def test_reasons_are_a_closed_set_that_equals_its_strings() -> None:
    assert str(Reason.WRONG_NONCE) == "wrong_nonce"
    assert len(Reason) == 24


def test_report_data_is_64_bytes_that_depend_on_each_input() -> None:
    inputs = {"nonce": NONCE, "hpke_key": HPKE, "signing_key": SIGNING, "policy": b"{}"}
    seen = {report_data(**inputs)} | {report_data(**{**inputs, name: b"x" * 32}) for name in inputs}
    assert len(seen) == 5
    assert {len(data) for data in seen} == {64}


MALFORMED_CLAIMS: list[tuple[str, dict[str, Any]]] = [
    ("another audience", {"aud": "another"}),
    ("two audiences", {"aud": ["odp", "another"]}),
    ("another profile", {"eat_profile": "urn:odp:evidence:v0"}),
    ("ends before it starts", {"exp": int(NOW) - 100, "iat": int(NOW)}),
    ("time as text", {"exp": str(NOW)}),
    ("time as truth", {"iat": True}),
    ("time as fraction", {"iat": NOW + 0.5}),
    ("time out of range", {"exp": 10**30}),
    ("negative time", {"iat": -1}),
    ("emulation as text", {"emulated": "false"}),
    ("emulation as number", {"emulated": 0}),
    ("short key", {"hpke_key": encode(b"x" * 31)}),
    ("padded key", {"hpke_key": encode(HPKE) + "="}),
    ("key with loose bits", {"hpke_key": encode(HPKE)[:-1] + "h"}),
    ("key of list", {"hpke_key": [HPKE.hex()]}),
    ("short report", {"report_data": encode(bytes(63))}),
    ("short nonce", {"eat_nonce": encode(NONCE[:15])}),
    ("list of nonces", {"eat_nonce": [encode(NONCE), encode(bytes(32))]}),
    ("newline in a name", {"swname": "odp-aggregator\n"}),
    ("empty issuer", {"iss": ""}),
    ("long issuer", {"iss": "x" * 257}),
    ("lone surrogate", {"iss": "\ud800"}),
    ("submods of list", {"submods": []}),
    ("empty submods", {"submods": {}}),
    ("no register", {"registers": {}}),
    ("a register less", {"registers": {"configuration": encode(bytes(48)), "sandbox": encode(bytes(48))}}),
    ("a register more", {"registers": dict.fromkeys(("configuration", "sandbox", "runtime", "x"), encode(bytes(48)))}),
    ("short registers", {"registers": dict.fromkeys(("configuration", "sandbox", "runtime"), encode(bytes(47)))}),
    ("registers as a list", {"registers": [encode(bytes(48))] * 3}),
    ("null image", {"submods": {"container": {"image_digest": None}}}),
]


@pytest.mark.parametrize("changes", [row[1] for row in MALFORMED_CLAIMS], ids=[row[0] for row in MALFORMED_CLAIMS])
def test_a_claim_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    values = json.loads(json.dumps({**CLAIMS.to_json(), **changes}))
    assert reason(lambda: Claims.from_json(values)) == Reason.MALFORMED


def test_headers_of_any_other_form_are_refused(genuine: Genuine) -> None:
    header = genuine.header()
    changes: list[dict[str, Any]] = [
        {"alg": "none"},
        {"alg": "HS384"},
        {"alg": "ES256"},
        {"typ": "jwt"},
        {"crit": ["exp"]},
        {"jwk": {}},
        {"kid": "1"},
        {"x5c": header["x5c"][:1]},
        {"x5c": header["x5c"] * 2},
        {"x5c": []},
        {"x5c": header["x5c"][0]},
        {"x5c": [1, 2]},
        {"x5c": ["", ""]},
        {"x5c": ["!", "!"]},
        {"x5c": ["\u00e9", "\u00e9"]},
        {"x5c": [base64.b64encode(bytes(4097)).decode()] * 2},
    ]
    for change in changes:
        token = genuine.token_with({**header, **change})
        assert reason(functools.partial(read_token, token)) == Reason.MALFORMED, change
    for missing in header:
        token = genuine.token_with({name: value for name, value in header.items() if name != missing})
        assert reason(functools.partial(read_token, token)) == Reason.MALFORMED, missing


def test_text_that_is_no_token_is_refused(genuine: Genuine) -> None:
    header, claims, signature = genuine.token.split(".")
    body = decode(claims)
    bodies = [
        b"", b"null", b"[]", b"1", b"\xff\xfe", b"[" * 5000, b'{"a":' * 2000, body[:-1] + b',"aud":"odp"}',
        body[:-1] + b',"x":NaN}', body[:-1] + b',"x":1' + b"0" * 5000 + b"}", body.decode().encode("utf-16"),
    ]  # fmt: skip
    tokens = [f"{header}.{encode(each)}.{signature}" for each in bodies]
    tokens += ["", ".", "..", "...", "a.b.c", f"{header}.{claims}", f"{header}.{claims}.{signature}."]
    tokens += [f"{header}.{claims}.", f"{header}.{claims}.{signature}=", f" {header}.{claims}.{signature}"]
    tokens += [f"{header}.{claims}.{signature}\n", f"{header}.{claims}.{signature[:-4]}", "\u00e9" * 50, "\ud800"]
    tokens += ["A" * 20_000, f"{header}.{claims}.{'A' * 20_000}"]
    for token in tokens:
        assert reason(functools.partial(read_token, token)) == Reason.MALFORMED, token[-80:]


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    values=st.dictionaries(
        st.sampled_from(sorted(CLAIMS.to_json())),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=90)
        | st.lists(st.text(), max_size=2),
    )
)
def test_claims_of_any_types_give_claims_or_a_malformed_error(values: dict[str, Any]) -> None:
    try:
        Claims.from_json({**CLAIMS.to_json(), **values})
    except AttestationError as error:
        if error.reason != Reason.MALFORMED:
            raise

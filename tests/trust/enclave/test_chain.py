"""Every way in which a certificate chain can be wrong, one chain per row."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from odp.errors import AttestationError
from odp.trust.enclave import chain
from odp.trust.enclave.evidence import Reason

NOW = 1_750_000_000.0
YEAR = 365 * 24 * 3600.0
CRITICAL = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")


@dataclasses.dataclass(frozen=True)
class Spec:
    """One certificate of a chain that the test makes itself."""

    subject: str
    issuer: str
    depth: int | None
    start: float = NOW - YEAR
    end: float = NOW + YEAR
    curve: type[ec.EllipticCurve] = ec.SECP384R1
    hash: type[hashes.SHA256 | hashes.SHA384 | hashes.SHA512] = hashes.SHA384
    authority: bool | None = None
    signs_certificates: bool | None = None
    signs_data: bool | None = None
    usage: bool = True
    constraints: bool = True
    critical: bool = True
    extra: x509.ExtensionType | None = None
    chip: dict[str, bytes] | None = None
    extra_critical: bool = True
    signer: int | None = None


ARK = Spec("ark", "ark", 1)
ASK = Spec("ask", "ark", 0)
CHIP = Spec("vcek", "ask", None)

AMD = "1.3.6.1.4.1.3704.1"
TCB_PLACES = {"boot_loader": "3.1", "tee": "3.2", "snp": "3.3", "microcode": "3.8"}
CHIP_ID = bytes(range(64))


def chip_extensions() -> dict[str, bytes]:
    """What a chip's certificate says of chip and firmware, by the last arcs of AMD's identifiers."""
    return {**dict.fromkeys(TCB_PLACES.values(), b"\x02\x01\x03"), "4": CHIP_ID}


def naming(builder: x509.CertificateBuilder, values: dict[str, bytes]) -> x509.CertificateBuilder:
    """The builder with the extensions of a chip's certificate."""
    for arcs, value in values.items():
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(f"{AMD}.{arcs}"), value)
        builder = builder.add_extension(extension, critical=False)
    return builder


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def build(*specs: Spec) -> list[x509.Certificate]:
    """Certificates in the order of ``specs``, root first; each is signed by the one before it, the first by itself."""
    keys = [ec.generate_private_key(spec.curve()) for spec in specs]
    made = []
    for place, spec in enumerate(specs):
        signer = keys[spec.signer if spec.signer is not None else max(place - 1, 0)]
        authority = spec.depth is not None if spec.authority is None else spec.authority
        signs = authority if spec.signs_certificates is None else spec.signs_certificates
        signs_data = not signs if spec.signs_data is None else spec.signs_data
        usage: dict[str, Any] = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
        )
        usage |= {
            "encipher_only": False,
            "decipher_only": False,
            "digital_signature": signs_data,
            "key_cert_sign": signs,
        }
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(spec.subject))
            .issuer_name(name(spec.issuer))
            .public_key(keys[place].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.datetime.fromtimestamp(spec.start, datetime.UTC))
            .not_valid_after(datetime.datetime.fromtimestamp(spec.end, datetime.UTC))
        )
        if spec.constraints:
            constraints = x509.BasicConstraints(ca=authority, path_length=spec.depth if authority else None)
            builder = builder.add_extension(constraints, critical=spec.critical)
        if spec.usage:
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        if spec.subject == CHIP.subject:
            builder = naming(builder, chip_extensions() if spec.chip is None else spec.chip)
        if spec.extra is not None:
            builder = builder.add_extension(spec.extra, critical=spec.extra_critical)
        made.append(builder.sign(signer, spec.hash()))
    return made


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def check(ark: x509.Certificate, ask: x509.Certificate, chip: x509.Certificate) -> chain.VerifiedChain:
    return chain.verify([der(chip), der(ask), der(ark)], roots=[pem(ark)], now=NOW)


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(AttestationError) as caught:
        call()
    return caught.value.reason


def test_a_chain_of_this_shape_verifies_so_that_the_rows_below_fail_for_their_own_reason() -> None:
    ark, ask, chip = build(ARK, ASK, CHIP)
    found = check(ark, ask, chip)
    assert found.key == chip.public_key()
    assert found.expires == NOW + YEAR
    assert not found.emulated
    assert found.tcb == chain.Tcb(boot_loader=3, tee=3, snp=3, microcode=3)
    assert found.chip_id == CHIP_ID
    assert found.serials == tuple(f"{certificate.serial_number:x}" for certificate in (chip, ask, ark))


def test_a_harmless_extension_that_is_not_critical_is_accepted() -> None:
    check(*build(ARK, ASK, dataclasses.replace(CHIP, extra=CRITICAL, extra_critical=False)))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("start", "end"), [(NOW - YEAR, NOW - 1), (NOW + 1, NOW + YEAR)])
def test_each_certificate_must_be_valid_now(place: int, start: float, end: float) -> None:
    specs = [ARK, ASK, CHIP]
    specs[place] = dataclasses.replace(specs[place], start=start, end=end)
    assert reason(lambda: check(*build(*specs))) == Reason.CHAIN_EXPIRED


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (2, {"authority": True, "depth": 0}),
        (2, {"authority": True, "depth": 0, "signs_certificates": False, "signs_data": True}),
        (2, {"signs_certificates": True}),
        (2, {"signs_certificates": True, "signs_data": True}),
        (2, {"signs_data": False}),
        (2, {"usage": False}),
        (2, {"constraints": False}),
        (2, {"critical": False}),
        (2, {"curve": ec.SECP256R1}),
        (2, {"curve": ec.SECP521R1}),
        (2, {"hash": hashes.SHA256}),
        (2, {"issuer": "ark"}),
        (2, {"signer": 0}),
        (2, {"signer": 2}),
        (2, {"extra": CRITICAL}),
        (1, {"authority": False}),
        (1, {"depth": 1}),
        (1, {"signs_certificates": False}),
        (1, {"usage": False}),
        (1, {"constraints": False}),
        (1, {"curve": ec.SECP256R1}),
        (1, {"hash": hashes.SHA512}),
        (1, {"issuer": "kra"}),
        (1, {"signer": 1}),
        (1, {"extra": CRITICAL}),
        (0, {"authority": False}),
        (0, {"signs_certificates": False}),
        (0, {"curve": ec.SECP256R1}),
        (0, {"extra": CRITICAL}),
    ],
)
def test_each_constraint_of_each_certificate_is_enforced(place: int, change: dict[str, Any]) -> None:
    specs = [ARK, ASK, CHIP]
    specs[place] = dataclasses.replace(specs[place], **change)
    assert reason(lambda: check(*build(*specs))) == Reason.CHAIN_INVALID


def test_the_root_may_be_left_out_and_is_then_found_among_the_pinned_ones() -> None:
    ark, ask, chip = build(ARK, ASK, CHIP)
    twin, *_ = build(ARK)
    assert chain.verify([der(chip), der(ask)], roots=[pem(twin), pem(ark)], now=NOW).key == chip.public_key()


@pytest.mark.parametrize("with_root", [True, False])
def test_a_root_that_is_not_pinned_is_refused_even_under_the_pinned_name(with_root: bool) -> None:
    ark, ask, chip = build(ARK, ASK, CHIP)
    twin, *_ = build(ARK)
    sent = [der(chip), der(ask)] + ([der(ark)] if with_root else [])
    assert reason(lambda: chain.verify(sent, roots=[pem(twin)], now=NOW)) == Reason.WRONG_ROOT
    assert reason(lambda: chain.verify(sent, roots=[], now=NOW)) == Reason.WRONG_ROOT


def test_a_pinned_root_sent_along_does_not_vouch_for_a_chain_of_another_root() -> None:
    ark, *_ = build(ARK)
    _, ask, chip = build(ARK, ASK, CHIP)
    assert reason(lambda: check(ark, ask, chip)) == Reason.CHAIN_INVALID


def test_certificates_in_another_order_or_twice_are_refused() -> None:
    ark, ask, chip = (der(certificate) for certificate in build(ARK, ASK, CHIP))
    roots = [pem(x509.load_der_x509_certificate(ark))]
    refused: set[str] = {Reason.CHAIN_INVALID, Reason.WRONG_ROOT}
    for sent in ([ask, chip, ark], [chip, chip, ark], [ask, ark, ark], [ark, ark, ark], [ask, ark], [chip, ark, ask]):
        assert reason(functools.partial(chain.verify, sent, roots=roots, now=NOW)) in refused


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x30\x82\x01\x00", b"\x30\x00"])
@pytest.mark.parametrize("place", [0, 1])
def test_bytes_that_are_no_certificate_are_refused(junk: bytes, place: int) -> None:
    ark, ask, chip = build(ARK, ASK, CHIP)
    sent = [der(chip), der(ask), der(ark)]
    sent[place] = junk
    assert reason(lambda: chain.verify(sent, roots=[pem(ark)], now=NOW)) == Reason.CHAIN_INVALID


def test_no_flipped_byte_of_the_chip_certificate_survives() -> None:
    ark, ask, chip = build(ARK, ASK, CHIP)
    whole = der(chip)
    for place in range(0, len(whole), 3):
        flipped = whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]
        with pytest.raises(AttestationError):
            chain.verify([flipped, der(ask), der(ark)], roots=[pem(ark)], now=NOW)


def test_an_ed25519_chip_key_is_refused() -> None:
    ark_key, ask_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    start, end = (datetime.datetime.fromtimestamp(at, datetime.UTC) for at in (NOW - YEAR, NOW + YEAR))

    def certify(spec: Spec, public: Any, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        usage = x509.KeyUsage(
            spec.depth is None, False, False, False, False, spec.depth is not None, False, False, False
        )
        builder = (
            x509.CertificateBuilder(name(spec.issuer), name(spec.subject), public, 7, start, end)
            .add_extension(x509.BasicConstraints(spec.depth is not None, spec.depth), critical=True)
            .add_extension(usage, critical=True)
        )
        return (naming(builder, chip_extensions()) if spec is CHIP else builder).sign(signer, hashes.SHA384())

    ark = certify(ARK, ark_key.public_key(), ark_key)
    ask = certify(ASK, ask_key.public_key(), ark_key)
    check(ark, ask, certify(CHIP, ec.generate_private_key(ec.SECP384R1()).public_key(), ask_key))
    odd = certify(CHIP, ed25519.Ed25519PrivateKey.generate().public_key(), ask_key)
    assert reason(lambda: check(ark, ask, odd)) == Reason.CHAIN_INVALID


def test_an_issued_chain_verifies_for_seven_years_and_is_marked_as_emulated() -> None:
    issued = chain.issue(now=NOW)
    roots = [pem(x509.load_der_x509_certificate(issued.certificates[-1]))]
    found = chain.verify(issued.certificates, roots=roots, now=NOW)
    assert found.emulated
    assert found.key == issued.key.public_key()
    assert found.expires == NOW + 7 * YEAR
    chain.verify(issued.certificates, roots=roots, now=NOW + 7 * YEAR - 1)
    assert (
        reason(lambda: chain.verify(issued.certificates, roots=roots, now=NOW + 7 * YEAR + 1)) == Reason.CHAIN_EXPIRED
    )


WITHOUT = [(f"without {place}", {key: value for key, value in chip_extensions().items() if key != place})
           for place in chip_extensions()]  # fmt: skip
WRONG = [
    ("negative version", {**chip_extensions(), "3.1": b"\x02\x01\xff"}),
    ("version above 255", {**chip_extensions(), "3.2": b"\x02\x02\x01\x00"}),
    ("version in text", {**chip_extensions(), "3.3": b"\x0c\x013"}),
    ("version with more behind it", {**chip_extensions(), "3.8": b"\x02\x01\x03\x00"}),
    ("empty version", {**chip_extensions(), "3.8": b""}),
    ("short chip id", {**chip_extensions(), "4": CHIP_ID[:-1]}),
    ("long chip id", {**chip_extensions(), "4": CHIP_ID + b"x"}),
]


@pytest.mark.parametrize("named", [row[1] for row in (*WITHOUT, *WRONG)], ids=[row[0] for row in (*WITHOUT, *WRONG)])
def test_a_chip_that_does_not_say_what_it_is_is_refused(named: dict[str, bytes]) -> None:
    made = build(ARK, ASK, dataclasses.replace(CHIP, chip=named))
    assert reason(lambda: check(*made)) == Reason.CHAIN_INVALID


@pytest.mark.parametrize("version", [0, 1, 127, 128, 255])
def test_firmware_versions_survive_the_certificate(version: int) -> None:
    tcb = chain.Tcb(boot_loader=version, tee=0, snp=1, microcode=2)
    issued = chain.issue(now=NOW, tcb=tcb)
    root = x509.load_der_x509_certificate(issued.certificates[-1])
    found = chain.verify(issued.certificates, roots=[pem(root)], now=NOW)
    assert found.tcb == tcb
    assert len(found.chip_id) == 64


def test_two_chips_have_two_ids() -> None:
    first, second = (chain.issue(now=NOW) for _ in range(2))
    ids = [
        chain.verify(one.certificates, roots=[pem(x509.load_der_x509_certificate(one.certificates[-1]))], now=NOW)
        for one in (first, second)
    ]
    assert ids[0].chip_id != ids[1].chip_id


@pytest.mark.parametrize("component", list(TCB_PLACES))
def test_each_component_has_its_own_minimum(component: str) -> None:
    tcb = chain.Tcb(boot_loader=3, tee=3, snp=3, microcode=3)
    assert tcb.below(dict.fromkeys(TCB_PLACES, 3)) is None
    assert tcb.below({component: 4}) == component

"""The verifier: decides whether the evidence of an enclave is sufficient to send it data.

A pure function of the evidence, the caller's nonce, the pinned reference values and the time. It denies by default, and
every denial carries one ``Reason`` of a closed set. The order of the checks is part of the contract: nothing inside a
token is believed before the chain and the signature hold.

1. form of the token                       ``malformed``
2. chain down from a pinned root           ``wrong_root``, ``chain_invalid``, ``chain_expired``, ``revoked``
3. signature by the chain's chip           ``bad_signature``
4. form of the claims                      ``malformed``
5. time                                    ``not_yet_valid``, ``expired``
6. the caller's own nonce                  ``wrong_nonce``
7. debug status, emulation, firmware       ``debug_enabled``, ``emulated_not_allowed``, ``tcb_outdated``
8. role, code and policy                   ``wrong_role``, ``image_withdrawn``, ``wrong_image``, ``image_not_valid``,
                                           ``wrong_policy``, ``test_noise_not_allowed``
9. keys, nonce and policy bound together   ``key_binding``
10. what happened since the launch         ``event_log``, ``unrestricted``

Source: RFC 9334 (appraisal of evidence).

``OwnChip`` verifies another enclave of the same platform: the mutual check of two enclaves before secrets go between
them. An enclave pins no root of its own. It asks its platform for evidence of itself: the chip that signs that is the
one chip whose word it takes, by that chip's clock.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from odp import _validate
from odp.crypto import jwt
from odp.errors import AttestationError, ConfigurationError, StateError
from odp.refusing import refusing
from odp.trust.enclave import chain, registers
from odp.trust.enclave.evidence import (
    DEBUG_DISABLED,
    DEBUG_ENABLED,
    EMULATED_HARDWARE,
    NONCE_BYTES,
    Claims,
    Reason,
    read_token,
    report_data,
)
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import ROLES, EnclavePolicy, Role
from odp.trust.enclave.reference_values import ReferenceValues, Validity
from odp.v1 import attestation_pb2

# Clocks of devices and platforms differ; the nonce, not the clock, is what makes evidence fresh.
CLOCK_SKEW_SECONDS = 60
_DRAWN_BYTES = 32
_SHOWN = re.compile(r"(population|ledger) ([a-z0-9][a-z0-9_.-]{0,63}) ([0-9a-f]{64})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifiedEnclave:
    """An enclave whose evidence was accepted; public.

    Attributes:
        role: ``"aggregator"`` or ``"distributor"``.
        hpke_key: seal to this key what only the enclave may read (32 bytes).
        signing_key: the enclave's signatures verify under this key (32 bytes).
        policy: the limits that the enclave holds.
        image_digest: measurement of its code.
        expires: seconds since the epoch after which fresh evidence is needed.
        emulated: True: no hardware protects this enclave.
        chip_id: the chip that it runs on, 64 bytes.
        restrictions: what holds for its process, by the names of ``odp.trust.enclave.sandbox``.
        populations: name -> SHA-256 of the charter in force (32 bytes), of each population that an aggregator has.
        ledgers: name -> id of its ledger (32 bytes), which stays the same for as long as the ledger goes on.
    """

    role: Role
    hpke_key: bytes
    signing_key: bytes
    policy: EnclavePolicy
    image_digest: str
    expires: float
    emulated: bool
    chip_id: bytes
    restrictions: tuple[str, ...]
    populations: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    ledgers: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def verify_fresh(
    evidence: Callable[[bytes], attestation_pb2.GetEvidenceResponse],
    *,
    role: str,
    reference_values: ReferenceValues,
    clock: Callable[[], float],
) -> VerifiedEnclave:
    """The enclave that answers ``evidence`` over a nonce drawn here. Raises as ``evidence`` and ``verify_evidence``."""
    nonce = os.urandom(_DRAWN_BYTES)
    reply = evidence(nonce)
    return verify_evidence(
        token=reply.token,
        policy=reply.policy,
        event_log=reply.event_log,
        nonce=nonce,
        role=role,
        reference_values=reference_values,
        now=clock(),
    )


@refusing("evidence of an enclave")
def verify_evidence(
    *,
    token: str,
    policy: bytes,
    event_log: bytes,
    nonce: bytes,
    role: str,
    reference_values: ReferenceValues,
    now: float,
) -> VerifiedEnclave:
    """Checks evidence as the module docstring lists it.

    Args:
        token: the evidence, as received.
        policy: the policy bytes that came with it.
        event_log: the event log that came with it.
        nonce: what the caller sent, 16 to 64 random bytes, used once.
        role: the role that the caller is looking for.
        reference_values: what the caller pins.
        now: seconds since the epoch.

    Returns:
        The enclave's attested keys, policy and measurement.

    Raises:
        AttestationError: the evidence is not accepted; ``reason`` is a ``Reason``.
        ConfigurationError: the caller's own nonce, role or clock is unusable.
    """
    if len(nonce) not in NONCE_BYTES:
        raise ConfigurationError(
            f"Expected a nonce of {NONCE_BYTES.start} to {NONCE_BYTES.stop - 1} bytes, got {len(nonce)}"
        )
    _validate.finite(now=now)
    wanted = _role(role)

    parsed = read_token(token)
    chip = chain.verify(parsed.chain, roots=reference_values.roots, now=now)
    _check_revocation(chip, reference_values)
    if not jwt.signature_is_valid(parsed, chip.key):
        raise AttestationError(Reason.BAD_SIGNATURE, "the token was changed, or was not signed by the platform in it")
    claims = Claims.from_json(parsed.claims)

    expires = _check_time(claims, reference_values, now)
    if claims.nonce != nonce:
        raise AttestationError(Reason.WRONG_NONCE, "the evidence answers another caller's nonce: it may be replayed")
    _check_debug(claims, reference_values)
    emulated = claims.emulated or claims.hardware_model == EMULATED_HARDWARE or chip.emulated
    if emulated and not reference_values.allow_emulated:
        raise AttestationError(
            Reason.EMULATED_NOT_ALLOWED,
            "the enclave runs on an emulated platform; set allow_emulated in the reference values to accept that",
        )
    if (outdated := chip.tcb.below(reference_values.minimum_tcb)) is not None:
        raise AttestationError(Reason.TCB_OUTDATED, f"the platform's firmware component {outdated!r} is out of date")
    if claims.software_name != f"odp-{wanted}":
        raise AttestationError(
            Reason.WRONG_ROLE, f"wanted odp-{wanted}, the evidence is for {claims.software_name[:40]!r}"
        )
    expires = min(expires, chip.expires, _check_image(claims.image_digest, wanted, reference_values, now))
    accepted = _check_policy(policy, wanted, reference_values)
    bound = report_data(nonce=nonce, hpke_key=claims.hpke_key, signing_key=claims.signing_key, policy=policy)
    if claims.report_data != bound:
        raise AttestationError(Reason.KEY_BINDING, "the report does not bind these keys to this nonce and this policy")
    restrictions, shown = _check_events(event_log, claims, policy)
    for required in reference_values.required_restrictions:
        if required not in restrictions:
            raise AttestationError(Reason.UNRESTRICTED, f"its process runs without the restriction {required!r}")
    return VerifiedEnclave(
        role=wanted,
        hpke_key=claims.hpke_key,
        signing_key=claims.signing_key,
        policy=accepted,
        image_digest=claims.image_digest,
        expires=expires,
        emulated=emulated,
        chip_id=chip.chip_id,
        restrictions=restrictions,
        populations=shown["population"],
        ledgers=shown["ledger"],
    )


def _role(role: str) -> Role:
    for known in ROLES:
        if known == role:
            return known
    raise ConfigurationError(f"Expected role={role!r} to be one of {', '.join(ROLES)}{_validate.nearest(role, ROLES)}")


def _check_revocation(chip: chain.VerifiedChain, reference_values: ReferenceValues) -> None:
    for serial in chip.serials:
        if serial in reference_values.revoked_certificates:
            raise AttestationError(Reason.REVOKED, f"the certificate {serial} of the platform was revoked")
    if chip.chip_id.hex() in reference_values.revoked_chips:
        raise AttestationError(Reason.REVOKED, f"the chip {chip.chip_id.hex()[:16]}.. was revoked")


def _check_image(digest: str, role: Role, reference_values: ReferenceValues, now: float) -> float:
    """The time until which the measurement is accepted."""
    if digest in reference_values.withdrawn_images:
        raise AttestationError(Reason.IMAGE_WITHDRAWN, f"its code {digest[:40]!r}.. was withdrawn")
    if digest not in reference_values.image_digests.get(role, ()):
        raise AttestationError(Reason.WRONG_IMAGE, f"its code {digest[:40]!r}.. is not listed for role {role!r}")
    validity = reference_values.image_validity.get(digest, Validity())
    if not validity.not_before <= now < validity.not_after:
        raise AttestationError(Reason.IMAGE_NOT_VALID, f"its code {digest[:40]!r}.. is not accepted at this time")
    return validity.not_after


def _check_events(
    event_log: bytes, claims: Claims, policy: bytes
) -> tuple[tuple[str, ...], dict[str, dict[str, bytes]]]:
    """The restrictions in the event log; and charters in force and ledgers of populations, by name.

    It has to lead to the signed registers and to say what the token says.
    """
    try:
        events = registers.read(event_log)
        replayed = registers.replay(event_log)
    except ConfigurationError as error:
        raise AttestationError(Reason.EVENT_LOG, f"its event log cannot be read: {error}") from None
    if replayed != claims.registers:
        raise AttestationError(Reason.EVENT_LOG, "its event log does not lead to the registers of the report")
    stated = [event for event in events if event[0] == "configuration" or event[1].startswith("keys ")]
    expected = [
        ("configuration", f"policy {hashlib.sha256(policy).hexdigest()}"),
        ("configuration", f"debug {'off' if claims.debug_status == DEBUG_DISABLED else 'on'}"),
        ("runtime", f"keys {claims.hpke_key.hex()} {claims.signing_key.hex()}"),
    ]
    if stated != expected:
        raise AttestationError(Reason.EVENT_LOG, "its event log is of another launch, policy or keys")
    held = tuple(event.removeprefix("held ") for where, event in events if (where, event[:5]) == ("sandbox", "held "))
    shown: dict[str, dict[str, bytes]] = {"population": {}, "ledger": {}}
    for match in [_SHOWN.fullmatch(event) for where, event in events if where == "runtime"]:
        if match is not None:
            # Of several lines of one population, the last one is in force.
            shown[match[1]][match[2]] = bytes.fromhex(match[3])
    return held, shown


def _check_time(claims: Claims, reference_values: ReferenceValues, now: float) -> float:
    if claims.issued > now + CLOCK_SKEW_SECONDS:
        raise AttestationError(
            Reason.NOT_YET_VALID, f"issued {claims.issued - now:.0f} s in the future; check the clock"
        )
    expires = min(float(claims.expires), claims.issued + reference_values.max_age_seconds)
    if now >= expires:
        raise AttestationError(Reason.EXPIRED, f"expired {now - expires:.0f} s ago; ask for fresh evidence")
    return expires


def _check_debug(claims: Claims, reference_values: ReferenceValues) -> None:
    accepted = {DEBUG_DISABLED, DEBUG_ENABLED} if reference_values.allow_debug else {DEBUG_DISABLED}
    if claims.debug_status not in accepted:
        raise AttestationError(Reason.DEBUG_ENABLED, "a debugger may read the enclave's memory")


def _check_policy(policy: bytes, role: Role, reference_values: ReferenceValues) -> EnclavePolicy:
    digest = hashlib.sha256(policy).hexdigest()
    if digest not in reference_values.policy_sha256.get(role, ()):
        raise AttestationError(Reason.WRONG_POLICY, f"its policy {digest[:12]}.. is not listed for role {role!r}")
    try:
        accepted = EnclavePolicy.from_bytes(policy)
    except ConfigurationError as error:
        raise AttestationError(Reason.WRONG_POLICY, f"its policy is listed but cannot be read: {error}") from None
    if accepted.role != role:
        raise AttestationError(Reason.WRONG_ROLE, f"its policy is for role {accepted.role!r}, wanted {role!r}")
    if accepted.test_noise_seed is not None and not reference_values.allow_test_noise:
        raise AttestationError(
            Reason.TEST_NOISE_NOT_ALLOWED,
            "its policy adds noise from a seed, which gives no protection; set allow_test_noise in "
            "the reference values to "
            "accept that in a test",
        )
    return accepted


#: Of every nonce of a hand-over.
HAND_OVER_NONCE_BYTES = 32


@dataclasses.dataclass(frozen=True)
class OwnChip:
    """The chip below an enclave; ``now`` is its clock, in seconds since the epoch."""

    identity: EnclaveIdentity
    chain: Sequence[bytes]
    claims: Claims

    @classmethod
    def of(cls, identity: EnclaveIdentity) -> OwnChip:
        """Asks the platform. Raises StateError if its evidence does not carry the whole chain."""
        token = read_token(identity.evidence(os.urandom(HAND_OVER_NONCE_BYTES)).token)
        if len(token.chain) != 3:
            raise StateError(
                "the platform's evidence does not carry its root: no other enclave can be checked against it"
            )
        return cls(identity, token.chain, Claims.from_json(token.claims))

    @property
    def now(self) -> float:
        """The platform's clock, seconds since the epoch."""
        return float(self.claims.issued)

    def verify(self, given: attestation_pb2.GetEvidenceResponse, *, nonce: bytes) -> VerifiedEnclave:
        """The verified enclave of ``given``, over ``nonce``: of this chip, this role and this policy.

        Which code it is, the caller judges.

        Raises:
            AttestationError: the evidence is of another chip, role or policy, replayed, forged, or of a debuggable
                enclave where this one is not.
        """
        token = read_token(given.token)
        # Whoever certifies chips under the root must not count: the chip itself has to be this one.
        if not token.chain or token.chain[0] != self.chain[0]:
            raise AttestationError("wrong_root", "the evidence is not by the chip that this enclave runs on")
        return self._verified(given, Claims.from_json(token.claims).image_digest, self.identity.policy, nonce=nonce)

    def verify_same_code(
        self, given: attestation_pb2.GetEvidenceResponse, *, role: Role, nonce: bytes
    ) -> VerifiedEnclave:
        """The verified enclave of ``given``, over ``nonce``: of this very code, and of this policy in another role.

        Its chip may be any that the root of this one's certifies: what it gets are secrets of a round, and no sealing
        key.

        Raises:
            AttestationError: the evidence is of other code, another root, role or policy, replayed, forged, or of a
                debuggable enclave where this one is not.
        """
        return self._verified(given, self.claims.image_digest, self.identity.policy.as_role(role), nonce=nonce)

    def _verified(
        self, given: attestation_pb2.GetEvidenceResponse, image_digest: str, policy: EnclavePolicy, *, nonce: bytes
    ) -> VerifiedEnclave:
        role = policy.role
        root = x509.load_der_x509_certificate(self.chain[-1])
        return verify_evidence(
            token=given.token,
            policy=given.policy,
            event_log=given.event_log,
            nonce=nonce,
            role=role,
            reference_values=ReferenceValues(
                roots=(root.public_bytes(Encoding.PEM).decode("ascii"),),
                image_digests={role: (image_digest,)},
                policy_sha256={role: (policy.sha256.hex(),)},
                allow_emulated=self.claims.emulated,
                allow_debug=self.claims.debug_status != DEBUG_DISABLED,
                allow_test_noise=policy.test_noise_seed is not None,
            ),
            now=self.now,
        )

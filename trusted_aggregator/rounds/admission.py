"""Admission of contributions to a round: by a token under its one key, if the population names an issuer.

A round has exactly one key. The enclave takes it when the round opens and seals it with the round's record, so neither
the server nor the issuer can later have other tokens count, or tell devices apart by several keys. A token is over one
contribution id, and one id counts once: so a round has at most as many contributions as its issuer gave tokens.

An enclave has no clock that it could trust, so it does not look at ``not_after``: that binds the issuer.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from odp.crypto import domains
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, PrivacyError
from odp.signed.charter import Charter
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey, open_token_key
from odp.v1 import aggregator_pb2, enrolment_pb2

#: In the record of a round: anybody may contribute.
NO_KEY = b""


class Admission:
    """The requirements for a contribution to one round. Thread-safe: it never changes.

    Args:
        signed: the serialized SignedTokenKey of the round, as ``sealed_key`` gave it; empty: anybody may contribute.
    """

    def __init__(self, signed: bytes = NO_KEY) -> None:
        self._key = key_of(enrolment_pb2.SignedTokenKey.FromString(signed)) if signed else None

    @property
    def token_bytes(self) -> int:
        """Length of the token in every contribution of the round."""
        return 0 if self._key is None else TOKEN_BYTES

    def admits(self, contribution: aggregator_pb2.Contribution) -> bool:
        """Whether ``contribution``, whose token has the length of the round, may be counted under its id."""
        if self._key is None:
            return True
        return self._key.admits(domains.contribution_token(contribution.contribution_id), contribution.token)


def sealed_key(
    signed: enrolment_pb2.SignedTokenKey | None, charter: Charter | None, *, task_sha256: bytes, round: int
) -> bytes:
    """The stored form of ``signed`` in a new round's record, after every check; ``charter`` is the one in force.

    Raises:
        PrivacyError: the population names an issuer and no key came, or names none and one came, or the key is another
            issuer's.
        ConfigurationError: the key is malformed, or that of another round, task or population.
    """
    has_key = signed is not None and bool(signed.token_key)
    if charter is None or not charter.issuer_key:
        if has_key:
            raise PrivacyError("the population names no issuer of tokens, so its rounds open without a token key")
        return NO_KEY
    if signed is None or not has_key:
        raise PrivacyError(
            f"population {charter.population!r} names an issuer of tokens: its rounds open with the issuer's token key "
            "alone; start the server with --issuer"
        )
    try:
        open_token_key(
            signed, issuer_key=charter.issuer_key, population=charter.population, task_sha256=task_sha256, round=round
        )
    except SignatureError:
        raise PrivacyError(
            f"the token key of round {round} is not signed by the issuer that population {charter.population!r} names"
        ) from None
    return signed.SerializeToString(deterministic=True)


def key_of(signed: enrolment_pb2.SignedTokenKey) -> TokenKey:
    """The key of a statement whose signer and round were checked before. Raises ConfigurationError."""
    stated = enrolment_pb2.TokenKey()
    try:
        stated.ParseFromString(signed.token_key)
    except DecodeError as error:
        raise ConfigurationError("the token key is not a valid message") from error
    return TokenKey(stated.population, stated.task_sha256, stated.round, stated.modulus, stated.not_after)


def require_same_key(round: int, sealed: bytes, signed: enrolment_pb2.SignedTokenKey | None) -> None:
    """Returns if an open round was opened with this key. Raises PrivacyError otherwise.

    ``sealed`` is of the round's record.
    """
    stated = enrolment_pb2.SignedTokenKey.FromString(sealed).token_key
    # Of one statement there may be two signatures, which change nothing.
    if stated != (b"" if signed is None else signed.token_key):
        raise PrivacyError(
            f"round {round} is open with another token key: a round has exactly one, because several "
            "could identify devices"
        )

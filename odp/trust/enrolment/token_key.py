"""The key of one round's tokens, as its issuer states it.

Everybody uses the one key of a round. The enclave takes exactly one when the round opens, and a device asks for a token
under no other, so that an issuer cannot tell devices apart by the keys that it shows them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from odp import _validate
from odp.crypto import domains
from odp.crypto.blind_rsa import PublicKey
from odp.crypto.signing import SignatureError, SigningKey, verify
from odp.errors import ConfigurationError
from odp.v1 import enrolment_pb2

#: Of the modulus, of a blinded message and of a token.
TOKEN_BYTES = 256

_LARGEST = 1024
_HASH_BYTES = 32
_LARGEST_ROUND = 2**32 - 1
_LARGEST_TIME = 2**40


@dataclass(frozen=True)
class TokenKey:
    """A round's key: its purpose, its RSA modulus, and the time after which its issuer stops signing.

    ``not_after`` is in seconds since the epoch.

    Raises:
        ConfigurationError: a field is out of range, or the modulus is not one of 2048 bits.
    """

    population: str
    task_sha256: bytes
    round: int
    modulus: bytes
    not_after: int

    def __post_init__(self) -> None:
        _validate.identifier(population=self.population)
        _validate.integer(low=0, high=_LARGEST_ROUND, round=self.round)
        _validate.integer(low=0, high=_LARGEST_TIME, not_after=self.not_after)
        for name, value, length in (
            ("task_sha256", self.task_sha256, _HASH_BYTES),
            ("modulus", self.modulus, TOKEN_BYTES),
        ):
            if len(value) != length:
                raise ConfigurationError(f"Expected {name} of a token key to be {length} bytes, got {len(value)}")
        self.public  # noqa: B018  # refuses a modulus that is none

    @functools.cached_property
    def public(self) -> PublicKey:
        """The key itself."""
        return PublicKey.from_bytes(self.modulus)

    def admits(self, message: bytes, token: bytes) -> bool:
        """Whether ``token`` is a signature of ``message``: from ``domains.contribution_token`` or
        ``domains.session_token``.
        """
        try:
            self.public.verify(message, token)
        except SignatureError:
            return False
        return True

    def signed(self, key: SigningKey) -> enrolment_pb2.SignedTokenKey:
        """The statement under the issuer's ``key``."""
        data = enrolment_pb2.TokenKey(
            population=self.population,
            task_sha256=self.task_sha256,
            round=self.round,
            modulus=self.modulus,
            not_after=self.not_after,
        ).SerializeToString(deterministic=True)
        return enrolment_pb2.SignedTokenKey(token_key=data, signature=key.sign(domains.TOKEN_KEY, data))


def open_token_key(
    signed: enrolment_pb2.SignedTokenKey, *, issuer_key: bytes, population: str, task_sha256: bytes, round: int
) -> TokenKey:
    """The key of exactly this round, after checks of its signature and every field.

    ``not_after`` is left to the caller: an enclave has no clock that it could trust.

    Args:
        signed: as received.
        issuer_key: 32 bytes, the issuer that the population names.
        population, task_sha256, round: what the key has to be for.

    Raises:
        SignatureError: it is not the issuer's.
        ConfigurationError: it is malformed, or the key of another round, task or population.
    """
    if len(signed.token_key) > _LARGEST:
        raise ConfigurationError(f"Expected a token key of at most {_LARGEST} bytes, got {len(signed.token_key)}")
    verify(issuer_key, signed.signature, domains.TOKEN_KEY, signed.token_key)
    message = enrolment_pb2.TokenKey()
    try:
        message.ParseFromString(signed.token_key)
    except DecodeError as error:
        raise ConfigurationError("the token key is not a valid message") from error
    key = TokenKey(message.population, message.task_sha256, message.round, message.modulus, message.not_after)
    for name, stated, wanted in (
        ("population", key.population, population),
        ("task", key.task_sha256, task_sha256),
        ("round", key.round, round),
    ):
        if stated != wanted:
            raise ConfigurationError(f"the token key is that of another {name}")
    return key

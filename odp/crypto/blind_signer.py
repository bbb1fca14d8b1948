"""The signer of blind RSA signatures: the private half of ``odp.crypto.blind_rsa``, which verifiers do not load.

The private power runs in constant time: GMP's ``mpz_powm_sec`` takes the same time and touches the same memory for any
two exponents of one size. Its input is hidden behind a random factor, since the reductions around it are not
constant-time. Each result is checked before it leaves: a faulty one would reveal the key.

Source: RFC 9474 sections 4.3 and 7.1, RFC 8017 section 5.2.1 (CRT), the GMP manual ("Exponentiation Functions").
"""

from __future__ import annotations

import os

import gmpy2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from odp.crypto.blind_rsa import EXPONENT, MODULUS_BITS, PublicKey, RandomBytes
from odp.errors import ConfigurationError, OdpError


class SigningFault(OdpError):
    """A private operation gave a wrong result: the machine is faulty; the result was discarded."""


class BlindSigner:
    """An RSA private key that signs blinded messages and nothing else. Its ``repr`` shows nothing of it.

    Use one key for blind signatures alone: it signs whatever number it is given.
    """

    __slots__ = ("_key", "_private_power", "public")

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        numbers = key.private_numbers()
        if numbers.public_numbers.e != EXPONENT:
            raise ConfigurationError(f"Expected an RSA key of exponent {EXPONENT}")
        self.public = PublicKey(numbers.public_numbers.n)
        self._key = key
        self._private_power = _PrivatePower(numbers)

    @classmethod
    def generate(cls) -> BlindSigner:
        """A new key of 2048 bits from the operating system's randomness; takes about 0.1 s."""
        return cls(rsa.generate_private_key(EXPONENT, MODULUS_BITS[0]))

    @classmethod
    def from_bytes(cls, data: bytes) -> BlindSigner:
        """The key that ``to_bytes`` wrote. Raises ConfigurationError where ``data`` is none."""
        try:
            key = serialization.load_der_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigurationError("Expected an RSA private key as PKCS #8") from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise ConfigurationError("Expected an RSA private key as PKCS #8")
        return cls(key)

    def to_bytes(self) -> bytes:
        """The private key, PKCS #8 in DER: keep it where only its owner reads."""
        return self._key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, blinded_message: bytes, random_bytes: RandomBytes = os.urandom) -> bytes:
        """The blind signature, ``public.size`` bytes: the same for the same blinded message.

        ``random_bytes`` hides the input from side channels; it does not change the result.

        Raises:
            ConfigurationError: the blinded message has another length, or is not below the modulus.
            SigningFault: the machine computed a wrong result; nothing was given out.
        """
        self.public.check_blinded(blinded_message)
        size, modulus = self.public.size, gmpy2.mpz(self.public.modulus)
        number = gmpy2.mpz(int.from_bytes(blinded_message, "big"))
        mask = 1 + int.from_bytes(random_bytes(size + 16), "big") % (modulus - 1)
        signed = self._private_power(number * gmpy2.powmod(mask, EXPONENT, modulus) % modulus)
        result = signed * gmpy2.invert(mask, modulus) % modulus
        if gmpy2.powmod(result, EXPONENT, modulus) != number:
            raise SigningFault("an RSA signature came out wrong; the machine's memory or processor is faulty")
        return int(result).to_bytes(size, "big")


class _PrivatePower:
    """``x -> x^d mod n`` of one key, by the Chinese remainder theorem."""

    __slots__ = ("_dp", "_dq", "_p", "_q", "_q_inverse")

    def __init__(self, numbers: rsa.RSAPrivateNumbers) -> None:
        self._p, self._q = gmpy2.mpz(numbers.p), gmpy2.mpz(numbers.q)
        self._dp, self._dq = gmpy2.mpz(numbers.dmp1), gmpy2.mpz(numbers.dmq1)
        self._q_inverse = gmpy2.mpz(numbers.iqmp)

    def __call__(self, number: gmpy2.mpz) -> gmpy2.mpz:
        of_p = gmpy2.powmod_sec(number % self._p, self._dp, self._p)
        of_q = gmpy2.powmod_sec(number % self._q, self._dq, self._q)
        return of_q + self._q * ((of_p - of_q) * self._q_inverse % self._p)

"""Public-key encryption, signatures and the domain strings that keep their uses apart."""

from odp.crypto import domains
from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey, seal
from odp.crypto.signing import SignatureError, SigningKey, verify

__all__ = ["OVERHEAD", "DecryptionError", "HpkeKey", "SignatureError", "SigningKey", "domains", "seal", "verify"]
